"""Limits runs of the signatures that are not joined: those that the contract does not describe.

Examples are `classify`, `watch` and `rank_items`.  `serving.versions.batching` runs the others.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from multigate.serving.core.logs import say_run
from multigate.serving.core.status import Call, OverloadedError
from multigate.serving.core.tracing import step


class RunSlots:
    """So many runs at once, and so many calls that wait for one; used in the event loop only."""

    def __init__(self, model: str, slots: int, max_queued: int) -> None:
        """Make free slots.

        Args:
            model: name of the model, for messages.
            slots: most runs at once.
            max_queued: most calls that wait.
        """
        self._model = model
        self._free = asyncio.Semaphore(slots)
        self._max_queued = max_queued
        self._queued = 0

    @asynccontextmanager
    async def hold(self, call: Call) -> AsyncIterator[None]:
        """Hold a slot during the block; a call that is cancelled leaves the queue.

        Raises:
            OverloadedError: the queue is full.
            TooLateError: the call's deadline passed in the queue.
        """
        if self._free.locked() and self._queued >= self._max_queued:
            raise OverloadedError(
                f"model {self._model!r}: {self._max_queued} calls wait already; try again later, "
                "or call another server"
            )
        self._queued += 1
        try:
            with step("queue"):
                await self._free.acquire()
        finally:
            self._queued -= 1
        try:
            call.check("in the queue")
            began = time.perf_counter()
            with step("run"):
                yield
            say_run(time.perf_counter() - began)
        finally:
            self._free.release()
