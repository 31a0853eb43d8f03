"""The event loop in which a process's servers answer their calls, and threads beside it.

One thread reads requests and makes answers; the model runs in others.  With a thread per call each
call changes threads several times, and all of them queue for the interpreter: on two cores that
costs more than the loop does (docs/results/serving.md).
"""

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent import futures
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_TURN = 0.0002
"""Seconds for which a thread keeps the interpreter while others want it.  Python's own 5 ms are
more than a whole call takes: a run of the model would wait so long for the loop, or the loop for
the loading of a version."""


class CallLoop:
    """A loop in a thread of its own; the servers of a process share it, as gRPC wants one alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._usual_turn = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def enter(self) -> None:
        """Keep the loop going until `leave`."""
        with self._lock:
            if self._users == 0:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="calls", daemon=True
                )
                self._thread.start()
                self._usual_turn = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN, self._usual_turn))
            self._users += 1

    def leave(self) -> None:
        """End the loop, if nobody else needs it, once all that it works on has ended."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.submit(_rest()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            sys.setswitchinterval(self._usual_turn)

    def submit(self, work: Coroutine[Any, Any, T]) -> "futures.Future[T]":
        """Run a coroutine in the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)


CALLS = CallLoop()


async def _rest() -> None:
    """Wait for all other tasks, such as that of a call whose run cannot be cut short."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


class Threads:
    """Where calls do what may wait or take long, so that the loop goes on with others."""

    def __init__(self, count: int) -> None:
        self._pool = futures.ThreadPoolExecutor(count, "call")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Wait for `work` in a thread; what it logs is told of the same call.

        A call that is cancelled before a thread is free leaves no work behind.
        """
        context = contextvars.copy_context()
        task = self._pool.submit(context.run, partial(work, *args, **kwargs))
        running = asyncio.wrap_future(task)
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            if not task.cancel():  # it has begun
                await ended(running)
            raise
        return running.result()

    async def run_if(
        self, long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do `work` in a thread where it takes long, and in the loop where that is less work."""
        return await self.run(work, *args, **kwargs) if long else work(*args, **kwargs)

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()


async def ended(work: "asyncio.Future[Any]") -> None:
    """Wait until work in a thread has ended, which cannot be cancelled.

    It uses what its call holds, such as an open version, and the call must not let go of it before.
    """
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    work.exception()  # nobody else will ask, and asyncio would complain of that
