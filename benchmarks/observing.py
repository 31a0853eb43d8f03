"""What each piece of observing costs: CPU of the thread that does it.

    python benchmarks/observing.py --model_base_path models/deskdrop

The pieces are a line of the log, the spans of a traced call, rows of the impression log, a file of
them, and a page of metrics, for calls of 100 candidates.  Prints microseconds, warm (the least of
all times) and cold (the median, with 5 MB of other memory written before each time), of one traced
or logged call, or of one page.  The last line is JSON.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import grpc
from benchmarks.servers import NAME, RANK, load_model, rank_requests

CANDIDATES = 100
TOGETHER = 20
"""Calls whose rows or spans are made together, as at ten such calls a second."""
CALLS = 1000
"""Whose rows are a file."""
FIELDS = {"request_id": "0" * 32, "model": NAME, "version": 1, "candidates": CANDIDATES,
          "signature": "rank", "run_seconds": 7.12e-4}  # fmt: skip


def measured(
    work: Callable[[], Any], per: int = 1, times: int = 40, clock: Callable[[], float] | None = None
) -> dict[str, float]:
    """Microseconds of each of `per` parts of the work, warm and cold."""
    clock, other = clock or time.thread_time, np.zeros(5 << 20, np.uint8)

    def once(cold: bool) -> float:
        if cold:
            other[:] += 1
        began = clock()
        work()
        return 1e6 * (clock() - began) / per

    once(cold=False)
    warm = [once(cold=False) for _ in range(times)]
    cold = [once(cold=True) for _ in range(times)]
    return {"warm": round(min(warm), 1), "cold": round(statistics.median(cold), 1)}


def log_lines() -> dict[str, Any]:
    """A line about a call."""
    from multigate.serving.core import calls, logs

    logger = logging.getLogger("multigate")
    found = {}
    with Path("/dev/null").open("w") as stream:
        handler = logging.StreamHandler(stream)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        for how, lines in (("json", logs.JsonLines()), ("text", logs.TextLines(logs._TEXT))):
            handler.setFormatter(lines)
            found[f"a line of {how}"] = measured(
                lambda: calls._log("Rank", grpc.StatusCode.OK, 1.3e-3, "", FIELDS),
                times=500,
            )
        logger.handlers = []
    return found


def spans() -> dict[str, Any]:
    """Queueing a traced call of five spans, and sending those of two seconds."""
    from opentelemetry.proto.collector.trace.v1 import (
        trace_service_pb2,
        trace_service_pb2_grpc,
    )

    from multigate.serving.core.metrics import ServerMetrics
    from multigate.serving.core.tracing import Trace, TracedCall
    from multigate.serving.observe.spans import SpanExport

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        calls = 0

        def Export(self, request: Any, context: Any) -> Any:
            spans = sum(
                len(scope.spans) for one in request.resource_spans for scope in one.scope_spans
            )
            self.calls += spans // (len(trace.steps) + 1)
            return trace_service_pb2.ExportTraceServiceResponse()

    trace = Trace({})
    for name in ("read", "store", "queue", "run"):
        trace.add(name, trace.started, trace.started + 1e-3, rows=CANDIDATES)
    call = TracedCall(trace, RANK[1:], "GRPC", "OK", "", FIELDS, trace.started + 2e-3)
    server, collector = grpc.server(futures.ThreadPoolExecutor(1)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    export = SpanExport(endpoint, ServerMetrics())
    found = {"queueing a traced call": measured(lambda: export.add(call), times=500)}
    export.close()
    sending = SpanExport(endpoint, ServerMetrics())
    clock = time.pthread_getcpuclockid(sending._thread._thread.ident)

    def two_seconds() -> None:
        expected = collector.calls + TOGETHER
        for _ in range(TOGETHER):
            sending.add(call)
        while collector.calls < expected:
            time.sleep(0.1)

    found["sending a traced call"] = measured(
        two_seconds, TOGETHER, times=5, clock=lambda: time.clock_gettime(clock)
    )
    sending.close()
    server.stop(None)
    return found


def rows_and_files(base: Path) -> dict[str, Any]:
    """Rows of calls that are made together, and writing a file of them."""
    import pyarrow as pa

    from multigate.serving.core.layout import SCORE
    from multigate.serving.observe.impressions import Ranked, rows_of
    from multigate.serving.observe.row_files import RowFiles
    from multigate.serving.protos import ranking_pb2

    saved_model, _, reader = load_model(base)
    contract, rng = saved_model.contract, np.random.default_rng(0)

    def answers(candidates: int, of_them: int, count: int) -> list[Ranked]:
        """Answers of so many of their candidates, with random scores."""
        inputs = [
            reader.read(ranking_pb2.RankRequest.FromString(raw)).inputs
            for raw in rank_requests(base, candidates)
        ]
        found = []
        for number in range(count):
            scores = {task: rng.random(candidates, np.float32) for task in (*contract.tasks, SCORE)}
            order = np.argsort(-scores[SCORE])[:of_them]
            one = inputs[number % len(inputs)]
            found.append(
                Ranked(
                    *(NAME, 1, "schema", contract, f"{number:032}"),
                    *(one, scores, order, float(number)),
                )
            )
        return found

    calls = answers(CANDIDATES, CANDIDATES, CALLS)
    found = {"rows of a call": measured(lambda: rows_of(pa, calls[:TOGETHER]), TOGETHER)}
    best = answers(1000, 10, TOGETHER)
    found["rows of a call, the best 10 of 1,000"] = measured(lambda: rows_of(pa, best), TOGETHER)
    tables = [rows_of(pa, calls[at : at + TOGETHER]) for at in range(0, CALLS, TOGETHER)]
    with tempfile.TemporaryDirectory() as name:
        files = RowFiles(Path(name), "rows", 10**9, 1e9, lambda model, result, rows: None)

        def write() -> None:
            for table in tables:
                files.add(NAME, "schema", table)
            files.finish_old(all_of_them=True)

        found["a call in a file"] = measured(write, CALLS, times=6, clock=time.process_time)
        found["bytes of a file"] = next(Path(name).rglob("*.parquet")).stat().st_size
    saved_model.retire()
    return found


def page() -> dict[str, Any]:
    """A page of metrics, of about the size of a server with one model."""
    from multigate.serving.core.metrics import ServerMetrics

    metrics = ServerMetrics()
    for method in ("Rank", "GetModelStatus"):
        metrics.answered(method, "OK", 1e-3, "GRPC", NAME, "1", "rank", 1e-3)
    for task in "abcdef":
        metrics.scores.observe(0.5, NAME, task)
    found = {"a page": measured(metrics.text)}
    return found | {"bytes of a page": len(metrics.text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model_base_path", type=Path, required=True, help="exported versions")
    base = parser.parse_args().model_base_path.resolve()
    from multigate.runtime.start import start_runtime

    start_runtime()
    found: dict[str, Any] = {}
    for piece in (log_lines, spans, page, lambda: rows_and_files(base)):
        for name, figures in piece().items():
            print(f"{name}: {figures}", flush=True)
            found[name] = figures
    print(json.dumps(found))


if __name__ == "__main__":
    main()
