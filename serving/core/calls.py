"""What every call passes, whichever way it came: token, room, drain, status, metrics, log line.

`serving.rpc.interceptor` leads gRPC's calls through the gate, `serving.rest.app` those of HTTP.
"""

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Protocol

import grpc

from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.core import logs
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.security import TokenFile
from multigate.serving.core.status import (
    LOG,
    AdmissionError,
    DrainingError,
    PermissionDeniedError,
    RequestError,
    UnauthenticatedError,
    status_of,
)
from multigate.serving.core.tracing import Trace, TracedCall, Tracing, current

HEALTH = "/grpc.health.v1.Health/"
RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
MAX_HEALTH_CALLS = 256
"""Checks and watches in flight; a client needs no token for them."""

EntryPoint = Literal["GRPC", "REST"]
"""TensorFlow Serving's words in its metrics."""
Metadata = Iterable[tuple[str, str | bytes]]


class Caller(Protocol):
    """What the work needs to know of its caller: gRPC's context, or HTTP's likeness of it."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None without one."""


class CallGate:
    """Admits calls, and turns what becomes of each into status, metrics and a log line.

    If there are tokens, every call must carry one, except health checks: the probes of an
    orchestrator have no token.  A reload request must carry an admin token.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        tokens: TokenFile | None = None,
        admin_tokens: TokenFile | None = None,
        log_calls: float = 0.0,
        max_calls: int = 256,
        tracing: Tracing | None = None,
    ) -> None:
        """Make the gate of a server.

        Args:
            metrics: counts the calls.
            tokens: the valid ones; None: no token is needed.
            admin_tokens: those for reload requests, valid for every other call too; None: reload
                requests are refused.
            log_calls: share of the calls to log.
            max_calls: most calls in flight.  Health checks have room of their own: an overloaded
                server must not be restarted.
            tracing: decides which calls are traced; None: none.
        """
        self.metrics = metrics
        self.tracing = tracing
        self.draining = False
        self.in_flight = CallsInFlight()
        """Unary calls that are being handled."""
        self.admitted: set[asyncio.Task[Any]] = set()
        """The tasks of all calls but health checks, from before their message is read."""
        self.health_calls: set[asyncio.Task[Any]] = set()
        self.log_calls = log_calls
        self._max_calls = max_calls
        self._tokens = tokens
        self._admin_tokens = admin_tokens
        metrics.in_flight.read = lambda: len(self.admitted)

    def authorize(self, path: str, metadata: Metadata) -> None:
        """Check the token of a call.

        Args:
            path: of the method as gRPC writes it, `/package.Service/Method`.
            metadata: of the call, or the headers of an HTTP request.

        Raises:
            RequestError: the call may not be made.
        """
        reloads = path == RELOAD
        if path.startswith(HEALTH) or (self._tokens is None and not reloads):
            return
        admin = self._admin_tokens is not None and self._admin_tokens.accepts(metadata)
        if self._tokens is not None and not admin and not self._tokens.accepts(metadata):
            raise UnauthenticatedError("expected a valid token in metadata: authorization: Bearer")
        if reloads and self._admin_tokens is None:
            raise PermissionDeniedError(
                "reload requests are switched off; start the server with --admin_token_file"
            )
        if reloads and not admin:
            raise PermissionDeniedError(
                "reload request: expected an admin token in metadata: authorization: Bearer"
            )

    def admit(self, path: str, metadata: Metadata) -> None:
        """Count the call of the current task among those in flight until the task ends.

        Here it is decided whether the call is traced, too.

        Args:
            path: of the method, as gRPC writes it.
            metadata: of the call, or the headers of an HTTP request.

        Raises:
            AdmissionError: too many are in flight.
        """
        # Probes have room of their own: no other call takes it, and it is not without limit.
        probe = path.startswith(HEALTH)
        calls = self.health_calls if probe else self.admitted
        most = MAX_HEALTH_CALLS if probe else self._max_calls
        if len(calls) >= most:
            raise AdmissionError(
                f"{most} calls are in flight already; try again later, or call another server"
            )
        task = asyncio.current_task()
        assert task is not None  # gRPC runs a whole call, its interceptor included, in one task
        calls.add(task)
        task.add_done_callback(calls.discard)
        if self.tracing is not None and not probe:
            self.tracing.begin(metadata)

    def refused(self, error: RequestError, entrypoint: EntryPoint) -> None:
        """Count a call that is refused before its message is read."""
        # One label for all methods: a caller could invent any number of names.
        self.metrics.answered("refused", error.code.name, 0.0, entrypoint)

    def handle(self, path: str, entrypoint: EntryPoint, caller: Caller) -> "HandledCall":
        """A context in which one unary call is handled.

        Args:
            path: of the method, as gRPC writes it.
            entrypoint: how it came.
            caller: says how long it waits.
        """
        return HandledCall(self, path, entrypoint, caller)


class HandledCall:
    """A call while it is handled; afterwards `code` and `message` are its status.

    Exceptions end here, except the cancellation of the call's task.
    """

    def __init__(self, gate: CallGate, path: str, entrypoint: EntryPoint, caller: Caller) -> None:
        self.code = grpc.StatusCode.OK
        self.message = ""
        self._gate = gate
        self._path = path
        self._method = path.rpartition("/")[2]
        self._entrypoint: EntryPoint = entrypoint
        self._caller = caller
        self._started = 0.0
        self._trace: Trace | None = None

    def refuse_if_draining(self) -> None:
        """Refuse the call if the server is stopping.

        Raises:
            DrainingError: it is.
        """
        if self._gate.draining:
            raise DrainingError("the server is stopping; call another server")

    def __enter__(self) -> "HandledCall":
        self._started = time.perf_counter()
        self._gate.in_flight.begin()
        logs.begin()
        self._trace = current()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        gate = self._gate
        gate.in_flight.end()
        if isinstance(error, Exception):
            self.code, self.message = status_of(self._method, error)
        elif error is not None:
            self.code, self.message = _cancel_code(self._caller), "the caller no longer waits"
        seconds = time.perf_counter() - self._started
        fields = logs.end()
        gate.metrics.answered(
            self._method,
            self.code.name,
            seconds,
            self._entrypoint,
            fields.get("model", ""),
            str(fields.get("version", "")),
            fields.get("signature", ""),
            fields.get("run_seconds"),
        )
        if self._trace is not None and gate.tracing is not None:
            gate.tracing.finished(
                TracedCall(
                    self._trace,
                    self._path[1:],
                    self._entrypoint,
                    self.code.name,
                    self.message,
                    fields,
                    time.perf_counter(),
                )
            )
        if gate.log_calls and random.random() < gate.log_calls:
            _log(self._method, self.code, seconds, self.message, fields)
        return isinstance(error, Exception)


def _cancel_code(caller: Caller) -> grpc.StatusCode:
    """Why a call was cancelled: its deadline passed, or the caller went away."""
    remaining = caller.time_remaining()
    late = remaining is not None and remaining <= 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


def _log(
    method: str, code: grpc.StatusCode, seconds: float, message: str, fields: dict[str, Any]
) -> None:
    """Log one line about a call."""
    fields = {"method": method, "status": code.name, "seconds": round(seconds, 6), **fields}
    if message:
        fields["error"] = message
    if LOG.isEnabledFor(logging.INFO):
        text = " ".join([f"{name}={value}" for name, value in fields.items()])
        # `LOG.info` would look on the stack for its caller too, which no line says.
        record = logging.LogRecord(LOG.name, logging.INFO, "", 0, f"call {text}", None, None)
        vars(record)["fields"] = fields
        LOG.handle(record)
