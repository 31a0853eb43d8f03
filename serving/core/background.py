"""Background work: its threads begin again when they fail, and do not slow calls down."""

import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("multigate.serving")

_LATE: list[threading.Thread] = []
"""Threads that did not end when they were to."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before work that failed begins again; doubled each time that it fails soon after."""


class SupervisedThread:
    """A background thread that never dies unnoticed.

    Work that raises an exception is logged, counted and begun again after a pause; work that
    returns ends the thread.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        failed: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Make a thread that has not started.

        Args:
            name: of the thread.
            work: what it does; called again after each failure.
            failed: called with the name after each failure, to count it.
        """
        self._name = name
        self._work = work
        self._failed = failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the work."""
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the work ends, if it was started; it does not begin again.

        Args:
            seconds: the longest wait; None: without limit.
        """
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            _LATE.append(self._thread)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                self._work()
                return
            except Exception:
                LOG.exception("thread %s failed; it begins again in %g s", self._name, pause)
                self._tell()
            if self._ending.wait(pause):
                return
            lasted = time.monotonic() - began
            pause = _FIRST_PAUSE if lasted > 2 * _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)

    def _tell(self) -> None:
        try:
            self._failed(self._name)
        except Exception:  # such as no memory for it: the work goes on all the same
            LOG.exception("the failure of thread %s is not counted", self._name)


def end_without_hanging_threads() -> None:
    """End this process, whose work is done, at once if a background thread hangs.

    Python's own end waits for requests to object stores, for a minute where the store hangs.
    """
    if hanging := sorted(thread.name for thread in _LATE if thread.is_alive()):
        LOG.warning("the process ends without threads that hang: %s", ", ".join(hanging))
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def lower_priority() -> None:
    """Give this thread a lower CPU priority than the threads that answer calls, on Linux."""
    with contextlib.suppress(OSError, AttributeError):  # other systems change the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def freeze_garbage_collector() -> None:
    """Have the garbage collector ignore all objects that exist now, such as imported modules.

    With TensorFlow there are half a million of them.  A full collection, which loading a version
    triggers, would stop every thread for some 200 ms to look at each.  What is frozen and becomes
    part of a circle stays: this is for what lives as long as the process.
    """
    gc.collect()
    gc.freeze()
