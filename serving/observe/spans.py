"""Traced calls as OpenTelemetry spans, sent over OTLP.

Needs the extra `traces`.  A collector that is slow or gone delays no call: spans wait in a bounded
queue, and those that do not fit or cannot be sent are counted.
"""

import logging
import os
import socket
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
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

from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.tracing import TracedCall

LOG = logging.getLogger("multigate.serving")

_MOST_WAITING = 8192
"""Spans."""
_SEND_SECONDS = 5.0
"""For the collector to take a batch, retries included."""
_LAST_SECONDS = 3.0
"""For the last spans, when the server stops."""
_EVERY_MS = 1000
"""Milliseconds between batches."""
_SCOPE = InstrumentationScope("multigate.serving")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class SpanExport:
    """Sends the spans of traced calls.

    All of a call is known when its spans are made, so that they need no tracer, which keeps spans
    that are under way: a call of five spans would take 104 us of the loop in place of 8 to 16.
    """

    def __init__(self, endpoint: str, metrics: ServerMetrics) -> None:
        """Begin to send.

        Args:
            endpoint: of the collector, such as http://localhost:4317; https for TLS.
            metrics: counts the spans.
        """
        # It writes a line per failed batch; ours says once that the collector is gone.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._resource = Resource.create(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", "multigate"),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._metrics = metrics
        self._sender = _Sender(endpoint, metrics)
        self._processor = BatchSpanProcessor(
            self._sender,
            max_queue_size=_MOST_WAITING,
            schedule_delay_millis=_EVERY_MS,
            max_export_batch_size=512,
        )
        self._ids = RandomIdGenerator()
        self._contexts = TraceContextTextMapPropagator()

    def add(self, call: TracedCall) -> None:
        """Make the spans of a call, and queue them; drops and counts them if too many wait."""
        trace = call.trace
        count = len(trace.steps) + 1
        if not self._sender.reserve(count):
            self._metrics.spans.add("dropped", by=count)
            return
        parent = get_current_span(self._contexts.extract(trace.carrier)).get_span_context()
        caller = parent if parent.is_valid else None
        trace_id = caller.trace_id if caller is not None else self._ids.generate_trace_id()
        state = parent.trace_state

        def context() -> SpanContext:
            return SpanContext(trace_id, self._ids.generate_span_id(), False, _SAMPLED, state)

        whole = context()
        for name, began, ended, attributes in trace.steps:
            self._processor.on_end(
                ReadableSpan(
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
            )
        service, _, method = call.path.rpartition("/")
        fields = {f"multigate.{name}": value for name, value in call.fields.items()}
        failed = call.status != "OK"
        self._processor.on_end(
            ReadableSpan(
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
        )

    def close(self) -> None:
        """Send what waits, for a limited time."""
        ending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_LAST_SECONDS)


class _Sender(SpanExporter):
    """OTLP over gRPC, which counts what becomes of the spans."""

    def __init__(self, endpoint: str, metrics: ServerMetrics) -> None:
        self._exporter = OTLPSpanExporter(
            endpoint, insecure=endpoint.startswith("http://"), timeout=_SEND_SECONDS
        )
        self._endpoint = endpoint
        self._metrics = metrics
        self._lock = threading.Lock()
        self._waiting = 0
        self._gone = False

    def reserve(self, count: int) -> bool:
        """Make room for spans of one call; False where too many wait already."""
        with self._lock:
            if self._waiting + count > _MOST_WAITING:
                return False
            self._waiting += count
            return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; called in the processor's thread."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            with self._lock:
                self._waiting -= len(spans)
            failed = result is not SpanExportResult.SUCCESS
            self._metrics.spans.add("failed" if failed else "sent", by=len(spans))
            if failed and not self._gone:
                LOG.warning("%s: takes no spans; they are dropped and counted", self._endpoint)
            self._gone = failed
        return result

    def shutdown(self) -> None:
        """Stop, retries included."""
        self._exporter.shutdown()
