"""Latency while versions are swapped, beside latency without.

    python benchmarks/swaps.py --model_base_path models/deskdrop [--swaps 100] [--runtime c python]

The server gets constant load (an open loop) without a swap, and with one version after the other
published by rename, each as soon as the one before serves; rounds of both alternate, so that both
meet what else the machine does.  It ends when so many versions have been swapped, and after
--seconds at the latest (`swaps` says how many there were).  No call may fail.  Prints one JSON line
last, by runtime (`multigate serve --runtime`): also the seconds until the server is ready, its
resident memory after the first 1,000 calls, at the end and at its peak, and its CPU seconds per
swap.  Exit status 1 where a call failed.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.load import OPTIONS, open_loop
from benchmarks.serve import cpu_seconds
from benchmarks.servers import NAME, RANK, rank_requests

from multigate.serving.client.rank_client import RankClient
from multigate.serving.versions.folders import scan

ROUNDS = 5
CALLS = 1000
"""Before memory is measured for the first time."""
QUIET = 0.25
"""Time of a round without swaps, as a share of the time that its swaps may take."""


def publish(source: Path, base: Path, version: int) -> None:
    """A copy of the version under another number, whole or not at all."""
    partial = base / f".{version}.partial"
    shutil.copytree(source, partial)
    partial.rename(base / str(version))


def swap(
    source: Path, base: Path, target: str, versions: range, pause: float, until: float
) -> Iterator[tuple[int, float]]:
    """Publish one version after the other, each once the one before serves.

    Yields:
        Each version that serves, and how many seconds it took.
    """
    with RankClient(target, timeout=60) as client:
        for version in versions:
            began = time.monotonic()
            if began >= until:
                return
            publish(source, base, version)
            while client.contract(NAME).model_version != version:
                time.sleep(0.02)
            yield version, time.monotonic() - began
            shutil.rmtree(base / str(version - 1), ignore_errors=True)
            time.sleep(pause)


@contextlib.contextmanager
def server_of(base: Path, runtime: str) -> Iterator[tuple[str, int, float]]:
    """A server in a process of its own; its address, process id and seconds until it was ready."""
    flags = ("--port", "0", "--file_system_poll_wait_seconds", "0.1", "--model_name", NAME)
    flags += ("--runtime", runtime)
    began = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "multigate", "serve", *flags, "--model_base_path", str(base)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")},
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise SystemExit("the server ended at its start")
        yield line.split()[-1], server.pid, time.monotonic() - began
    finally:
        server.terminate()
        server.wait(60)


def loaded(
    target: str, requests: list[bytes], rate: float, seconds: float
) -> tuple[list[float], Counter[str]]:
    """Constant load for so many seconds."""
    channels = [grpc.insecure_channel(target, OPTIONS) for _ in range(4)]
    try:
        methods = [channel.unary_unary(RANK) for channel in channels]
        for method in methods:
            method(requests[0], timeout=60)
        return open_loop(methods, requests, rate, seconds)
    finally:
        for channel in channels:
            channel.close()


def mebibytes(pid: int, what: str) -> int:
    """Memory of a process: VmRSS now, VmHWM at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{what}:")]
    return int(line.split()[1]) >> 10


def measure(
    source: Path, swaps: int, rate: float, pause: float, seconds: float, runtime: str
) -> dict[str, Any]:
    """Both latencies, in rounds, with one runtime."""
    requests = rank_requests(source.parent, 100)
    latencies: dict[str, list[float]] = {"with": [], "without": []}
    cpu, spent = {"with": 0.0, "without": 0.0}, {"with": 0.0, "without": 0.0}
    statuses: Counter[str] = Counter()
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        publish(source, base, 1)
        with server_of(base, runtime) as (target, pid, ready):
            cpu_until_ready = cpu_seconds(pid)
            loaded(target, requests, rate, CALLS / rate)  # its first calls
            memory = {"after_first_calls": mebibytes(pid, "VmRSS")}

            def load(kind: str, seconds: float) -> None:
                before, began = cpu_seconds(pid), time.monotonic()
                some, codes = loaded(target, requests, rate, seconds)
                latencies[kind] += some
                statuses.update(codes)
                cpu[kind] += cpu_seconds(pid) - before
                spent[kind] += time.monotonic() - began

            per_round = seconds / ROUNDS / (1 + QUIET)
            for place in range(ROUNDS):
                first = len(took) + 2
                versions = range(first, first + -(-swaps * (place + 1) // ROUNDS) - len(took))
                began = time.monotonic()

                def follow(versions: range = versions, until: float = began + per_round) -> None:
                    for _, one in swap(source, base, target, versions, pause, until):
                        took.append(one)

                swapping = threading.Thread(target=follow)
                swapping.start()
                while swapping.is_alive():
                    load("with", 1.0)
                load("without", QUIET * (time.monotonic() - began))
                print(f"{runtime}, round {place + 1}: {len(took)} swaps so far", flush=True)
            memory |= {"at_end": mebibytes(pid, "VmRSS"), "peak": mebibytes(pid, "VmHWM")}
    centiles = {name: statistics.quantiles(found, n=1000) for name, found in latencies.items()}
    usual = cpu["without"] / spent["without"] * spent["with"]
    return {
        "p99_with_over_without": round(centiles["with"][989] / centiles["without"][989], 2),
        "seconds_until_ready": round(ready, 2),
        "cpu_seconds_until_ready": round(cpu_until_ready, 2),
        "resident_mib": memory,
        "swaps": len(took),
        "asked": swaps,
        "seconds_per_swap": round(statistics.median(took), 2),
        "cpu_seconds_per_swap": round((cpu["with"] - usual) / len(took), 2),
        "rate": rate,
        "calls": {name: len(found) for name, found in latencies.items()},
        "p50_ms": {name: round(found[499] * 1e3, 2) for name, found in centiles.items()},
        "p99_ms": {name: round(found[989] * 1e3, 2) for name, found in centiles.items()},
        "p999_ms": {name: round(found[998] * 1e3, 2) for name, found in centiles.items()},
        "statuses": dict(statuses),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=100, help="calls a second")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between swaps")
    parser.add_argument(
        "--seconds", type=float, default=200, help="most seconds of a runtime's rounds"
    )
    parser.add_argument("--runtime", nargs="+", default=["c", "python"], help="in turn")
    options = parser.parse_args()
    source = next(iter(scan(options.model_base_path).values()))
    given = (options.swaps, options.rate, options.pause, options.seconds)
    found = {runtime: measure(source, *given, runtime) for runtime in options.runtime}
    print(json.dumps(found))
    sys.exit(0 if all(set(one["statuses"]) == {"OK"} for one in found.values()) else 1)


if __name__ == "__main__":
    main()
