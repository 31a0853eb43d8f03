"""Overload, malformed requests on every RPC, joined answers, misbehaving callers, and a Go client.

The small forms run by default; the long ones are marked slow.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    regression_pb2,
)

from multigate.serving.core.loop import CALLS
from multigate.serving.protos import ranking_pb2

ROOT = Path(__file__).parents[3]
CODE = grpc.StatusCode
MALFORMED = {
    *(CODE.OK, CODE.INVALID_ARGUMENT, CODE.NOT_FOUND, CODE.FAILED_PRECONDITION),
}


def rank_request(user, items):
    request = ranking_pb2.RankRequest(model={"name": "small"}, context={"hour": {"integer": 9}})
    request.user["user_id"].text = user
    request.candidates.item_id.texts.values.extend(items)
    lengths = [float(int(item[1:]) % 7) for item in items]
    request.candidates.columns["length"].numbers.values.extend(lengths)
    return request


# ------------------------------------------------------------------------------------- overload


def overload(run_server, publish, tmp_path, contract, helpers, until, hold, answered):
    """Ten times as many callers as there is room for, until so many calls are answered."""
    publish(tmp_path, 1)
    inputs = helpers.sample_inputs(contract, 2, users=1)
    inputs["hour"] = np.array([helpers.slow_from + 1000])
    request = helpers.predict_request(inputs, "rank")
    options = {"num_batch_threads": 1, "max_batch_rows": 2, "max_queued_calls": 4}
    with run_server(tmp_path, **options) as running:
        predict = running.prediction.Predict
        for _ in range(10):
            predict(request, timeout=120)
        memory = psutil.Process().memory_info().rss
        batcher = running.server.models.manager("small")._loaded[1].batchers["rank"]
        codes, waiting = Counter(), []

        def call(_):
            while codes[CODE.OK] < answered:
                waiting.append(len(batcher._queue))
                try:
                    predict(request, timeout=240)
                    codes[CODE.OK] += 1
                except grpc.RpcError as error:
                    codes[error.code()] += 1
                    time.sleep(0.02)

        with futures.ThreadPoolExecutor(50) as pool:
            with hold("rank") as held:
                callers = [pool.submit(call, place) for place in range(50)]
                # At once, not after a wait: one runs and four wait, and none of them is done.
                until(lambda: codes[CODE.UNAVAILABLE] >= 100, "a hundred refusals")
                assert codes.keys() == {CODE.UNAVAILABLE}
                assert (batcher._free, len(batcher._queue)) == (0, 4)
                held.let_go.set()
            for caller in callers:
                caller.result()
        recovered = [predict(request, timeout=120) for _ in range(3)]
        grown = psutil.Process().memory_info().rss - memory
    assert len(recovered) == 3
    assert codes.keys() == {CODE.OK, CODE.UNAVAILABLE}
    # The queue bounds how long an accepted call takes.
    assert max(waiting) == 4
    assert grown < 64 << 20


@pytest.mark.slow
def test_overload_is_refused_at_once_and_ends_with_its_cause(
    run_server, publish, tmp_path, contract, helpers, until, hold
):
    overload(run_server, publish, tmp_path, contract, helpers, until, hold, answered=100)


@pytest.mark.slow
def test_overload_for_longer(run_server, publish, tmp_path, contract, helpers, until, hold):
    overload(run_server, publish, tmp_path, contract, helpers, until, hold, answered=300)


# -------------------------------------------------------------------------- malformed requests


def messages(contract, helpers):
    """A good message for every RPC, by path; the reload's models do not exist."""
    spec = {"name": "small"}
    example = {"example_list": {"examples": [{"features": {"feature": {}}}]}}
    reload = model_management_pb2.ReloadConfigRequest()
    reload.config.model_config_list.config.add(
        name="small", base_path="/absent/models", model_platform="tensorflow"
    )
    tasks = [
        {"model_spec": spec | {"signature_name": name}, "method_name": f"tensorflow/serving/{name}"}
        for name in ("classify", "regress")
    ]
    inputs = helpers.sample_inputs(contract, 2)
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(
        model_spec=spec, metadata_field=["signature_def"]
    )
    prediction, models = "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"
    return {
        "/multigate.RankingService/Rank": rank_request("u1", ["i1", "i2", "i3"]),
        "/multigate.RankingService/GetContract": ranking_pb2.GetContractRequest(model=spec),
        f"/{prediction}/Predict": helpers.predict_request(inputs),
        f"/{prediction}/Classify": classification_pb2.ClassificationRequest(
            model_spec=spec | {"signature_name": "classify"}, input=example
        ),
        f"/{prediction}/Regress": regression_pb2.RegressionRequest(
            model_spec=spec | {"signature_name": "regress"}, input=example
        ),
        f"/{prediction}/MultiInference": inference_pb2.MultiInferenceRequest(
            tasks=tasks, input=example
        ),
        f"/{prediction}/GetModelMetadata": metadata,
        f"/{models}/GetModelStatus": get_model_status_pb2.GetModelStatusRequest(model_spec=spec),
        f"/{models}/HandleReloadConfigRequest": reload,
        "/grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest(service="liveness"),
    }


