"""Calls per second of the server, beside a tutorial's server and the limits of the machine.

    python benchmarks/serve.py --model_base_path models/demo [--seconds 3]

    ours      this project's server
    tutorial  a plain gRPC server that calls the SavedModel's signature once per request
    echo      a plain gRPC server that answers the same messages without a model
    model     the `rank` callable in one process, no gRPC, at its best number of joined calls

Every server runs in a process of its own and all are called from this one, in a closed loop, with
the same requests of random ids.  The limit is what the cores allow if a call costs one echo and its
share of the model: cores / (CPU seconds of an echo call + CPU seconds of the model per call).
Prints a table and, last, one JSON line with the ratios at 16 callers and 100 candidates.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from serving.protos import ranking_pb2, ranking_pb2_grpc
from serving.versions import CONTRACT, scan

NAME = "benchmark"
CALLERS, CANDIDATES = (1, 4, 16), (100, 500)
JOINED = (1, 2, 4, 8)
WARM = 50  # calls before the clock starts


def random_request(contract: dict[str, Any], candidates: int, seed: int) -> Any:
    """A request with a value for every feature."""
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


class Echo(ranking_pb2_grpc.RankingServiceServicer):
    """Answers at once with as many items and tasks as were asked about."""

    def __init__(self, tasks: list[str]) -> None:
        self._tasks = tasks

    def Rank(self, request: Any, context: Any) -> Any:
        """Answer without a model."""
        ids = request.candidates.item_id
        count = len(getattr(ids, ids.WhichOneof("values")).values)
        scores = [0.5] * count
        response = ranking_pb2.RankResponse(item_index=range(count), item_id=ids, score=scores)
        for task in self._tasks:
            response.task_scores[task].values.extend(scores)
        return response


def tutorial(base: Path) -> Any:
    """A servicer that calls the signature per request, as tutorials show."""
    import numpy as np
    import tensorflow as tf

    from configs.contract import FrozenContract
    from serving.request import RequestReader

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


def serve(kind: str, base: Path) -> None:
    """Run one server until its standard input closes."""
    if kind == "ours":
        from serving.options import ServerOptions
        from serving.server import Server

        with Server(ServerOptions(NAME, base, port=0)) as ours:
            print(ours.port, flush=True)
            sys.stdin.read()
        return
    contract = json.loads((next(iter(scan(base).values())) / CONTRACT).read_text())["contract"]
    service = Echo(list(contract["tasks"])) if kind == "echo" else tutorial(base)
    server = grpc.server(futures.ThreadPoolExecutor(64))
    ranking_pb2_grpc.add_RankingServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(0).wait()


def model_alone(base: Path, seconds: float) -> None:
    """Print CPU seconds per call of the callable, by candidates, at its best number of calls."""
    from serving.batching import join
    from serving.layout import rank_layout
    from serving.request import RequestReader
    from serving.servable import Servable

    version, folder = next(iter(scan(base).items()))
    servable = Servable.load(version, folder)
    signature, layout = servable.signatures["rank"], rank_layout(servable.contract)
    reader = RequestReader(servable.contract, 10_000)
    contract = json.loads((folder / CONTRACT).read_text())["contract"]
    best = {}
    for candidates in CANDIDATES:
        costs = []
        for count in JOINED:
            requests = [random_request(contract, candidates, seed) for seed in range(count)]
            inputs = join([reader.read(request).inputs for request in requests], layout)
            for _ in range(WARM):
                signature(inputs)
            runs, cpu, until = 0, time.process_time(), time.monotonic() + seconds / len(JOINED)
            while time.monotonic() < until:
                signature(inputs)
                runs += 1
            costs.append((time.process_time() - cpu) / runs / count)
        best[candidates] = min(costs)
    servable.retire()
    print(json.dumps(best))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def closed_loop(
    target: str, pid: int, requests: list[Any], callers: int, seconds: float
) -> dict[str, float]:
    """Call as fast as answers come, from so many threads."""
    with grpc.insecure_channel(target) as channel:
        rank = ranking_pb2_grpc.RankingServiceStub(channel).Rank
        for place in range(WARM):
            rank(requests[place % len(requests)], timeout=60)
        end = time.monotonic() + seconds

        def call(start: int) -> list[float]:
            latencies, place = [], start
            while time.monotonic() < end:
                began = time.perf_counter()
                rank(requests[place % len(requests)], timeout=60)
                latencies.append(time.perf_counter() - began)
                place += callers
            return latencies

        cpu, began = cpu_seconds(pid), time.monotonic()
        with futures.ThreadPoolExecutor(callers) as pool:
            latencies = sorted(x for part in pool.map(call, range(callers)) for x in part)
        elapsed, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
    centiles = statistics.quantiles(latencies, n=100)
    return {
        "calls": len(latencies) / elapsed,
        "p50": centiles[49],
        "p99": centiles[98],
        "cpu": cpu / len(latencies),
    }


def start(kind: str, base: Path, seconds: float) -> subprocess.Popen[str]:
    """Start this script in a process of its own, as one of the servers or as the bare model."""
    command = [sys.executable, __file__, "--run", kind, "--seconds", str(seconds)]
    return subprocess.Popen(
        [*command, "--model_base_path", str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compare(base: Path, seconds: float) -> dict[str, float]:
    """Measure everything, print the table, return the ratios."""
    contract = json.loads((next(iter(scan(base).values())) / CONTRACT).read_text())["contract"]
    alone = start("model", base, seconds)
    model_cpu = {int(size): cost for size, cost in json.loads(alone.communicate()[0]).items()}
    cores = os.cpu_count() or 1
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    kinds = ("echo", "tutorial", "ours")
    servers = {kind: start(kind, base, seconds) for kind in kinds}
    try:
        ports = {kind: int(server.stdout.readline()) for kind, server in servers.items()}
        print("server    cands callers   calls/s  p50 ms  p99 ms  cpu ms   limit/s")
        for candidates in CANDIDATES:
            requests = [random_request(contract, candidates, seed) for seed in range(32)]
            for callers in CALLERS:
                for kind in kinds:
                    target, pid = f"127.0.0.1:{ports[kind]}", servers[kind].pid
                    one = closed_loop(target, pid, requests, callers, seconds)
                    found[kind, candidates, callers] = one
                    echo = found["echo", candidates, callers]["cpu"]
                    one["limit"] = cores / (echo + model_cpu[candidates])
                    print(
                        f"{kind:9} {candidates:5} {callers:7} {one['calls']:9.0f} "
                        f"{one['p50'] * 1e3:7.2f} {one['p99'] * 1e3:7.2f} "
                        f"{one['cpu'] * 1e3:7.2f} {one['limit']:9.0f}",
                        flush=True,
                    )
    finally:
        for server in servers.values():
            server.communicate()
    ours, other = found["ours", 100, 16], found["tutorial", 100, 16]
    return {
        "over_tutorial": round(ours["calls"] / other["calls"], 2),
        "of_limit": round(ours["calls"] / ours["limit"], 2),
        "p99_over_p50": round(ours["p99"] / ours["p50"], 2),
        "calls_per_second": round(ours["calls"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--run", choices=["ours", "tutorial", "echo", "model"], help="internal")
    options = parser.parse_args()
    if options.run == "model":
        model_alone(options.model_base_path, options.seconds)
    elif options.run:
        serve(options.run, options.model_base_path)
    else:
        print(json.dumps(compare(options.model_base_path, options.seconds)))


if __name__ == "__main__":
    main()
