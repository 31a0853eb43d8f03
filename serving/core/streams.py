"""Calls of many messages, which are health's Watch and reflection: how many, and how they end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from multigate.serving.core.status import DrainingError

Check = Callable[[Any, Any], Awaitable[None]]


class Streams:
    """The streams that are open; there is room for so many, and the rest is for other calls."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[asyncio.Task[Any] | None] = set()
        self._ending = False

    def wrap(self, handler: Any, deserialize: Callable[[bytes], Any], check: Check) -> Any:
        """The handler of a method with streams.

        Args:
            handler: the service's.
            deserialize: reads a request.
            check: refuses one, given the context.
        """

        async def one(request: Any, context: Any) -> None:
            await check(request, context)
            async with self._place(context):
                await handler.unary_stream(request, context)

        async def many(requests: Any, context: Any) -> None:
            async def each() -> AsyncIterator[Any]:
                async for request in requests:
                    await check(request, context)
                    yield request

            async with self._place(context):
                # Not yielded on: a generator that is cancelled while a slow reader lets it wait
                # ends in another task, some other time.
                async for response in handler.stream_stream(each(), context):
                    await context.write(response)

        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                one, deserialize, handler.response_serializer
            )
        return grpc.stream_stream_rpc_method_handler(many, deserialize, handler.response_serializer)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    async def end(self) -> None:
        """End what has no end of its own, and would keep a server that drains waiting."""
        self._ending = True
        for task in self._open:
            if task is not None:
                task.cancel()

    @asynccontextmanager
    async def _place(self, context: Any) -> AsyncIterator[None]:
        """A stream's place, until it ends."""
        if self._ending:
            await self._end_of(context)
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
            await self._end_of(context)
            raise
        finally:
            self._open.discard(task)

    async def _end_of(self, context: Any) -> None:
        """Say why, where it is the server that ends."""
        if self._ending:
            await context.abort(DrainingError.code, "the server is stopping; call another one")
