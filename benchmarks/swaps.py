"""Latency while versions are swapped, beside latency without.

    python benchmarks/swaps.py --model_base_path models/deskdrop [--swaps 100]
        [--before CHECKOUT BASE]

The server gets constant load (an open loop) without a swap, and with one version after the other
published by rename, each as soon as the one before serves.  --before adds the server of another
checkout of this repository, with the versions that its own export wrote; the servers take turns, a
round of both at a time, so that both meet what else the machine does.  It ends when so many
versions have been swapped, and after --seconds at the latest (`swaps` says how many there were).
No call may fail.  Prints one JSON line last, by server: also the seconds until it is ready, its
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
def server_of(root: Path, base: Path) -> Iterator[tuple[str, int, float]]:
    """A server in a process of its own; its address, process id and seconds until it was ready."""
    flags = ("--port", "0", "--file_system_poll_wait_seconds", "0.1", "--model_name", NAME)
    began = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "multigate", "serve", *flags, "--model_base_path", str(base)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
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


class Measured:
    """One server, and what was measured of it."""

    def __init__(self, name: str, root: Path, base: Path) -> None:
        """Say which.

        Args:
            name: for the report.
            root: the checkout whose server it is.
            base: exported versions, of which the newest is published again and again.
        """
        self.name = name
        self.source = next(iter(scan(base).values()))
        self.requests = rank_requests(base, 100)
        self.latencies: dict[str, list[float]] = {"with": [], "without": []}
        self.cpu = {"with": 0.0, "without": 0.0}
        self.spent = {"with": 0.0, "without": 0.0}
        self.statuses: Counter[str] = Counter()
        self.took: list[float] = []
        self._root = root

    def start(self, stack: contextlib.ExitStack, rate: float) -> None:
        """Start the server, and make its first calls."""
        self.base = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        publish(self.source, self.base, 1)
        server = server_of(self._root, self.base)
        self.target, self.pid, self.ready = stack.enter_context(server)
        self.cpu_until_ready = cpu_seconds(self.pid)
        loaded(self.target, self.requests, rate, CALLS / rate)
        self.memory = {"after_first_calls": mebibytes(self.pid, "VmRSS")}

    def load(self, kind: str, rate: float, seconds: float) -> None:
        """Call for so many seconds."""
        before, began = cpu_seconds(self.pid), time.monotonic()
        some, codes = loaded(self.target, self.requests, rate, seconds)
        self.latencies[kind] += some
        self.statuses.update(codes)
        self.cpu[kind] += cpu_seconds(self.pid) - before
        self.spent[kind] += time.monotonic() - began

    def round(self, swaps: int, rate: float, pause: float, seconds: float) -> None:
        """Call during so many swaps, and then without any."""
        first = len(self.took) + 2
        began = time.monotonic()

        def follow() -> None:
            versions = range(first, first + swaps)
            until = began + seconds
            for _, one in swap(self.source, self.base, self.target, versions, pause, until):
                self.took.append(one)

        swapping = threading.Thread(target=follow)
        swapping.start()
        while swapping.is_alive():
            self.load("with", rate, 1.0)
        self.load("without", rate, QUIET * (time.monotonic() - began))

    def end(self) -> None:
        """Measure its memory for the last time."""
        self.memory |= {
            "at_end": mebibytes(self.pid, "VmRSS"),
            "peak": mebibytes(self.pid, "VmHWM"),
        }

    def report(self) -> dict[str, Any]:
        """All figures."""
        took, cpu, spent = self.took, self.cpu, self.spent
        centiles = {n: statistics.quantiles(found, n=1000) for n, found in self.latencies.items()}
        usual = cpu["without"] / spent["without"] * spent["with"]
        return {
            "p99_with_over_without": round(centiles["with"][989] / centiles["without"][989], 2),
            "seconds_until_ready": round(self.ready, 2),
            "cpu_seconds_until_ready": round(self.cpu_until_ready, 2),
            "resident_mib": self.memory,
            "swaps": len(took),
            "seconds_per_swap": round(statistics.median(took), 2),
            "cpu_seconds_per_swap": round((cpu["with"] - usual) / len(took), 2),
            "calls": {name: len(found) for name, found in self.latencies.items()},
            "p50_ms": {name: round(found[499] * 1e3, 2) for name, found in centiles.items()},
            "p99_ms": {name: round(found[989] * 1e3, 2) for name, found in centiles.items()},
            "p999_ms": {name: round(found[998] * 1e3, 2) for name, found in centiles.items()},
            "statuses": dict(self.statuses),
        }


def measure(
    servers: list[Measured], swaps: int, rate: float, pause: float, seconds: float
) -> dict[str, Any]:
    """Reports by server, measured in rounds of each in turn."""
    per_round = seconds / ROUNDS / (1 + QUIET)
    with contextlib.ExitStack() as stack:
        for server in servers:
            server.start(stack, rate)
        for place in range(ROUNDS):
            for server in servers:
                left = -(-swaps * (place + 1) // ROUNDS) - len(server.took)
                server.round(left, rate, pause, per_round)
                print(f"{server.name}, round {place + 1}: {len(server.took)} swaps", flush=True)
        for server in servers:
            server.end()
    return {server.name: server.report() for server in servers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=100, help="calls a second")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between swaps")
    parser.add_argument(
        "--seconds", type=float, default=200, help="most seconds of a server's rounds"
    )
    parser.add_argument(
        "--before",
        type=Path,
        nargs=2,
        metavar=("CHECKOUT", "BASE"),
        help="another checkout, and versions that its own export wrote",
    )
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    servers = [Measured("now", root, options.model_base_path)]
    if options.before:
        servers.append(Measured("before", *options.before))
    found = measure(servers, options.swaps, options.rate, options.pause, options.seconds)
    found["rate"] = options.rate
    print(json.dumps(found))
    sys.exit(0 if all(set(server.statuses) == {"OK"} for server in servers) else 1)


if __name__ == "__main__":
    main()
