"""Failures of calls, and the one place that turns them into gRPC status.

    RequestError                (a ServingError)
    ├── InvalidRequestError     INVALID_ARGUMENT     contradicts the contract or the signature
    ├── NotServedError          NOT_FOUND            no such model or version, or not ready yet
    ├── WrongStateError         FAILED_PRECONDITION  Predict: no such signature
    ├── OverloadedError         UNAVAILABLE          a queue is full; another server may have room
    ├── StoreError              UNAVAILABLE          features are due that the store cannot give
    ├── DrainingError           UNAVAILABLE          the server is stopping
    ├── UnauthenticatedError    UNAUTHENTICATED      no valid bearer token
    ├── TooLateError            DEADLINE_EXCEEDED    the caller no longer waits
    └── CancelledError          CANCELLED            the caller went away

gRPC itself answers RESOURCE_EXHAUSTED for messages over the limit and for calls over the admission
cap.  Anything else is a bug of ours: INTERNAL, with an id that the log carries.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import tensorflow as tf

from configs.errors import ServingError
from serving import logs
from serving.metrics import ServerMetrics
from serving.security import shows_token

LOG = logging.getLogger("multigate.serving")

_HEALTH = "/grpc.health.v1.Health/"
_LONGEST_MESSAGE = 1000  # characters; status travels in headers, which clients limit to 8 KiB


class RequestError(ServingError):
    """A call that cannot be answered; the message is meant for the caller."""

    code = grpc.StatusCode.UNKNOWN


class InvalidRequestError(RequestError):
    """The request contradicts the contract or the signature."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotServedError(RequestError):
    """No such model or version, or it is not ready."""

    code = grpc.StatusCode.NOT_FOUND


class WrongStateError(RequestError):
    """The model does not offer what was asked for."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class OverloadedError(RequestError):
    """A queue is full."""

    code = grpc.StatusCode.UNAVAILABLE


class StoreError(RequestError):
    """The feature store does not answer, and no missing rule can stand in."""

    code = grpc.StatusCode.UNAVAILABLE


class DrainingError(RequestError):
    """The server is stopping."""

    code = grpc.StatusCode.UNAVAILABLE


class UnauthenticatedError(RequestError):
    """The call shows no valid bearer token."""

    code = grpc.StatusCode.UNAUTHENTICATED


class TooLateError(RequestError):
    """The deadline has passed."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class CancelledError(RequestError):
    """The caller cancelled the call."""

    code = grpc.StatusCode.CANCELLED


class Call:
    """How long the caller of one call waits, and whether it still does."""

    def __init__(self, context: Any) -> None:
        """Read the deadline once: asking gRPC for it costs more than asking the clock."""
        remaining = context.time_remaining()
        self._context = context
        # A client without a deadline reports some 290 years, which no lock can wait for.
        bounded = remaining is not None and remaining < 1e6
        self.deadline = time.monotonic() + remaining if bounded else None

    def remaining(self) -> float | None:
        """Seconds left, or None without a deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def check(self, stage: str) -> None:
        """Stop work that nobody waits for.

        Raises:
            TooLateError: the deadline has passed.
            CancelledError: the caller went away.
        """
        remaining = self.remaining()
        if remaining is not None and remaining <= 0:
            raise TooLateError(f"the deadline passed {stage}")
        if not self._context.is_active():
            raise CancelledError(f"the call was cancelled {stage}")

    def when_over(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when the call has ended, for whatever reason."""
        if not self._context.add_callback(callback):
            callback()


_NO_MESSAGE = "the bytes received are not its request message"


class _Malformed:
    """Stands for a message whose bytes are not of its type."""


