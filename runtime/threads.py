"""Threads in which models run, as many as there have been runs at once."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from typing import Any

_Given = SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]]


class RunThreads:
    """Runs work in the thread that has ended its work last, or in a new one where all are busy.

    They outlive versions: if each version had its own, they would take another of glibc's arenas at
    every swap, and each arena keeps what the runs in it freed, 8 MiB for Deskdrop.  A run that
    hangs keeps its thread, and no other.

    `concurrent.futures.ThreadPoolExecutor` needs a bound, which hung runs would reach, and reaches
    it without need: it starts another thread where one is about to be idle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Given] = []
        """What the idle threads take their work from; the last one was busy last."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Do `work` in a thread.

        Raises:
            RuntimeError: no thread can be started.
        """
        future: Future[Any] = Future()
        with self._lock:
            given = self._idle.pop() if self._idle else None
        if given is None:
            given = SimpleQueue()
            threading.Thread(target=self._serve, args=(given,), name="model", daemon=True).start()
        given.put((future, work, args))
        return future

    def _serve(self, given: _Given) -> None:
        while True:
            self._do(given, *given.get())

    def _do(
        self, given: _Given, future: Future[Any], work: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        failed = None
        try:
            result = work(*args)
        except BaseException as error:
            failed = error
        with self._lock:  # before anyone learns of the end: what comes next finds this thread idle
            self._idle.append(given)
        if failed is None:
            future.set_result(result)
        else:
            future.set_exception(failed)
        # The exception knows this frame, and the frame would know the exception.
        del future, failed


@cache
def run_threads() -> RunThreads:
    """Those of this process."""
    return RunThreads()
