"""The servers that `benchmarks/serve.py` compares, each started by it in a process of its own.

    python benchmarks/servers.py ours|tutorial|echo|model|pytriton|mlserver --model_base_path ...

    ours      this project's server, of the first checkout on PYTHONPATH
    tutorial  a plain gRPC server that calls the SavedModel's signature once per request
    echo      a plain gRPC server on asyncio that reads the same requests, and answers each with one
              answer of the same size, without a model
    pytriton  the `rank` callable behind PyTriton, with Triton's dynamic batching
    mlserver  the `rank` callable behind MLServer, with its adaptive batching
    model     the `rank` callable alone, no gRPC, at several numbers of joined calls

A server prints one JSON object (`port`, `method`, `requests`: files of what to call it with) and
ends when its standard input closes; `model` prints CPU seconds per call.  The requests are `full`,
with random values of every feature, and for our server and the echo also `ids`, with real ids alone
and the context.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "src")]  # the other environments lack the project

from benchmarks.load import write_requests

from multigate.serving.versions.folders import CONTRACT, scan

NAME = "benchmark"
JOINED = (1, 2, 4, 8)
RANK = "/multigate.RankingService/Rank"
INFER = "/inference.GRPCInferenceService/ModelInfer"
REQUESTS = 32
MOST_JOINED = 8  # calls of one run: 800 rows at 100 candidates, as in our server


def read_contract(base: Path) -> dict[str, Any]:
    """The contract of the newest version, as JSON."""
    folder = next(iter(scan(base).values()))
    contract: dict[str, Any] = json.loads((folder / CONTRACT).read_text())["contract"]
    return contract


def random_request(contract: dict[str, Any], candidates: int, seed: int) -> Any:
    """A RankRequest with a value for every feature."""
    from multigate.serving.protos import ranking_pb2

    rng = random.Random(seed)
    request = ranking_pb2.RankRequest(model={"name": NAME})
    sides = {"user": request.user, "context": request.context}

    def one(feature: dict[str, Any], count: int) -> tuple[str, list[Any]]:
        if feature["kind"] == "number":
            return "numbers", [rng.random() for _ in range(count)]
        if feature["dtype"] == "int":
            return "integers", [rng.randrange(10_000) for _ in range(count)]
        return "texts", [str(rng.randrange(10_000)) for _ in range(count)]

    for name, feature in contract["features"].items():
        if feature["kind"] == "position":
            continue
        lists = feature["kind"] == "id_list"
        if feature["side"] != "item":
            field, values = one(feature, feature["max_length"] if lists else 1)
            if lists:
                getattr(sides[feature["side"]][name], field).values.extend(values)
            else:
                setattr(sides[feature["side"]][name], field[:-1], values[0])
        elif name == contract["item"]:
            field, values = one(feature, candidates)
            getattr(request.candidates.item_id, field).values.extend(values)
        else:
            column = request.candidates.columns[name]
            length = feature["max_length"] if lists else 1
            field, values = one(feature, candidates * length)
            getattr(column, field).values.extend(values)
            if lists:
                column.lengths.extend([length] * candidates)
    return request


def rank_requests(base: Path, candidates: int) -> list[bytes]:
    """What callers send to the servers that speak Rank."""
    contract = read_contract(base)
    found = [random_request(contract, candidates, seed) for seed in range(REQUESTS)]
    return [request.SerializeToString() for request in found]


def id_requests(base: Path, candidates: int) -> list[bytes]:
    """The same calls with ids of the version's snapshot, and without what it knows."""
    from multigate.serving.protos import ranking_pb2

    contract = read_contract(base)
    users, items = stored_texts(base, "users"), stored_texts(base, "items")
    rng, found = random.Random(0), []
    for raw in rank_requests(base, candidates):
        full = ranking_pb2.RankRequest.FromString(raw)
        request = ranking_pb2.RankRequest(model=full.model)
        for name in full.context:
            request.context[name].CopyFrom(full.context[name])
        request.user[contract["user"]].text = rng.choice(users)
        request.candidates.item_id.texts.values.extend(rng.choices(items, k=candidates))
        found.append(request.SerializeToString())
    return found


