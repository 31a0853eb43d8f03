"""The interceptor of every call: checks token and message, maps errors to status, counts and logs.

grpc-interceptor was considered: it would replace only the mapping of exceptions to status.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from multigate.serving.core import logs
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.security import shows_token
from multigate.serving.core.status import (
    LOG,
    DrainingError,
    InvalidRequestError,
    UnauthenticatedError,
    status_of,
)
from multigate.serving.core.streams import Streams

_HEALTH = "/grpc.health.v1.Health/"
_NO_MESSAGE = "the bytes received are not its request message"


class _Malformed:
    """Stands for a request message that cannot be parsed."""


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method: maps exceptions to status, refuses calls while draining, counts calls.

    If there are tokens, every call and stream must carry one, except health checks: the probes of
    an orchestrator have no token.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        tokens: Sequence[str] = (),
        log_calls: float = 0.0,
        max_streams: int = 64,
    ) -> None:
        """Make the interceptor of a server.

        Args:
            metrics: counts the calls.
            tokens: the valid ones; none: no token is needed.
            log_calls: share of the calls to log.
            max_streams: most open streams.
        """
        self.draining = False
        self.calls_in_flight = 0
        """Unary calls that are being handled."""
        self.streams = Streams(max_streams)
        self._log_calls = log_calls
        self._metrics = metrics
        self._tokens = tuple(tokens)
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], call: Any
    ) -> Any:
        """The method's wrapped handler, made once per method."""
        method = call.method
        if (
            self._tokens
            and not method.startswith(_HEALTH)
            and not shows_token(call.invocation_metadata, self._tokens)
        ):
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        if method not in self._handlers:
            handler = await continuation(call)
            if handler is None:
                return handler
            wrap = self._wrap_stream if handler.unary_unary is None else self._wrap
            self._handlers[method] = wrap(method, handler)
        return self._handlers[method]

    async def _refuse(self, requests: Any, context: Any) -> None:
        """Refuse a call of any method without reading its messages."""
        # One label for all methods: a caller without a token could invent any number of names.
        self._metrics.answered("unauthenticated", UnauthenticatedError.code.name, 0.0)
        await context.abort(
            UnauthenticatedError.code, "expected a valid token in metadata: authorization: Bearer"
        )

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
