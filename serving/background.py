"""What keeps work beside the calls, such as loading a version, from being felt by callers."""

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

_TURN = 0.0005
"""Seconds for which a thread keeps the interpreter while others want it; Python's own 5 ms are more
than a whole call takes, and a call takes the interpreter several times."""


def lower_priority() -> None:
    """Give this thread less of the CPUs than those that answer calls, where the system can."""
    with contextlib.suppress(OSError, AttributeError):  # of this thread alone, on Linux
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


class _Turns:
    """How long a thread keeps the interpreter; shared by all that shorten it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._usual = 0.0

    @contextlib.contextmanager
    def short(self) -> Iterator[None]:
        """Hand the interpreter on more often until the block ends."""
        with self._lock:
            if self._working == 0:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN, self._usual))
            self._working += 1
        try:
            yield
        finally:
            with self._lock:
                self._working -= 1
                if self._working == 0:
                    sys.setswitchinterval(self._usual)


short_turns = _Turns().short


def keep_what_is_imported() -> None:
    """Spare the garbage collector what this process will hold to its end.

    With TensorFlow half a million objects are, and looking at all of them stops every thread for
    some 200 ms, which loading a version brings about.
    """
    gc.collect()
    gc.freeze()