def stored_texts(base: Path, side: str) -> list[str]:
    """The ids of a side in the newest version's snapshot."""
    from multigate.serving.feature_store.backends import SNAPSHOT_FOLDER

    folder = next(iter(scan(base).values())) / SNAPSHOT_FOLDER / side
    places, texts = (np.load(folder / f"keys.{name}.npy") for name in ("places", "texts"))
    return [bytes(texts[a:b]).decode() for a, b in itertools.pairwise(places.tolist())]


def load_model(base: Path) -> tuple[Any, Any, Any]:
    """The version as our server loads it, the layout of `rank`, and a reader of requests."""
    from multigate.serving.core.layout import rank_layout
    from multigate.serving.request.rank_request import RequestReader
    from multigate.serving.versions.saved_model import SavedModel

    version, folder = next(iter(scan(base).items()))
    saved_model = SavedModel.load(version, folder)
    return (
        saved_model,
        rank_layout(saved_model.contract),
        RequestReader(saved_model.contract, 10_000),
    )


def infer_requests(base: Path, candidates: int, message: Any) -> list[bytes]:
    """The same requests as tensors of the open inference protocol, a batch of one call each."""
    from multigate.serving.protos import ranking_pb2

    saved_model, layout, reader = load_model(base)
    names = {"string": "BYTES", "int64": "INT64", "float32": "FP32", "bool": "BOOL"}
    found = []
    for raw in rank_requests(base, candidates):
        inputs = reader.read(ranking_pb2.RankRequest.FromString(raw)).inputs
        request = message(model_name=NAME)
        for name, what in layout.inputs.items():
            if what.role == "index":
                continue  # every row is of its call's one user
            values = inputs[name]
            request.inputs.add(name=name, datatype=names[what.dtype], shape=[1, *values.shape])
            texts = what.dtype == "string"
            request.raw_input_contents.append(
                b"".join(struct.pack("<I", len(one)) + one for one in values.ravel())
                if texts
                else values.tobytes()
            )
        found.append(request.SerializeToString())
    saved_model.retire()
    return found


def joined_rank(base: Path) -> tuple[Any, Any, Callable[[dict[str, Any]], dict[str, Any]]]:
    """The `rank` callable for a batch of calls of equal shape: inputs (B, N, ...) or (B, 1, ...).

    Returns:
        The version, the layout, and the callable, whose outputs are (B, N).
    """
    saved_model, layout, _ = load_model(base)
    signature = saved_model.signatures["rank"]
    item = saved_model.contract.item

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        calls, rows = inputs[item].shape[:2]
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in inputs.items()}
        flat["user_index"] = np.repeat(np.arange(calls, dtype=np.int32), rows)
        return {name: values.reshape(calls, rows) for name, values in signature(flat).items()}

    return saved_model, layout, run


def announce(port: int, method: str, requests: dict[str, list[bytes]], folder: str) -> None:
    """Tell the parent how to call, then wait until it has."""
    paths = {what: Path(folder) / what for what in requests}
    for what, path in paths.items():
        write_requests(path, requests[what])
    files = {what: str(path) for what, path in paths.items()}
    print(json.dumps({"port": port, "method": method, "requests": files}), flush=True)
    sys.stdin.read()


def both_requests(base: Path, candidates: int) -> dict[str, list[bytes]]:
    """What our server and the echo are called with."""
    return {"full": rank_requests(base, candidates), "ids": id_requests(base, candidates)}


def serve_ours(base: Path, candidates: int, folder: str, workers: int) -> None:
    """The project's own server."""
    from multigate.serving.core.options import ServerOptions

    options = ServerOptions(model_name=NAME, model_base_path=base, port=0, workers=workers)
    if workers > 1:
        from multigate.runtime.start import start_runtime
        from multigate.serving.workers.supervisor import Supervisor

        supervisor = Supervisor(options, start_runtime)
        supervisor.start()
        announce(supervisor.port, RANK, both_requests(base, candidates), folder)
        supervisor.stop()
        return
    from multigate.serving.core.background import freeze_garbage_collector
    from multigate.serving.rpc.server import Server

    freeze_garbage_collector()  # as `multigate serve` does
    with Server(options) as server:
        announce(server.port, RANK, both_requests(base, candidates), folder)


