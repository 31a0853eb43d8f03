"""Traced calls as OpenTelemetry spans, sent over OTLP.

Needs the extra `traces`.  A collector that is slow or gone delays no call: spans wait in a bounded
queue, and those that do not fit or cannot be sent are counted.
"""

import logging
import os
import socket
from collections.abc import Iterator, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.tracing import TracedCall
from multigate.serving.observe.gathering import GatherQueue

LOG = logging.getLogger("multigate.serving")

_MOST_WAITING = 8192
"""Spans."""
_SEND_SECONDS = 5.0
"""For the collector to take a batch, retries included."""
_LAST_SECONDS = 3.0
"""For the last spans, when the server stops."""
_END_SECONDS = 1.0
"""For the thread to end afterwards; it takes milliseconds."""
_EVERY_SECONDS = 2.0
"""Between batches: a batch costs as much as some sixty spans, however few are in it."""
_BATCH = 512
"""Spans; a batch of so many does not wait."""
_SCOPE = InstrumentationScope("multigate.serving")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class SpanExport:
    """Sends the spans of traced calls.

    A call is queued as it is, and its spans are made in the thread that sends them.  All of a call
    is known by then, so that they need no tracer, which keeps spans that are under way.
    """

    def __init__(self, endpoint: str, metrics: ServerMetrics) -> None:
        """Begin to send.

        Args:
            endpoint: of the collector, such as http://localhost:4317; https for TLS.
            metrics: counts the spans.
        """
        # It writes a line per failed batch; ours says once that the collector is gone.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "multigate"),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._resource = _Resource(resource.attributes, resource.schema_url)
        self._metrics = metrics
        self._endpoint = endpoint
        self._exporter = OTLPSpanExporter(
            endpoint, insecure=endpoint.startswith("http://"), timeout=_SEND_SECONDS
        )
        self._ids = RandomIdGenerator()
        self._contexts = TraceContextTextMapPropagator()
        self._queue = GatherQueue[tuple[TracedCall, int]](_MOST_WAITING, _BATCH, _EVERY_SECONDS)
        """Calls and how many spans they have."""
        self._gone = False
        self._thread = SupervisedThread("spans", self._send, metrics.thread_failed)
        self._thread.start()

    def add(self, call: TracedCall) -> None:
        """Queue the spans of a call; drops and counts them if too many wait."""
        count = len(call.trace.steps) + 1
        if not self._queue.add((call, count), count):
            self._metrics.spans.add("dropped", by=count)

    def close(self) -> None:
        """Send what waits, for a limited time; what is left then is dropped and counted."""
        self._queue.close()
        self._thread.join(_LAST_SECONDS)
        if left := self._queue.clear():
            self._metrics.spans.add("failed", by=left)
        self._exporter.shutdown()  # ends what is being sent, retries included
        self._thread.join(_END_SECONDS)

    def _send(self) -> None:
        while calls := self._queue.take():
            self._send_batch(calls)

    def _send_batch(self, calls: Sequence[tuple[TracedCall, int]]) -> None:
        """Send the spans of calls, and count them."""
        total = sum(count for _, count in calls)
        result, why = SpanExportResult.FAILURE, ""
        try:
            spans = [span for call, count in calls for span in self._spans_of(call, count)]
            result = self._exporter.export(spans)
        except Exception as error:  # such as an answer of the collector that cannot be read
            if not self._queue.closed:  # `close` may have shut the exporter down meanwhile
                why = f" ({error!r})"
        failed = result is not SpanExportResult.SUCCESS
        self._metrics.spans.add("failed" if failed else "sent", by=total)
        if failed and not self._gone:
            LOG.warning("%s: takes no spans%s; they are dropped and counted", self._endpoint, why)
        self._gone = failed

    def _spans_of(self, call: TracedCall, count: int) -> Iterator[ReadableSpan]:
        """As many spans as were counted: the call's, after those of its steps."""
        trace = call.trace
        parent = get_current_span(self._contexts.extract(trace.carrier)).get_span_context()
        caller = parent if parent.is_valid else None
        trace_id = caller.trace_id if caller is not None else self._ids.generate_trace_id()
        state = parent.trace_state

        def context() -> SpanContext:
            return SpanContext(trace_id, self._ids.generate_span_id(), False, _SAMPLED, state)

        whole = context()
        for name, began, ended, attributes in trace.steps[: count - 1]:
            yield ReadableSpan(
                name,
                context(),
                whole,
                self._resource,
                attributes,
                status=_UNSET,
                start_time=trace.nanoseconds(began),
                end_time=trace.nanoseconds(ended),
                instrumentation_scope=_SCOPE,
            )
        service, _, method = call.path.rpartition("/")
        fields = {f"multigate.{name}": value for name, value in call.fields.items()}
        failed = call.status != "OK"
        yield ReadableSpan(
            call.path,
            whole,
            caller,
            self._resource,
            {
                "rpc.system": "grpc" if call.entrypoint == "GRPC" else "http",
                "rpc.service": service,
                "rpc.method": method,
                "rpc.response.status_code": call.status,
                **fields,
            },
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, call.message) if failed else _UNSET,
            start_time=trace.nanoseconds(trace.started),
            end_time=trace.nanoseconds(call.ended),
            instrumentation_scope=_SCOPE,
        )


class _Resource(Resource):
    """Equal to itself alone.

    The exporter looks up each span's resource in a dictionary; any other `Resource` would make
    JSON of its attributes each time, to be hashed by it.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__
