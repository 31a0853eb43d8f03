"""Streaming calls (health's Watch, and reflection): a limit on their number, and their end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from multigate.serving.core.status import DrainingError

Check = Callable[[Any, Any], Awaitable[None]]


class Streams:
    """The open streams; their number is limited, so that they leave room for other calls."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Task[Any] | None] = set()
        self._ending = False

    def wrap(self, handler: Any, deserialize: Callable[[bytes], Any], check: Check) -> Any:
        """Wrap the handler of a streaming method.

        Args:
            handler: the service's.
            deserialize: reads a request.
            check: refuses a request, given the context.
        """

        async def one(request: Any, context: Any) -> None:
            await check(request, context)
            async with self._admitted(context):
                await handler.unary_stream(request, context)

        async def many(requests: Any, context: Any) -> None:
            async def each() -> AsyncIterator[Any]:
                async for request in requests:
                    await check(request, context)
                    yield request

            async with self._admitted(context):
                # Written, not yielded: a generator that is cancelled while it waits for a slow
                # reader ends later, in another task.
                async for response in handler.stream_stream(each(), context):
                    await context.write(response)

        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                one, deserialize, handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(many, deserialize, handler.response_serializer)

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._open)

    async def end(self) -> None:
        """End all streams: they have no end of their own, and would delay a drain."""
        self._ending = True
        for task in self._open:
            if task is not None:
                task.cancel()

    @asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[None]:
        """Admit a stream and count it until it ends."""
        if self._ending:
            await self._abort_if_draining(context)
        if len(self._open) >= self._most:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._most} streams are open already; close one, or try again later",
            )
        task = asyncio.current_task()
        self._open.add(task)
        try:
            yield
        except asyncio.CancelledError:
            await self._abort_if_draining(context)
            raise
        finally:
            self._open.discard(task)

    async def _abort_if_draining(self, context: Any) -> None:
        """Tell the client why its stream ends, if the server is stopping."""
        if self._ending:
            await context.abort(DrainingError.code, "the server is stopping; call another one")