class StatusInterceptor(grpc.ServerInterceptor):
    """Wraps every unary method: maps failures to status, refuses calls while draining, counts.

    Where there are tokens, every call must show one, streams too, but for questions about health:
    the probes of an orchestrator have none.
    """

    def __init__(
        self, metrics: ServerMetrics, tokens: Sequence[str] = (), log_calls: float = 0.0
    ) -> None:
        self.draining = False
        self._log_calls = log_calls
        self._metrics = metrics
        self._tokens = tuple(tokens)
        self._handlers: dict[str, Any] = {}

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        """The method's handler, wrapped once per method."""
        method = call.method
        if (
            self._tokens
            and not method.startswith(_HEALTH)
            and not shows_token(call.invocation_metadata, self._tokens)
        ):
            return grpc.stream_stream_rpc_method_handler(self._refuse)
        if method not in self._handlers:
            handler = continuation(call)
            if handler is None:
                return handler
            wrap = _wrap_stream if handler.unary_unary is None else self._wrap
            self._handlers[method] = wrap(method, handler)
        return self._handlers[method]

    def _refuse(self, requests: Any, context: Any) -> Any:
        """Answers any method, of one message or of many, without reading the request."""
        # Not by method: a caller without a token could make any number of names up.
        self._metrics.answered("unauthenticated", UnauthenticatedError.code.name, 0.0)
        context.abort(
            UnauthenticatedError.code, "expected a valid token in metadata: authorization: Bearer"
        )

    def _wrap(self, path: str, handler: Any) -> Any:
        method = path.rpartition("/")[2]
        always = path == f"{_HEALTH}Check"  # must answer while draining

        def answer(request: Any, context: Any) -> Any:
            started = time.perf_counter()
            logs.begin()
            code, message, response = grpc.StatusCode.OK, "", None
            try:
                if self.draining and not always:
                    raise DrainingError("the server is stopping; call another one")
                if isinstance(request, _Malformed):
                    raise InvalidRequestError(f"{method}: {_NO_MESSAGE}")
                response = handler.unary_unary(request, context)
            except Exception as error:
                code, message = _status(method, error)
            seconds = time.perf_counter() - started
            self._metrics.answered(method, code.name, seconds)
            said = logs.end()
            if self._log_calls and random.random() < self._log_calls:
                _log(method, code, seconds, message, said)
            if response is None:
                context.abort(code, message)
            return response

        return grpc.unary_unary_rpc_method_handler(
            answer, _forgiving(handler.request_deserializer), handler.response_serializer
        )


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """GRPC would answer INTERNAL for bytes that do not parse, as if the bug were ours."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return _Malformed()

    return read


def _wrap_stream(path: str, handler: Any) -> Any:
    """The handler of a method with streams (health's Watch, reflection), for malformed bytes."""

    def checked(request: Any, context: Any) -> Any:
        if isinstance(request, _Malformed):
            context.abort(InvalidRequestError.code, f"{path.rpartition('/')[2]}: {_NO_MESSAGE}")
        return request

    def one(request: Any, context: Any) -> Any:
        return handler.unary_stream(checked(request, context), context)

    def many(requests: Any, context: Any) -> Any:
        return handler.stream_stream((checked(one, context) for one in requests), context)

    wrapped = (
        grpc.unary_stream_rpc_method_handler
        if handler.unary_stream is not None
        else grpc.stream_stream_rpc_method_handler
    )
    return wrapped(
        one if handler.unary_stream is not None else many,
        _forgiving(handler.request_deserializer),
        handler.response_serializer,
    )


def _log(
    method: str, code: grpc.StatusCode, seconds: float, message: str, said: dict[str, Any]
) -> None:
    """One line of a call."""
    fields = {"method": method, "status": code.name, "seconds": round(seconds, 6), **said}
    if message:
        fields["error"] = message
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    LOG.info("call %s", text, extra={"fields": fields})


def _status(method: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    """The status and message of a failure."""
    if isinstance(error, RequestError):
        code, message = error.code, str(error)
    elif isinstance(error, tf.errors.InvalidArgumentError):
        # The graph refuses its inputs itself where no contract describes them (tf.Example).
        code, message = grpc.StatusCode.INVALID_ARGUMENT, f"{method}: {error.message}"
    else:
        incident = uuid.uuid4().hex
        LOG.error("incident %s in %s", incident, method, exc_info=error)
        code = grpc.StatusCode.INTERNAL
        message = f"{method}: internal error; the server's log names its cause under {incident}"
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + " ..."
    return code, message
