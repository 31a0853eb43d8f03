"""Callers of a gRPC server, in a process of their own; `benchmarks/serve.py` runs it.

    python benchmarks/load.py < plan.json

The plan on standard input is one JSON object: `target`, `method` (a path such as
/package.Service/Method), `requests` (a file of length-prefixed messages), `callers`, `seconds`, and
`rate` (calls a second; 0: a closed loop), and `core`, if the callers have one of their own.
Messages go out and come in as bytes, so that callers
cost little of the cores that they share with the server.

A closed loop calls again as soon as an answer is there: as many calls are on their way as there are
callers.  An open loop calls at random moments (a Poisson process) whether answers come or not, and
counts time from the moment at which the call was due.  Prints one JSON object.
"""

import json
import os
import random
import resource
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

WARM = 50  # calls before the clock starts
MOST_CONNECTIONS = 16
DEADLINE = 60.0  # seconds
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


def write_requests(path: Path, messages: list[bytes]) -> None:
    """Write messages, each after its length."""
    path.write_bytes(b"".join(struct.pack("<I", len(one)) + one for one in messages))


def read_requests(path: Path) -> list[bytes]:
    """Read what `write_requests` wrote."""
    data, messages = memoryview(path.read_bytes()), []
    while data:
        (size,) = struct.unpack("<I", data[:4])
        messages.append(bytes(data[4 : 4 + size]))
        data = data[4 + size :]
    return messages


def closed_loop(
    methods: list[Any], requests: list[bytes], callers: int, seconds: float
) -> tuple[list[float], Counter[str]]:
    """Latencies of answered calls, and how often each status came."""
    end = time.monotonic() + seconds

    def call(place: int) -> tuple[list[float], Counter[str]]:
        method, latencies, statuses = methods[place % len(methods)], [], Counter[str]()
        while time.monotonic() < end:
            began = time.perf_counter()
            try:
                method(requests[place % len(requests)], timeout=DEADLINE)
            except grpc.RpcError as error:
                statuses[error.code().name] += 1
            else:
                latencies.append(time.perf_counter() - began)
                statuses["OK"] += 1
            place += callers
        return latencies, statuses

    with futures.ThreadPoolExecutor(callers) as pool:
        parts = list(pool.map(call, range(callers)))
    return [x for part, _ in parts for x in part], sum((one for _, one in parts), Counter())


def open_loop(
    methods: list[Any], requests: list[bytes], rate: float, seconds: float, seed: int = 0
) -> tuple[list[float], Counter[str]]:
    """Latencies of answered calls from when they were due, and how often each status came."""
    rng = random.Random(seed)
    latencies: list[float] = []
    statuses: Counter[str] = Counter()
    idle = threading.Condition()
    waiting, place, due = 0, 0, time.perf_counter()
    end = due + seconds

    def done(answer: Any, due: float) -> None:
        nonlocal waiting
        now, code = time.perf_counter(), answer.code().name
        with idle:
            statuses[code] += 1
            if code == "OK":
                latencies.append(now - due)
            waiting -= 1
            idle.notify()

    while (due := due + rng.expovariate(rate)) < end:
        time.sleep(max(due - time.perf_counter(), 0))
        with idle:
            waiting += 1
        method, request = methods[place % len(methods)], requests[place % len(requests)]
        answer = method.future(request, timeout=DEADLINE)
        answer.add_done_callback(lambda answer, due=due: done(answer, due))
        place += 1
    with idle:
        idle.wait_for(lambda: waiting == 0)
    return latencies, statuses


def measure(plan: dict[str, Any]) -> dict[str, Any]:
    """Run a plan."""
    if plan.get("core") is not None:
        os.sched_setaffinity(0, {plan["core"]})  # before gRPC's threads are there
    count = min(plan["callers"], MOST_CONNECTIONS)
    channels = [grpc.insecure_channel(plan["target"], OPTIONS) for _ in range(count)]
    methods = [channel.unary_unary(plan["method"]) for channel in channels]
    requests = read_requests(Path(plan["requests"]))
    for place in range(WARM + count):
        methods[place % count](requests[place % len(requests)], timeout=DEADLINE)
    print("warm", flush=True)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    if plan["rate"]:
        latencies, statuses = open_loop(methods, requests, plan["rate"], plan["seconds"])
    else:
        latencies, statuses = closed_loop(methods, requests, plan["callers"], plan["seconds"])
    elapsed, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    for channel in channels:
        channel.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    centiles = statistics.quantiles(latencies or [0.0, 0.0], n=1000, method="inclusive")
    return {
        "calls": len(latencies) / elapsed,
        "answered": len(latencies),
        "statuses": dict(statuses),
        "p50": centiles[499],
        "p95": centiles[949],
        "p99": centiles[989],
        "p999": centiles[998],
        "caller_cpu": cpu / max(sum(statuses.values()), 1),
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.load(sys.stdin))))
