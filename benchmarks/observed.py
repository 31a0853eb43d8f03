"""What all that observes a server costs its gRPC calls.

    python benchmarks/observed.py --model_base_path models/deskdrop [--rounds 200] [--seconds 0.4]
        [--servers bare plain all | metrics traces ...] [--starts 6]

Starts one `multigate serve` of each kind, all at once, and calls them in turn, in another order
each round: 16 callers of 100 candidates in a closed loop (`benchmarks/load.py`).  Turns are short
and many, so that what else the machine does meets all kinds alike.  With `--starts` all of this is
done so many times with new processes: where its memory lies makes a process faster or slower than
its equal for as long as it lives, and no number of rounds tells that from its kind.  Kinds:

    bare         nothing observes it: the watch of drift, which is on by default, is off too
    plain        as it starts by default: 5 % of the calls are watched for drift
    again        plain once more, in a process of its own: what equal processes differ by
    rest         plain, with the REST port open
    metrics      plain, with a metrics port that is scraped every second
    traces       plain, with 1 % of the calls traced and sent over OTLP to another process
    impressions  plain, with 1 % of the calls in the impression log
    lines        plain, with a JSON line of the log for 1 % of the calls
    config       plain, with its models from a file that is looked at every second
    watch        plain, with 1 % of the calls watched for drift
    others       all of these together, but the watch as by default
    all          all of these together: everything on, at a sampling rate of 1 %

Prints each round as it ends, so that a run which is cut off has told what it knew.  At the end,
each kind's calls a second and CPU time a call (of all its processes), median and middle half
of the rounds, and its ratio to `bare` and to `plain` in the same round: geometric mean with a 95 %
interval (t), over the rounds of a single start or over the means of several.  The last line is
JSON.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import grpc
from benchmarks.load import OPTIONS, closed_loop, read_requests, write_requests
from benchmarks.serve import cpu_seconds
from benchmarks.servers import NAME, RANK, free_ports, rank_requests

PIECES = ("rest", "metrics", "traces", "impressions", "lines", "config", "watch")
BASES = ("bare", "plain")
KINDS = ("bare", "plain", "again", *PIECES, "others", "all")
CALLERS, CANDIDATES = 16, 100
SHARE = "0.01"
PAGE = "/monitoring/prometheus/metrics"


def flags(kind: str, base: Path, folder: Path, collector: str) -> list[str]:
    """The flags of one kind of server.

    Args:
        kind: one of `KINDS`.
        base: the model's versions.
        folder: for the files of this server.
        collector: address of the receiver of spans.
    """
    (metrics_port,) = free_ports(1)
    config = folder / "models.txt"
    config.write_text(f'model_config_list {{ config {{ name: "{NAME}" base_path: "{base}" }} }}')
    one_model = ["--model_name", NAME, "--model_base_path", str(base)]
    of_piece = {
        "bare": ["--watch_rate", "0"],
        "plain": [],
        "again": [],
        "rest": ["--rest_api_port", "0"],
        "metrics": ["--metrics_port", str(metrics_port)],
        "traces": ["--otlp_endpoint", collector, "--otlp_sampling_rate", SHARE],
        "impressions": ["--impression_log", str(folder), "--impression_log_rate", SHARE],
        "lines": ["--log_calls", SHARE, "--log_format", "json"],
        "config": [
            *("--model_config_file", str(config)),
            *("--model_config_file_poll_wait_seconds", "1"),
        ],
        "watch": ["--watch_rate", SHARE],
    }
    together = {"all": PIECES, "others": [piece for piece in PIECES if piece != "watch"]}
    pieces = together.get(kind, (kind,))
    found = [flag for piece in pieces for flag in of_piece[piece]]
    return found if "config" in pieces else [*one_model, *found]


@contextlib.contextmanager
def served(
    arguments: Sequence[str], folder: Path, checkout: Path | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """A `multigate serve` of these flags: its process, and how `benchmarks.serve` calls it."""
    path = {} if checkout is None else {"PYTHONPATH": str(checkout / "src")}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "multigate", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | path,
        )
    try:
        assert server.stdout is not None
        ports = re.findall(r":(\d+)\b", server.stdout.readline())
        if not ports:
            raise SystemExit(f"the server ended at its start: {(folder / 'log').read_text()}")
        yield server.pid, {"port": int(ports[0]), "method": RANK}
    finally:
        server.terminate()
        server.wait(60)


def receive() -> None:
    """Take spans until standard input closes; prints the port, and last how many came."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        spans = 0

        def Export(self, request: Any, context: Any) -> Any:
            for resource in request.resource_spans:
                self.spans += sum(len(scope.spans) for scope in resource.scope_spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    server, collector = grpc.server(futures.ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    print(collector.spans)


@contextlib.contextmanager
def receiving(counts: dict[str, int]) -> Iterator[str]:
    """A receiver in another process: its address; afterwards `counts` has its spans."""
    receiver = subprocess.Popen(
        [sys.executable, __file__, "--receive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    try:
        yield f"http://127.0.0.1:{receiver.stdout.readline().strip()}"
    finally:
        counts["spans"] = counts.get("spans", 0) + int(receiver.communicate()[0] or 0)


@contextlib.contextmanager
def scraping(port: int, counts: dict[str, int]) -> Iterator[None]:
    """Read a page of metrics every second, as a Prometheus would."""
    ending = threading.Event()

    def scrape() -> None:
        while not ending.wait(1):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{PAGE}") as page:
                counts["bytes"] = len(page.read())
            counts["scrapes"] = counts.get("scrapes", 0) + 1

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def ratio(values: Sequence[float], others: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of values / others, round by round, with its 95 % interval."""
    from scipy.stats import t

    logs = [math.log(one / other) for one, other in zip(values, others, strict=True)]
    mean, count = statistics.fmean(logs), len(logs)
    wide = t.ppf(0.975, count - 1) * statistics.stdev(logs) / math.sqrt(count)
    return math.exp(mean), math.exp(mean - wide), math.exp(mean + wide)


def callers_of(
    servers: dict[str, tuple[int, dict[str, Any]]], stack: contextlib.ExitStack
) -> tuple[dict[str, list[Any]], list[bytes]]:
    """For each server its method on connections of this process, and what it is called with."""
    methods: dict[str, list[Any]] = {}
    for name, (_, how) in servers.items():
        target = f"127.0.0.1:{how['port']}"
        channels = [grpc.insecure_channel(target, OPTIONS) for _ in range(CALLERS)]
        methods[name] = [
            stack.enter_context(channel).unary_unary(how["method"]) for channel in channels
        ]
    return methods, read_requests(Path(next(iter(servers.values()))[1]["requests"]))


def in_turns(
    servers: dict[str, tuple[int, dict[str, Any]]], rounds: int, seconds: float
) -> dict[str, list[dict[str, Any]]]:
    """Call all servers in each round, in another order each time; figures by server."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
    order, rng = list(servers), random.Random(0)
    with contextlib.ExitStack() as stack:
        methods, requests = callers_of(servers, stack)
        for turn in range(-2, rounds):  # all ways have been gone before it counts
            rng.shuffle(order)
            for name in order:
                pid = servers[name][0]
                before, began = cpu_seconds(pid), time.perf_counter()
                latencies, statuses = closed_loop(methods[name], requests, CALLERS, seconds)
                elapsed, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
                if turn >= 0:
                    one = {"calls": len(latencies) / elapsed, "cpu": cpu / len(latencies)}
                    found[name].append(one | {"statuses": dict(statuses)})
            if turn >= 0:
                said = [
                    f"{name} {one[-1]['calls']:.0f}/s {1e3 * one[-1]['cpu']:.3f} ms"
                    for name, one in found.items()
                ]
                print(f"round {turn + 1} of {rounds}: {', '.join(said)}", flush=True)
    return found


def middle_half(values: Sequence[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def one_start(
    base: Path, kinds: Sequence[str], rounds: int, seconds: float, counts: dict[str, int]
) -> dict[str, list[dict[str, Any]]]:
    """Start a server of each kind and call them; figures by kind.

    Args:
        base: the model's versions.
        kinds: of `KINDS`.
        rounds: turns of each.
        seconds: of a turn.
        counts: gets what the receiver and the scraper saw.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_requests(folder / "requests", rank_requests(base, CANDIDATES))
        collector = stack.enter_context(receiving(counts))
        servers = {}
        for kind in random.sample(kinds, len(kinds)):
            own = folder / kind
            own.mkdir()
            given = flags(kind, base, own, collector)
            pid, how = stack.enter_context(served(given, own))
            servers[kind] = (pid, how | {"requests": str(folder / "requests")})
            if "--metrics_port" in given:
                port = int(given[given.index("--metrics_port") + 1])
                stack.enter_context(scraping(port, counts))
        return in_turns(servers, rounds, seconds)


def compare(
    base: Path, kinds: Sequence[str], rounds: int, seconds: float, starts: int
) -> dict[str, Any]:
    """Measure the kinds, print the table, return the ratios to `BASES`."""
    counts: dict[str, int] = {}
    started = []
    for number in range(starts):
        print(f"start {number + 1} of {starts}", flush=True)
        started.append(one_start(base, kinds, rounds, seconds, counts))
    result: dict[str, Any] = {
        "starts": starts,
        "rounds": rounds,
        "seconds": seconds,
        "seen": counts,
    }
    for kind in kinds:
        found = [one for start in started for one in start[kind]]
        bad = [one["statuses"] for one in found if one["statuses"].keys() != {"OK"}]
        if bad:
            raise SystemExit(f"{kind}: expected answers alone, received {bad[0]}")
        calls = [one["calls"] for one in found]
        cpu = [1e3 * one["cpu"] for one in found]
        line = f"{kind:12} calls/s {middle_half(calls)}, CPU ms {middle_half(cpu)}"
        result[kind] = {"calls": statistics.median(calls), "cpu_ms": statistics.median(cpu)}
        for base_kind in BASES:
            if kind in (base_kind, "bare") or base_kind not in kinds:
                continue
            for name in ("calls", "cpu"):
                pairs = [
                    [[one[name] for one in start[which]] for which in (kind, base_kind)]
                    for start in started
                ]
                what = f"{name}_over_{base_kind}"
                if starts > 1:
                    means = [[statistics.geometric_mean(one) for one in pair] for pair in pairs]
                    one = ratio(*zip(*means, strict=True))
                    each = [round(ours / theirs, 3) for ours, theirs in means]
                    result[kind][f"{what}_by_start"] = each
                else:
                    one = ratio(*pairs[0])
                result[kind][what] = [round(value, 4) for value in one]
                line += f", {name} over {base_kind} {one[0]:.3f} ({one[1]:.3f} to {one[2]:.3f})"
        print(line, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, help="exported versions")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each measurement")
    parser.add_argument("--starts", type=int, default=1, help="of all servers anew")
    parser.add_argument("--servers", nargs="+", choices=KINDS, default=["bare", "plain", "all"])
    parser.add_argument("--receive", action="store_true", help="only receive spans")
    options = parser.parse_args()
    if options.receive:
        receive()
        return
    if options.model_base_path is None:
        parser.error("--model_base_path: required")
    base = options.model_base_path.resolve()
    found = compare(base, options.servers, options.rounds, options.seconds, options.starts)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
