"""Gives memory that the C library keeps back to the system."""

import contextlib
import ctypes
import time


class FreedMemory:
    """What loads and closes of versions leave behind, given back once they are over.

    TensorFlow frees a version in pieces, which glibc keeps: the process would stay as large as
    with two versions.  Giving them back holds up threads that take memory meanwhile, and the next
    load would take them again: so it waits until swaps are over.
    """

    SETTLED = 10.0
    """Seconds without a change after which memory goes back."""

    def __init__(self) -> None:
        self._changed: float | None = None
        """Monotonic seconds of the last change since memory went back."""

    def change(self) -> None:
        """Say that a version was loaded or closed."""
        self._changed = time.monotonic()

    def give_back_when_settled(self) -> None:
        """Give memory back if there is some and the last change is long past."""
        if self._changed is not None and time.monotonic() - self._changed >= self.SETTLED:
            self._changed = None
            return_freed()


def return_freed() -> None:
    """Give freed memory back, without the interpreter; nothing in C libraries that cannot."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