def mutated(raw, rng):
    """The bytes with some flipped, cut out, doubled, or swapped for noise."""
    found = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        start = rng.randrange(len(found) + 1)
        end = min(start + rng.randrange(1, 9), len(found))
        kind = rng.randrange(5)
        if kind == 0 and start < len(found):
            found[start] = rng.randrange(256)
        elif kind == 1:
            del found[start:end]
        elif kind == 2:
            found[start:start] = found[start:end]
        elif kind == 3:
            found[start:end] = rng.randbytes(end - start)
        else:
            del found[start:]
    return bytes(found)


def bombard(running, contract, helpers, count, seconds):
    """Malformed requests on every RPC, beside good callers who check every answer."""
    good = messages(contract, helpers)
    raw = {path: message.SerializeToString() for path, message in good.items()}
    done, seen, problems = threading.Event(), Counter(), []
    until = time.monotonic() + seconds
    shares = 4

    def attack(place):
        rng = random.Random(place)
        methods = {path: running.channel.unary_unary(path) for path in raw}
        for number in range(count // shares):
            if time.monotonic() > until:
                return
            path = list(raw)[(number + place) % len(raw)]
            request = mutated(raw[path], rng)
            try:
                methods[path](request, timeout=120, metadata=helpers.admin)
                code = CODE.OK
            except grpc.RpcError as error:
                code = error.code()
                if code not in MALFORMED:
                    problems.append((path, request.hex(), code.name, error.details()))
            seen[path, code.name] += 1

    def check(place):
        request = rank_request(f"u{place}", [f"i{place + n}" for n in range(5 + place)])
        expected = scores_of(running.ranking.Rank(request, timeout=120))
        while not done.is_set():
            answer = scores_of(running.ranking.Rank(request, timeout=120))
            if answer != pytest.approx(expected, rel=1e-4, abs=1e-5):
                problems.append((place, expected, answer))
            seen["good"] += 1

    with futures.ThreadPoolExecutor(shares + 3) as pool:
        checks = [pool.submit(check, place) for place in range(3)]
        try:
            for attacker in [pool.submit(attack, place) for place in range(shares)]:
                attacker.result()
        finally:
            done.set()
        for one in checks:
            one.result()
    assert not problems, problems[:3]
    paths = {path for path in raw if seen[path, "INVALID_ARGUMENT"] or seen[path, "NOT_FOUND"]}
    assert paths == set(raw)  # every RPC met what it must refuse
    for path, message in good.items():
        if "Reload" not in path:
            running.channel.unary_unary(path)(message.SerializeToString(), timeout=120)
    return sum(seen.values()) - seen["good"]


def scores_of(answer):
    return dict(zip(answer.item_id.texts.values, answer.score, strict=True))


@pytest.mark.slow
def test_malformed_requests_on_every_rpc(running, contract, helpers):
    assert bombard(running, contract, helpers, 2000, seconds=200) > 500


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_malformed_requests(running, contract, helpers, record_property):
    sent = bombard(running, contract, helpers, 100_000, seconds=240)
    record_property("malformed requests", sent)
    print(f"{sent} malformed requests")
    assert sent > 10_000


STREAMS = {
    "/grpc.health.v1.Health/Watch": health_pb2.HealthCheckRequest(service="liveness"),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
        reflection_pb2.ServerReflectionRequest(list_services="*")
    ),
}


@pytest.mark.parametrize("path", STREAMS)
def test_streams_refuse_bytes_that_are_no_message(running, path):
    stream = running.channel.stream_stream(path)
    good = STREAMS[path].SerializeToString()
    answers = stream(iter([good]), timeout=120)
    assert next(answers)
    answers.cancel()
    with pytest.raises(grpc.RpcError) as raised:
        list(stream(iter([b"\xff\xff\xff"]), timeout=120))
    assert raised.value.code() == CODE.INVALID_ARGUMENT


# ---------------------------------------------------------------------------- joined answers


