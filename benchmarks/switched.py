"""What observing costs on the way of a call, switched on and off in one server.

    python benchmarks/switched.py --model_base_path models/deskdrop [--rounds 120] [--calls 60]

Equal processes differ by some percent for as long as they live, so that `benchmarks/observed.py`
needs many starts to tell what observing costs.  Here one server of this process has it all, and one
caller of another process calls it, a few calls of each kind in turns, in another order each round:

    plain        no traces, impressions or lines
    traces       1 % of the calls are traced, for a collector that is gone
    impressions  1 % of the calls are in the impression log
    lines        1 % of the calls have a line in the log
    all          all of these

Says nothing of what observing does beside the calls, such as threads that write and the memory that
they need.  Prints each kind's CPU time a call, of the loop's thread and of the process, medians of
the rounds, and by how much the loop's is above plain's: mean with a 95 % interval (t).  Also the
CPU of the pieces that every call or every traced call needs.  The last line is JSON.
"""

import argparse
import json
import logging
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import grpc
from benchmarks.load import DEADLINE, OPTIONS, read_requests, write_requests
from benchmarks.servers import NAME, RANK, rank_requests

KINDS = {"plain": (), "traces": ("traces",), "impressions": ("impressions",), "lines": ("lines",),
         "all": ("traces", "impressions", "lines")}  # fmt: skip
CANDIDATES, SHARE = 100, 0.01


def call(port: str, path: str) -> None:
    """Make as many calls as each line of standard input says; answer with a line."""
    requests = read_requests(Path(path))
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        method = channel.unary_unary(RANK)
        for line in sys.stdin:
            for number in range(int(line)):
                method(requests[number % len(requests)], timeout=DEADLINE)
            print("done", flush=True)


def pieces() -> dict[str, float]:
    """Microseconds of CPU, the least of seven times."""
    from multigate.serving.core.metrics import ServerMetrics
    from multigate.serving.core.tracing import Trace, TracedCall, Tracing
    from multigate.serving.observe.spans import SpanExport

    metrics, tracing = ServerMetrics(), Tracing(SHARE, lambda call: None)
    spans = SpanExport("http://127.0.0.1:1", metrics)
    trace = Trace({})
    for name in ("read", "store", "queue", "run"):
        trace.add(name, trace.started, trace.started + 1e-3, rows=100)
    fields = {"request_id": "0" * 32, "model": NAME, "version": 1, "signature": "rank"}
    traced = TracedCall(trace, RANK[1:], "GRPC", "OK", "", fields, trace.started + 2e-3)
    metadata = (("user-agent", "grpc-python"), ("grpc-accept-encoding", "gzip"))
    ended = ("Rank", "OK", 1.3e-3, "GRPC", NAME, "1", "rank", 7e-4)

    def least(work: Callable[[], Any], count: int) -> float:
        times = timeit.repeat(work, number=count, repeat=7, timer=time.thread_time)
        return round(1e6 * min(times) / count, 2)

    found = {
        "metrics of a call": least(lambda: metrics.answered(*ended), 20_000),
        "whether it is traced": least(lambda: tracing.begin(metadata), 20_000),
        "spans of a traced call": least(lambda: spans.add(traced), 200),  # as many as may wait
    }
    spans.close()
    return found


def switched(base: Path, rounds: int, calls: int) -> dict[str, Any]:
    """Measure, print the table, return its figures."""
    from scipy.stats import t

    from multigate.serving.core.logs import JsonLines
    from multigate.serving.core.loop import CALLS
    from multigate.serving.core.options import ServerOptions
    from multigate.serving.rpc.server import Server

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        handler = logging.FileHandler(folder / "log")
        handler.setFormatter(JsonLines())
        logger = logging.getLogger("multigate")
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        write_requests(folder / "requests", rank_requests(base, CANDIDATES))
        options = ServerOptions(
            model_name=NAME,
            model_base_path=base,
            port=0,
            impression_log=folder / "shown",
            impression_log_rate=SHARE,
            otlp_endpoint="http://127.0.0.1:1",
            otlp_sampling_rate=SHARE,
        )
        with Server(options) as server:
            command = [sys.executable, __file__, "--call", str(server.port), folder / "requests"]
            caller = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            clock = time.pthread_getcpuclockid(CALLS._thread.ident)
            tracing, impressions = server.gate.tracing, server._impressions

            def turn(kind: str) -> tuple[float, float]:
                on = KINDS[kind]
                server.gate.tracing = tracing if "traces" in on else None
                server.gate.log_calls = SHARE if "lines" in on else 0.0
                impressions._rate = SHARE if "impressions" in on else 0.0
                loop, process = time.clock_gettime(clock), time.process_time()
                print(calls, file=caller.stdin, flush=True)
                caller.stdout.readline()
                took = time.clock_gettime(clock) - loop, time.process_time() - process
                return 1e6 * took[0] / calls, 1e6 * took[1] / calls

            found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            order, rng = list(KINDS), random.Random(0)
            for number in range(-2, rounds):  # all ways have been gone before it counts
                rng.shuffle(order)
                took = {kind: turn(kind) for kind in order}
                for kind in KINDS if number >= 0 else ():
                    found[kind].append(took[kind])
            caller.communicate()
    result: dict[str, Any] = {"rounds": rounds, "calls": calls}
    for kind, times in found.items():
        loop, process = (statistics.median(one) for one in zip(*times, strict=True))
        more = [ours - plain for (ours, _), (plain, _) in zip(times, found["plain"], strict=True)]
        wide = t.ppf(0.975, rounds - 1) * statistics.stdev(more) / rounds**0.5
        result[kind] = {"loop_us": loop, "process_us": process}
        result[kind]["over_plain_us"] = [statistics.fmean(more), wide]
        print(
            f"{kind:12} loop {loop:.0f} us, process {process:.0f} us, "
            f"loop over plain {statistics.fmean(more):+.1f} +- {wide:.1f} us",
            flush=True,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, help="exported versions")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--calls", type=int, default=60, help="of each kind in a round")
    parser.add_argument("--call", nargs=2, metavar=("PORT", "FILE"), help="only call a server")
    options = parser.parse_args()
    if options.call:
        call(*options.call)
        return
    if options.model_base_path is None:
        parser.error("--model_base_path: required")
    if options.rounds < 2:
        parser.error(f"--rounds: expected at least 2, received {options.rounds}")
    from multigate.runtime.start import start_runtime

    start_runtime()
    least = pieces()
    for name, microseconds in least.items():
        print(f"{name}: {microseconds} us", flush=True)
    found = switched(options.model_base_path.resolve(), options.rounds, options.calls)
    print(json.dumps(found | {"pieces_us": least}), flush=True)


if __name__ == "__main__":
    main()