def serve_plain(service: Any, base: Path, candidates: int, folder: str) -> None:
    """A servicer in a plain gRPC server, as tutorials start one."""
    import grpc

    from multigate.serving.protos import ranking_pb2_grpc

    server = grpc.server(futures.ThreadPoolExecutor(64))
    ranking_pb2_grpc.add_RankingServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    announce(port, RANK, {"full": rank_requests(base, candidates)}, folder)
    server.stop(0).wait()


async def serve_echo(base: Path, candidates: int, folder: str) -> None:
    """A plain server on asyncio that gives every call the same answer."""
    import grpc

    from multigate.serving.protos import ranking_pb2_grpc

    answer = an_answer(base, candidates)

    class Echo(ranking_pb2_grpc.RankingServiceServicer):
        async def Rank(self, request: Any, context: Any) -> Any:
            return answer

    server = grpc.aio.server()
    ranking_pb2_grpc.add_RankingServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await asyncio.to_thread(announce, port, RANK, both_requests(base, candidates), folder)
    await server.stop(0)


def an_answer(base: Path, candidates: int) -> Any:
    """Our server's answer to a request, but for its scores, which are random."""
    from multigate.configs.contract import FrozenContract
    from multigate.serving.core.layout import SCORE
    from multigate.serving.protos import ranking_pb2
    from multigate.serving.request.order import rank_order
    from multigate.serving.request.rank_request import RequestReader
    from multigate.serving.rpc.ranking import fill_response

    frozen = FrozenContract.read(next(iter(scan(base).values())) / CONTRACT)
    request = ranking_pb2.RankRequest.FromString(rank_requests(base, candidates)[0])
    parsed = RequestReader(frozen.contract, 10_000).read(request)
    rng = np.random.default_rng(0)
    outputs = {name: rng.random(candidates, np.float32) for name in (SCORE, *frozen.contract.tasks)}
    answer = ranking_pb2.RankResponse(
        model_name=NAME, model_version=1, schema=frozen.schema_fingerprint, request_id="0" * 32
    )
    order = rank_order(outputs, parsed)
    fill_response(answer, request, frozen.contract, parsed, outputs, order)
    return answer


def tutorial(base: Path) -> Any:
    """A servicer that calls the signature per request, as tutorials show."""
    import tensorflow as tf

    from multigate.configs.contract import FrozenContract
    from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc
    from multigate.serving.request.rank_request import RequestReader

    folder = next(iter(scan(base).values()))
    contract = FrozenContract.read(folder / CONTRACT).contract
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["rank"]
    reader = RequestReader(contract, 10_000)

    class Tutorial(ranking_pb2_grpc.RankingServiceServicer):
        model = loaded  # signatures hold no reference to their variables

        def Rank(self, request: Any, context: Any) -> Any:
            inputs = reader.read(request).inputs
            answer = signature(**{name: tf.constant(value) for name, value in inputs.items()})
            scores = {name: value.numpy() for name, value in answer.items()}
            order = np.argsort(-scores["score"], kind="stable")
            ids = request.candidates.item_id
            field = ids.WhichOneof("values")
            values = getattr(ids, field).values
            response = ranking_pb2.RankResponse(
                item_index=order.tolist(), score=scores["score"][order].tolist()
            )
            getattr(response.item_id, field).values.extend([values[index] for index in order])
            for task in contract.tasks:
                response.task_scores[task].values.extend(scores[task][order].tolist())
            return response

    return Tutorial()


def free_ports(count: int) -> list[int]:
    """Ports for servers that cannot choose one."""
    import socket

    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def serve_pytriton(base: Path, candidates: int, folder: str) -> None:
    """PyTriton; its batcher joins what waits, without waiting for more."""
    from pytriton.decorators import batch
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import Triton, TritonConfig
    from tritonclient.grpc import service_pb2

    saved_model, layout, run = joined_rank(base)
    kinds = {"string": bytes, "int64": np.int64, "float32": np.float32, "bool": np.bool_}
    grpc_port, http_port = free_ports(2)
    config = TritonConfig(
        grpc_port=grpc_port, http_port=http_port, allow_metrics=False, log_verbose=0
    )

    @batch
    def infer(**inputs: Any) -> dict[str, Any]:
        return run(inputs)

    with Triton(config=config) as triton:
        triton.bind(
            model_name=NAME,
            infer_func=infer,
            inputs=[
                Tensor(name=name, dtype=kinds[what.dtype], shape=(-1,) * what.dimensions)
                for name, what in layout.inputs.items()
                if what.role != "index"
            ],
            outputs=[
                Tensor(name=name, dtype=np.float32, shape=(-1,))
                for name in saved_model.signatures["rank"].outputs
            ],
            config=ModelConfig(max_batch_size=MOST_JOINED, batcher=DynamicBatcher()),
        )
        triton.run()
        requests = infer_requests(base, candidates, service_pb2.ModelInferRequest)
        announce(grpc_port, INFER, {"full": requests}, folder)


