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
import threading
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
        self,
        metrics: ServerMetrics,
        tokens: Sequence[str] = (),
        log_calls: float = 0.0,
        watchers: int = 64,
        conversations: int = 8,
    ) -> None:
        """Make the interceptor of a server.

        Args:
            metrics: where calls are counted.
            tokens: of which every call must show one; none: everybody may call.
            log_calls: share of the calls that get a line in the log.
            watchers: streams of one request at once (health's Watch), which count as calls.
            conversations: streams of many requests at once (reflection), which hold a thread each.
        """
        self.draining = False
        self._watchers = _Room("watch health", watchers)
        self._conversations = _Room("ask for descriptions", conversations)
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
            if handler.unary_stream is not None:
                wrapped = _wrap_watch(method, handler, self._watchers)
            elif handler.stream_stream is not None:
                wrapped = _wrap_conversation(method, handler, self._conversations)
            else:
                wrapped = self._wrap(method, handler)
            self._handlers[method] = wrapped
        return self._handlers[method]

    def end_streams(self) -> None:
        """End what has no end of its own, and would keep a server that drains waiting."""
        self._watchers.clear()
        self._conversations.clear()

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


class _Room:
    """How many streams may be open at once, so that none of them takes the place of a call."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._lock = threading.Lock()
        self._open: set[Any] = set()

    def enter(self, context: Any) -> None:
        """Let a stream in until it ends, or refuse it."""
        with self._lock:
            full = len(self._open) >= self._most
            if not full:
                self._open.add(context)
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._most} callers {self._what} already"
            )
        if not context.add_callback(lambda: self._leave(context)):
            self._leave(context)

    def clear(self) -> None:
        """End the streams, and let none in any more."""
        with self._lock:
            held, self._most = list(self._open), 0
        for context in held:
            context.cancel()

    def _leave(self, context: Any) -> None:
        with self._lock:
            self._open.discard(context)


def _checked(path: str, request: Any, context: Any) -> Any:
    if isinstance(request, _Malformed):
        context.abort(InvalidRequestError.code, f"{path.rpartition('/')[2]}: {_NO_MESSAGE}")
    return request


def _wrap_watch(path: str, handler: Any, room: _Room) -> Any:
    """The handler of a method that answers one request with a stream: health's Watch."""

    def watch(request: Any, context: Any, *send: Any) -> Any:
        _checked(path, request, context)
        room.enter(context)
        return handler.unary_stream(request, context, *send)

    # As the wrapped one: its thread goes back to the calls, however long the stream stays open.
    vars(watch).update(vars(handler.unary_stream.__func__))
    return grpc.unary_stream_rpc_method_handler(
        watch, _forgiving(handler.request_deserializer), handler.response_serializer
    )


def _wrap_conversation(path: str, handler: Any, room: _Room) -> Any:
    """The handler of a method that answers requests as they come: reflection."""

    def converse(requests: Any, context: Any) -> Any:
        room.enter(context)
        checked = (_checked(path, one, context) for one in requests)
        return handler.stream_stream(checked, context)

    return grpc.stream_stream_rpc_method_handler(
        converse, _forgiving(handler.request_deserializer), handler.response_serializer
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
