"""The interceptor of every gRPC call: leads it through the gate, and checks its message.

grpc-interceptor was considered: it would replace only the mapping of exceptions to status.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from multigate.serving.core.calls import HEALTH, CallGate
from multigate.serving.core.loop import Threads
from multigate.serving.core.status import InvalidRequestError, RequestError
from multigate.serving.core.streams import Streams
from multigate.serving.request.parts import LARGE, refuse_too_many_parts

_NO_MESSAGE = "the bytes received are not its request message"


class _Malformed:
    """Stands for a request message that cannot be parsed."""


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method: what the gate refuses, and what becomes of a call, is its status."""

    def __init__(self, gate: CallGate, max_streams: int) -> None:
        """Make the interceptor of a server.

        Args:
            gate: what all calls pass.
            max_streams: most open streams.
        """
        self.streams = Streams(max_streams)
        self._gate = gate
        self._handlers: dict[str, Any] = {}
        self._counting = Threads(1)  # at once: each competes with the loop for the interpreter

    def close(self) -> None:
        """Wait for what its thread does; called once no call is in flight."""
        self._counting.close()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], call: Any
    ) -> Any:
        """The method's wrapped handler, made once per method."""
        # Not the context's: gRPC makes that anew.
        method, metadata = call.method, call.invocation_metadata
        try:
            self._gate.authorize(method, metadata)
            self._gate.admit(method, metadata)
        except RequestError as error:
            return self._refuse(error)
        if method not in self._handlers:
            handler = await continuation(call)
            if handler is None:
                return handler
            wrap = self._wrap_stream if handler.unary_unary is None else self._wrap
            self._handlers[method] = wrap(method, handler)
        return self._handlers[method]

    def _refuse(self, error: RequestError) -> Any:
        """A handler that refuses a call of any method without reading its messages."""

        async def refuse(requests: Any, context: Any) -> None:
            self._gate.refused(error, "GRPC")
            await context.abort(error.code, str(error))

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _wrap(self, path: str, handler: Any) -> Any:
        method = path.rpartition("/")[2]
        answers_while_draining = path == f"{HEALTH}Check"

        parse = handler.request_deserializer

        async def answer(data: bytes, context: Any) -> Any:
            response = None
            with self._gate.handle(path, "GRPC", context) as call:
                if not answers_while_draining:
                    call.refuse_if_draining()
                if len(data) >= LARGE:
                    await self._counting.run(refuse_too_many_parts, data, parse.__self__)
                try:
                    request = parse(data)
                except Exception:
                    raise InvalidRequestError(f"{method}: {_NO_MESSAGE}") from None
                response = await handler.unary_unary(request, context)
            if response is None:
                await context.abort(call.code, call.message)
            return response

        return grpc.unary_unary_rpc_method_handler(answer, None, handler.response_serializer)

    def _wrap_stream(self, path: str, handler: Any) -> Any:
        async def refuse_malformed(request: Any, context: Any) -> None:
            if isinstance(request, _Malformed):
                message = f"{path.rpartition('/')[2]}: {_NO_MESSAGE}"
                await context.abort(InvalidRequestError.code, message)

        return self.streams.wrap(
            handler, _marking_malformed(handler.request_deserializer), refuse_malformed
        )


def _marking_malformed(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return `_Malformed` for bytes that do not parse, for which gRPC would answer INTERNAL."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except Exception:
            return _Malformed()

    return read