def serve_mlserver(base: Path, candidates: int, folder: str) -> None:
    """MLServer, as its command starts it, with adaptive batching and a worker per core."""
    import os
    import subprocess

    import grpc
    from mlserver.grpc import dataplane_pb2, dataplane_pb2_grpc

    http_port, grpc_port, metrics_port = free_ports(3)
    settings = {
        "host": "127.0.0.1",
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "parallel_workers": os.cpu_count(),
    }
    model = {
        "name": NAME,
        "implementation": "mlserver_rank.Rank",
        "max_batch_size": MOST_JOINED,
        "max_batch_time": 0.001,
        "parameters": {"uri": str(base.resolve())},
    }
    (Path(folder) / "settings.json").write_text(json.dumps(settings))
    (Path(folder) / "model-settings.json").write_text(json.dumps(model))
    here = Path(__file__).parent
    path = f"{here}:{ROOT}:{ROOT / 'src'}"
    server = subprocess.Popen(
        [sys.executable, "-m", "mlserver.cli.main", "start", folder],
        env=os.environ | {"PYTHONPATH": path},
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = dataplane_pb2_grpc.GRPCInferenceServiceStub(channel)
            ready = dataplane_pb2.ModelReadyRequest(name=NAME)
            for _ in range(600):
                try:
                    if stub.ModelReady(ready, timeout=1).ready:
                        break
                except grpc.RpcError:
                    if server.poll() is not None:
                        raise SystemExit("MLServer ended at its start") from None
                time.sleep(0.2)
        requests = infer_requests(base, candidates, dataplane_pb2.ModelInferRequest)
        announce(grpc_port, INFER, {"full": requests}, folder)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def model_alone(base: Path, candidates: int, seconds: float) -> None:
    """Print CPU seconds per call of the callable, by number of joined calls."""
    from multigate.serving.protos import ranking_pb2
    from multigate.serving.versions.batching import join_calls

    saved_model, layout, reader = load_model(base)
    signature = saved_model.signatures["rank"]
    raw = rank_requests(base, candidates)
    parsed = [reader.read(ranking_pb2.RankRequest.FromString(one)).inputs for one in raw]
    costs = {}
    for count in JOINED:
        inputs = join_calls(parsed[:count], layout)
        for _ in range(50):
            signature(inputs)
        runs, cpu, until = 0, time.process_time(), time.monotonic() + seconds / len(JOINED)
        while time.monotonic() < until:
            signature(inputs)
            runs += 1
        costs[count] = (time.process_time() - cpu) / runs / count
    saved_model.retire()
    print(json.dumps(costs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ["ours", "tutorial", "echo", "model", "pytriton", "mlserver"]
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--candidates", type=int, default=100, help="of each call")
    parser.add_argument("--workers", type=int, default=1, help="of our server")
    parser.add_argument("--seconds", type=float, default=3, help="of `model`")
    options = parser.parse_args()
    base, candidates = options.model_base_path, options.candidates
    if options.kind == "model":
        model_alone(base, candidates, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.kind == "ours":
            serve_ours(base, candidates, folder, options.workers)
        elif options.kind == "pytriton":
            serve_pytriton(base, candidates, folder)
        elif options.kind == "mlserver":
            serve_mlserver(base, candidates, folder)
        elif options.kind == "echo":
            asyncio.run(serve_echo(base, candidates, folder))
        else:
            serve_plain(tutorial(base), base, candidates, folder)


if __name__ == "__main__":
    main()
