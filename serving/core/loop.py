"""The event loop in which all servers of a process answer their calls, and threads beside it.

One thread reads requests and makes answers; the model runs in others.  With one thread per call,
each call would change threads several times, and all threads would compete for the interpreter: on
two cores that costs more than the loop does (docs/results/serving.md).
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

_SWITCH_INTERVAL = 0.0002
"""Seconds for which a thread keeps the interpreter while others want it.  Python's default, 5 ms,
is longer than a whole call: a run of the model would wait that long for the loop, or the loop for
the loading of a version."""


class CallLoop:
    """A loop in its own thread; gRPC allows one loop per process, so all servers share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._default_interval = 0.0
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def enter(self) -> None:
        """Start the loop, if it does not run, and keep it until `leave`."""
        with self._lock:
            if self._users == 0:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="calls", daemon=True
                )
                self._thread.start()
                self._default_interval = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_INTERVAL, self._default_interval))
            self._users += 1

    def leave(self) -> None:
        """Stop the loop if no other server uses it, once all its tasks have ended."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.submit(_all_tasks_ended()).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            sys.setswitchinterval(self._default_interval)

    def submit(self, work: Coroutine[Any, Any, T]) -> "futures.Future[T]":
        """Run a coroutine in the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Callable[[], object]) -> None:
        """Have the loop call a function soon, from another thread.

        Raises:
            RuntimeError: the loop has ended.
        """
        self._loop.call_soon_threadsafe(work)


CALLS = CallLoop()


class LoopLag:
    """Measures how late the loop comes to what is due: for so long a call waits, whatever it is.

    A call that holds the loop up, a thread that keeps the interpreter, and a machine that gives
    the process no time all show here.
    """

    EVERY = 0.01
    """Seconds; a stall is measured as up to so much shorter than it is."""

    def __init__(self, observe: Callable[[float], object]) -> None:
        """Make a measurement that has not started.

        Args:
            observe: takes the seconds by which each look was late.
        """
        self._observe = observe
        self._loop: asyncio.AbstractEventLoop
        self._due = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; called in the loop."""
        self._loop = asyncio.get_running_loop()
        self._wait()

    def stop(self) -> None:
        """End; called in the loop."""
        if self._next is not None:
            self._next.cancel()

    def _wait(self) -> None:
        self._due = self._loop.time() + self.EVERY
        self._next = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        # A timer may run a little early, by the resolution of the loop's clock.
        self._observe(max(self._loop.time() - self._due, 0.0))
        self._wait()


async def _all_tasks_ended() -> None:
    """Wait for all other tasks, such as a call whose run of the model cannot be interrupted."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


class Threads:
    """A pool for work that waits or takes long, so that the loop can go on with other calls."""

    def __init__(self, count: int) -> None:
        self._pool = futures.ThreadPoolExecutor(count, "call")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `work` in a thread and wait for it; its log lines carry the fields of this call.

        If the call is cancelled before a thread is free, the work is not done.
        """
        context = contextvars.copy_context()
        task = self._pool.submit(context.run, for_future(partial(work, *args, **kwargs)))
        running = asyncio.wrap_future(task)
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            if not task.cancel():  # it has started
                await ended(running)
            raise
        try:
            return running.result()
        finally:
            # An exception knows this frame, and the frame the future with the exception: of such a
            # circle, what the work had read stays until the garbage collector stops all threads.
            del running, task

    async def run_if(
        self, long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do `work` in a thread if it takes long; otherwise in the loop, which costs less."""
        return await self.run(work, *args, **kwargs) if long else work(*args, **kwargs)

    def close(self) -> None:
        """Wait for the work that has started."""
        self._pool.shutdown()


def for_future(work: Callable[P, T]) -> Callable[P, T]:
    """Work that raises RuntimeError in place of StopIteration.

    An asyncio future refuses StopIteration: the call that waits for it would wait for ever.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError("the work raised StopIteration") from error

    return call


async def ended(work: "asyncio.Future[Any]") -> None:
    """Wait until work in a thread has ended; it cannot be cancelled.

    The work uses what its call holds, such as a version: the call must not release it earlier.
    """
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    work.exception()  # else asyncio would log that nobody read it
