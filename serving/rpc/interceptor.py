"""The interceptor of every call: checks token and message, maps errors to status, counts and logs.

grpc-interceptor was considered: it would replace only the mapping of exceptions to status.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from multigate.serving.core import logs
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.security import TokenFile
from multigate.serving.core.status import (
    LOG,
    AdmissionError,
    DrainingError,
    InvalidRequestError,
    PermissionDeniedError,
    RequestError,
    UnauthenticatedError,
    status_of,
)
from multigate.serving.core.streams import Streams

_HEALTH = "/grpc.health.v1.Health/"
_MAX_HEALTH_CALLS = 256
"""Checks and watches in flight; a client needs no token for them."""
_RELOAD = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
_NO_MESSAGE = "the bytes received are not its request message"


class _Malformed:
    """Stands for a request message that cannot be parsed."""


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method: maps exceptions to status, refuses calls while draining, counts calls.

    If there are tokens, every call and stream must carry one, except health checks: the probes of
    an orchestrator have no token.  A reload request must carry an admin token.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        tokens: TokenFile | None = None,
        admin_tokens: TokenFile | None = None,
        log_calls: float = 0.0,
        max_calls: int = 256,
    ) -> None:
        """Make the interceptor of a server.

        Args:
            metrics: counts the calls.
            tokens: the valid ones; None: no token is needed.
            admin_tokens: those for reload requests, valid for every other call too; None: reload
                requests are refused.
            log_calls: share of the calls to log.
            max_calls: most calls in flight; a quarter of them may be streams.  Health checks have
                room of their own: an overloaded server must not be restarted.
        """
        self.draining = False
        self.calls_in_flight = 0
        """Unary calls that are being handled."""
        self.streams = Streams(max(max_calls // 4, 1))
        self._max_calls = max_calls
        self._admitted: set[asyncio.Task[Any]] = set()
        """The tasks of all calls but health checks, from before their message is read."""
        self._health_calls: set[asyncio.Task[Any]] = set()
        self._log_calls = log_calls
        self._metrics = metrics
        self._tokens = tokens
        self._admin_tokens = admin_tokens
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], call: Any
    ) -> Any:
        """The method's wrapped handler, made once per method."""
        method = call.method
        if (refusal := self._refusal(method, call.invocation_metadata)) is not None:
            return self._refuse(refusal)
        # Probes have room of their own: no other call takes it, and it is not without limit.
        probe = method.startswith(_HEALTH)
        calls = self._health_calls if probe else self._admitted
        most = _MAX_HEALTH_CALLS if probe else self._max_calls
        if len(calls) >= most:
            return self._refuse(
                AdmissionError(
                    f"{most} calls are in flight already; try again later, or call another server"
                )
            )
        _admit(calls)
        if method not in self._handlers:
            handler = await continuation(call)
            if handler is None:
                return handler
            wrap = self._wrap_stream if handler.unary_unary is None else self._wrap
            self._handlers[method] = wrap(method, handler)
        return self._handlers[method]

    def _refusal(self, method: str, metadata: Any) -> RequestError | None:
        """Why a call may not be made; None where it may."""
        reloads = method == _RELOAD
        if method.startswith(_HEALTH) or (self._tokens is None and not reloads):
            return None
        admin = self._admin_tokens is not None and self._admin_tokens.accepts(metadata)
        if self._tokens is not None and not admin and not self._tokens.accepts(metadata):
            return UnauthenticatedError("expected a valid token in metadata: authorization: Bearer")
        if reloads and self._admin_tokens is None:
            return PermissionDeniedError(
                "reload requests are switched off; start the server with --admin_token_file"
            )
        if reloads and not admin:
            return PermissionDeniedError(
                "reload request: expected an admin token in metadata: authorization: Bearer"
            )
        return None

    def _refuse(self, error: RequestError) -> Any:
        """A handler that refuses a call of any method without reading its messages."""

        async def refuse(requests: Any, context: Any) -> None:
            # One label for all methods: a caller could invent any number of names.
            self._metrics.answered("refused", error.code.name, 0.0)
            await context.abort(error.code, str(error))

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, path: str, handler: Any) -> Any:
        method = path.rpartition("/")[2]
        answers_while_draining = path == f"{_HEALTH}Check"

        async def answer(request: Any, context: Any) -> Any:
            started = time.perf_counter()
            self.calls_in_flight += 1
            logs.begin()
            code, message, response = grpc.StatusCode.OK, "", None
            try:
                if self.draining and not answers_while_draining:
                    raise DrainingError("the server is stopping; call another server")
                if isinstance(request, _Malformed):
                    raise InvalidRequestError(f"{method}: {_NO_MESSAGE}")
                response = await handler.unary_unary(request, context)
            except asyncio.CancelledError:
                code, message = _cancel_code(context), "the caller no longer waits"
                raise
            except Exception as error:
                code, message = status_of(method, error)
            finally:
                self.calls_in_flight -= 1
                seconds = time.perf_counter() - started
                self._metrics.answered(method, code.name, seconds)
                fields = logs.end()
                if self._log_calls and random.random() < self._log_calls:
                    _log(method, code, seconds, message, fields)
            if response is None:
                await context.abort(code, message)
            return response

        return grpc.unary_unary_rpc_method_handler(
            answer, _marking_malformed(handler.request_deserializer), handler.response_serializer
        )

    def _wrap_stream(self, path: str, handler: Any) -> Any:
        async def refuse_malformed(request: Any, context: Any) -> None:
            if isinstance(request, _Malformed):
                message = f"{path.rpartition('/')[2]}: {_NO_MESSAGE}"
                await context.abort(InvalidRequestError.code, message)

        return self.streams.wrap(
            handler, _marking_malformed(handler.request_deserializer), refuse_malformed
        )


def _admit(calls: set[asyncio.Task[Any]]) -> None:
    """Count this call among others until it ends."""
    task = asyncio.current_task()
    assert task is not None  # gRPC runs a whole call, this one included, in one task
    calls.add(task)
    task.add_done_callback(calls.discard)


def _cancel_code(context: Any) -> grpc.StatusCode:
    """Why gRPC cancelled a call: its deadline passed, or the caller went away."""
    remaining = context.time_remaining()
    late = remaining is not None and remaining <= 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED


def _marking_malformed(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return `_Malformed` for bytes that do not parse, for which gRPC would answer INTERNAL."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return _Malformed()

    return read


def _log(
    method: str, code: grpc.StatusCode, seconds: float, message: str, fields: dict[str, Any]
) -> None:
    """Log one line about a call."""
    fields = {"method": method, "status": code.name, "seconds": round(seconds, 6), **fields}
    if message:
        fields["error"] = message
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.info("call %s", text, extra={"fields": fields})
