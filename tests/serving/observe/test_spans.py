"""Spans of live calls, as a collector receives them over OTLP."""

import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import (
    trace_service_pb2,
    trace_service_pb2_grpc,
)

from multigate.configs.errors import ServingError
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.tracing import Trace, TracedCall, Tracing
from multigate.serving.observe import spans as spans_module
from multigate.serving.observe.spans import SpanExport
from multigate.serving.protos import ranking_pb2
from multigate.serving.rpc.server import Server

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
SENT = "multigate_spans_total"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it receives."""

    def __init__(self):
        self.spans = []
        self.resources = []

    def Export(self, request, context):
        for one in request.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in one.resource.attributes})
            for scope in one.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace):
        return [span for span in self.spans if span.trace_id.hex() == trace]


@pytest.fixture(scope="module")
def collector():
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None)


@pytest.fixture(scope="module")
def traced(tmp_path_factory, publish, with_items, run_server, rest, collector):
    base = tmp_path_factory.mktemp("models")
    publish(base, 1, with_items)
    options = {"otlp_endpoint": collector.endpoint, "otlp_sampling_rate": 0.0}
    with run_server(base, rest_api_port=0, **options) as running:
        running.rest = rest(running.server.rest_port)
        yield running


def rank_request(request_id):
    return ranking_pb2.RankRequest(
        model=ranking_pb2.ModelSpec(name="small"),
        user={"user_id": ranking_pb2.Value(text="u7")},
        context={"hour": ranking_pb2.Value(integer=3)},
        candidates=ranking_pb2.Candidates(
            item_id=ranking_pb2.ItemIds(texts=ranking_pb2.Texts(values=["i1", "i2"]))
        ),
        request_id=request_id,
    )


def attributes_of(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def tree_of(spans):
    """The root of a trace, and the others by name; checks that they hang on it in its time."""
    (root,) = [span for span in spans if span.parent_span_id.hex() == PARENT]
    steps = {span.name: span for span in spans if span is not root}
    for step in steps.values():
        assert step.parent_span_id == root.span_id
        began, ended = step.start_time_unix_nano, step.end_time_unix_nano
        assert root.start_time_unix_nano - 10**6 <= began <= ended
        assert ended <= root.end_time_unix_nano + 10**6
    return root, steps


def test_a_call_over_grpc_goes_on_with_its_callers_trace(traced, collector, until):
    before = time.time_ns()
    traced.ranking.Rank(
        rank_request("over-grpc"), metadata=[("traceparent", SAMPLED), ("tracestate", "a=b")]
    )
    after = time.time_ns()
    until(lambda: len(collector.of(TRACE)) == 5, "five spans")
    root, steps = tree_of(collector.of(TRACE))
    assert root.name == "multigate.RankingService/Rank"
    assert root.trace_state == "a=b"
    assert before - 10**9 < root.start_time_unix_nano < root.end_time_unix_nano < after + 10**9
    assert steps.keys() == {"read", "store", "queue", "run"}
    attributes = attributes_of(root)
    assert attributes["rpc.system"] == "grpc"
    assert attributes["rpc.response.status_code"] == "OK"
    assert attributes["multigate.request_id"] == "over-grpc"
    assert (attributes["multigate.model"], attributes["multigate.version"]) == ("small", 1)
    assert attributes_of(steps["run"]) == {"rows": 2, "calls": 1}
    assert collector.resources[-1]["service.name"] == "multigate"


def test_a_call_over_http_has_its_reading_and_writing_too(traced, collector, until):
    trace = "1" * 32
    status, answer = traced.rest.post(
        "small:rank", {"user": {}}, {"traceparent": f"00-{trace}-{PARENT}-01"}
    )
    assert status == 400
    until(lambda: len(collector.of(trace)) == 3, "three spans")
    root, steps = tree_of(collector.of(trace))
    assert steps.keys() == {"parse", "read"}
    assert root.status.message == answer["error"]
    assert attributes_of(root)["rpc.response.status_code"] == "INVALID_ARGUMENT"


def test_calls_that_their_callers_do_not_sample_are_not_traced(traced, collector, until):
    last = "2" * 32
    for parent in (None, f"00-{'3' * 32}-{PARENT}-00", "00-nonsense-01", f"ff-{TRACE}-{PARENT}-01"):
        metadata = [] if parent is None else [("traceparent", parent)]
        traced.ranking.Rank(rank_request("unsampled"), metadata=metadata)
    traced.ranking.Rank(rank_request("last"), metadata=[("traceparent", f"00-{last}-{PARENT}-01")])

    def ids():
        return {attributes_of(span).get("multigate.request_id") for span in [*collector.spans]}

    until(lambda: "last" in ids(), "the last call's span")
    assert "unsampled" not in ids()


def counted(metrics, result):
    return metrics.registry.get_sample_value(SENT, {"result": result}) or 0


def test_all_that_waits_is_sent_at_the_stop_and_every_span_is_counted(collector, monkeypatch):
    monkeypatch.setattr(spans_module, "_LAST_SECONDS", 120.0)
    metrics = ServerMetrics()
    spans = SpanExport(collector.endpoint, metrics)
    trace = Trace({"traceparent": f"00-{'5' * 32}-{PARENT}-01"})
    for name in ("read", "queue", "run"):
        trace.add(name, trace.started, trace.started + 1e-3)
    call = TracedCall(trace, "a.B/C", "GRPC", "OK", "", {"request_id": "r"}, trace.started + 1e-2)
    calls = 3000  # more than may wait
    for _ in range(calls):
        spans.add(call)
    trace.add("late", trace.started, trace.started + 1e-3)  # its span was not counted
    spans.close()
    received, dropped = len(collector.of("5" * 32)), counted(metrics, "dropped")
    assert received == counted(metrics, "sent") >= 8192
    assert received + dropped == 4 * calls
    assert (received % 4, dropped % 4, counted(metrics, "failed")) == (0, 0, 0)
    spans.add(call)
    assert counted(metrics, "dropped") == dropped + 5


class BadCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes nothing at first, as `how` says."""

    def __init__(self, how):
        self.how = how
        self.goes_on = threading.Event()

    def Export(self, request, context):
        if not self.goes_on.is_set():
            self.how(self, context)
        return trace_service_pb2.ExportTraceServiceResponse()

    def hang(self, context):
        self.goes_on.wait()

    def ask_for_the_unreadable(self, context):
        """Say in bytes that are no message when to try again."""
        context.set_trailing_metadata((("google.rpc.retryinfo-bin", b"\xff"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "later")


@pytest.fixture
def collector_that(request):
    """Starts a collector that misbehaves."""

    def start(how):
        collector, server = BadCollector(how), grpc.server(futures.ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
        collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        request.addfinalizer(lambda: server.stop(None).wait())
        request.addfinalizer(collector.goes_on.set)
        return collector

    return start


def call_of(*steps):
    """A traced call with these steps."""
    trace = Trace({"traceparent": SAMPLED})
    for name in steps:
        trace.add(name, trace.started, trace.started + 1e-3)
    return TracedCall(trace, "a.B/C", "GRPC", "OK", "", {"request_id": "r"}, trace.started + 1e-2)


def test_an_answer_that_cannot_be_read_costs_its_batch_and_no_thread(
    collector_that, until, monkeypatch, caplog
):
    monkeypatch.setattr(spans_module, "_EVERY_SECONDS", 0.01)
    collector, metrics = collector_that(BadCollector.ask_for_the_unreadable), ServerMetrics()
    spans = SpanExport(collector.endpoint, metrics)
    for number in range(1, 4):
        spans.add(call_of("run"))
        until(lambda expected=2 * number: counted(metrics, "failed") == expected)
    collector.goes_on.set()
    spans.add(call_of("run"))
    until(lambda: counted(metrics, "sent") == 2)
    spans.close()
    assert counted(metrics, "failed") == 6
    failures = metrics.registry.get_sample_value(
        "multigate_thread_failures_total", {"thread": "spans"}
    )
    assert failures is None
    (line,) = [one.getMessage() for one in caplog.records if "takes no spans" in one.getMessage()]
    assert "DecodeError" in line


def test_a_collector_that_hangs_holds_the_stop_up_no_longer_than_is_said(
    collector_that, monkeypatch
):
    monkeypatch.setattr(spans_module, "_LAST_SECONDS", 0.2)
    monkeypatch.setattr(spans_module, "_END_SECONDS", 120.0)
    collector, metrics = collector_that(BadCollector.hang), ServerMetrics()
    spans = SpanExport(collector.endpoint, metrics)
    for _ in range(2000):
        spans.add(call_of("read", "queue", "run"))
    spans.close()
    assert not collector.goes_on.is_set()  # it hangs still
    assert (counted(metrics, "failed"), counted(metrics, "dropped")) == (8000, 0)
    assert not spans._thread._thread.is_alive()


STATES = {
    "a=b": "a=b",
    "a=b,c=d , e=f": "a=b,c=d,e=f",
    "": "",
    "nothing": "",
    "=,==,a=,=b,,": "",
    "a=b,a=c": "",
    "a=\xe9\x00\ud800": "",
    "A=b": "",
    "a=" + "b" * 600: "",
    ",".join(f"k{n}=v" for n in range(40)): "",
}


def test_odd_trace_states_cost_no_span(collector):
    metrics, tracing = ServerMetrics(), Tracing(0.0, lambda call: None)
    spans = SpanExport(collector.endpoint, metrics)
    for number, state in enumerate(STATES, 10):
        trace = tracing.begin(
            [("traceparent", f"00-{number:032}-{PARENT}-01"), ("tracestate", state)]
        )
        assert len(trace.carrier.get("tracestate", "")) <= 512  # it is held until it is sent
        spans.add(TracedCall(trace, "a.B/C", "GRPC", "OK", "", {}, trace.started))
    spans.close()
    received = {}
    for number, state in enumerate(STATES, 10):
        (span,) = collector.of(f"{number:032}")
        assert span.parent_span_id.hex() == PARENT
        received[state] = span.trace_state
    assert received == STATES


def test_the_rate_is_a_share_of_the_calls():
    tracing = Tracing(0.25, lambda call: None)
    count = sum(tracing.begin(()) is not None for _ in range(4000))
    assert 800 < count < 1200


@pytest.mark.slow
def test_a_collector_that_is_gone_costs_a_counter(
    tmp_path, publish, with_items, run_server, until, caplog, monkeypatch
):
    publish(tmp_path, 1, with_items)
    options = {"otlp_endpoint": "http://127.0.0.1:1", "otlp_sampling_rate": 1.0}
    with run_server(tmp_path, **options) as running:
        for number in range(20):
            assert running.ranking.Rank(rank_request(f"r{number}")).score
        until(lambda: running.metric(SENT, result="failed") == 100, "a hundred failed spans")
        until(lambda: "takes no spans" in caplog.text)
        assert running.metric(SENT, result="sent") is None
        monkeypatch.setattr(running.server._spans._queue, "_most", 4)
        running.ranking.Rank(rank_request("dropped"))
        assert running.metric(SENT, result="dropped") == 5
    lines = [one.getMessage() for one in caplog.records if "takes no spans" in one.getMessage()]
    assert lines == ["http://127.0.0.1:1: takes no spans; they are dropped and counted"]


def test_an_endpoint_needs_its_scheme():
    with pytest.raises(ServingError, match="--otlp_endpoint: expected an address"):
        ServerOptions(model_name="m", model_base_path="m", otlp_endpoint="localhost:4317")


def test_the_packages_are_asked_for_where_they_are_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "multigate.serving.observe.spans", None)
    options = ServerOptions(model_name="m", model_base_path="m", otlp_endpoint="http://h:1")
    with pytest.raises(ServingError, match=r"--otlp_endpoint: needs the package .*\[traces\]"):
        Server(options)