def answers_of_crowds(running, until, hold, callers, calls):
    """Many callers at once; every row's score is the one that it has alone."""
    items, users = [f"i{n}" for n in range(40)], [f"u{n}" for n in range(4)]
    alone = {
        (user, item): running.ranking.Rank(rank_request(user, [item]), timeout=120).score[0]
        for user in users
        for item in items
    }
    assert len(set(alone.values())) > 100

    def call(place):
        rng = random.Random(place)
        for _ in range(calls):
            user, some = rng.choice(users), rng.sample(items, rng.randrange(1, 40))
            answer = running.ranking.Rank(rank_request(user, some), timeout=120)
            assert sorted(answer.item_id.texts.values) == sorted(some)
            for item, score in scores_of(answer).items():
                assert score == pytest.approx(alone[user, item], rel=1e-4, abs=1e-5)
        return calls

    batcher = running.server.models.manager("small")._loaded[1].batchers["rank"]
    with futures.ThreadPoolExecutor(callers) as pool:
        with hold("rank") as held:
            calling = [pool.submit(call, place) for place in range(callers)]
            until(lambda: len(batcher._queue) > 1, "calls to be joined")
            held.let_go.set()
        return sum(one.result() for one in calling)


def test_a_crowds_answers_are_each_rows_own(running, until, hold):
    assert answers_of_crowds(running, until, hold, callers=16, calls=10) == 160
    page = running.server.metrics.text()
    calls = re.findall(r'multigate_batch_calls_(sum|count)\{.*signature="rank"\} (\S+)', page)
    found = {name: float(number) for name, number in calls}
    assert found["sum"] > found["count"]  # some runs had more than one call


@pytest.mark.slow
def test_thousands_of_joined_answers_are_each_rows_own(running, until, hold):
    assert answers_of_crowds(running, until, hold, callers=64, calls=60) == 3840


@pytest.mark.long
def test_calls_outlast_a_pause_of_the_machine(running):
    """gRPC's own limit would end calls that stand in line for 30 s as CANCELLED."""

    async def pause():
        time.sleep(32)

    with futures.ThreadPoolExecutor(20) as pool:
        paused = CALLS.submit(pause())
        request = rank_request("u1", ["i1", "i2"])
        calls = [pool.submit(running.ranking.Rank, request, timeout=120) for _ in range(20)]
        paused.result()
        assert [len(call.result().score) for call in calls] == [2] * 20


# -------------------------------------------------------------------- processes and clients


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_half_a_minute_of_misbehaving_callers_leaks_nothing(tmp_path, publish):
    publish(tmp_path, 1)
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--minutes", "0.5"),
            *("--model_base_path", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] >= 1
    assert found["calls"]["checked OK"] > 100
    assert found["calls"]["cancelled CANCELLED"] > 10
    assert found["calls"]["half open"] > 10


@pytest.mark.long
def test_half_a_minute_of_swaps_with_a_hung_redis_and_a_full_disk(small_run, lacking):
    if os.geteuid() != 0 or shutil.which("redis-server") is None:
        lacking("needs redis-server, and the right to mount a small disk")
    run = small_run.root / "run"
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--minutes", "0.6"),
            *("--model_base_path", str(run / "models/demo"), "--examples", str(run / "examples")),
            *("--swap_every", "3", "--small_disk"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["swaps"] > 5
    assert found["redis_hangs"] >= 2
    assert found["calls"]["by id OK"] > 20
    assert found["calls"]["by id UNAVAILABLE"] > 0
    assert min(found["rows_dropped"], found["rows_written"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # grpcurl may have to be built
def test_a_go_client_ranks_through_reflection_alone(running, go_tool):
    grpcurl = go_tool("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.4")
    request = {
        "model": {"name": "small"},
        "user": {"user_id": {"text": "u1"}},
        "context": {"hour": {"integer": 9}},
        "candidates": {
            "item_id": {"texts": {"values": ["i1", "i2", "i3"]}},
            "columns": {"length": {"numbers": {"values": [1, 2, 3]}}},
        },
    }

    def call(*arguments):
        return subprocess.run(
            [grpcurl, "-plaintext", "-connect-timeout", "120", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )

    listed = call(running.target, "list")
    assert "multigate.RankingService" in listed.stdout.split()
    method = "multigate.RankingService/Rank"
    ranked = call("-d", json.dumps(request), running.target, method)
    assert ranked.returncode == 0, ranked.stderr
    answer = json.loads(ranked.stdout)
    ours = running.ranking.Rank(rank_request("u1", ["i1", "i2", "i3"]), timeout=120)
    assert answer["item_id"]["texts"]["values"] == list(ours.item_id.texts.values)
    assert answer["score"] == pytest.approx(list(ours.score), rel=1e-5, abs=5e-6)
    request["candidates"]["columns"]["length"]["numbers"]["values"] = [1, "NaN", 3]
    refused = call("-d", json.dumps(request), running.target, method)
    assert "Code: InvalidArgument" in refused.stderr
    assert "feature 'length': expected a finite number" in refused.stderr
