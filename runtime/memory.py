"""What a process keeps of memory that it no longer needs: freed pieces, code that ran once."""

import contextlib
import ctypes
import mmap
import re
import time
from collections.abc import Iterator
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
_LARGE_CODE = 8 << 20
"""Of the code of one library that is worth the walk."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")
_KEPT_BYTES = 64 << 20
_LARGEST_BYTES = 32 << 20
"""Of one piece; glibc takes no larger number."""
_LARGE_PIECE = 128 << 10
"""Bytes; as a piece of 64 KiB or more is freed, glibc looks whether its arena ends in free ones."""


def keep_freed() -> None:
    """Let each thread keep what its runs free; nothing in C libraries that cannot.

    A run of 800 rows takes and frees some ten pieces of 3 MB.  By default glibc gives such pieces
    back as they are freed, and the system clears the pages that the next run takes: a joined run of
    the Deskdrop model then costs up to twice the CPU time.

    The number of glibc's arenas stays at its eight for each core.  With one or two in all, the
    loop, gRPC and the model's threads share them, and calls cost 7 to 10 % more CPU time; memory
    rises as much (docs/results/serving.md).  To be called before threads begin.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


class FreedMemory:
    """What loads and closes of versions leave behind, given back once a swap is over.

    TensorFlow frees a version in pieces, which glibc keeps.  The process would stay as large as it
    ever was with two versions, and that is a little more from time to time, such as where calls of
    the version before end late: its memory would rise for half an hour of swaps.

    Giving back costs some 20 ms, and the next load has to take the memory again.  So where one swap
    follows another it waits for several: what two versions take is bounded, and the slowest calls
    then are not those that waited for memory.
    """

    SETTLED = 1.0
    """Seconds without a change after which memory goes back."""
    LONGEST = 10.0
    """Seconds after the first change at which it does while changes go on."""

    def __init__(self) -> None:
        self._changed: tuple[float, float] | None = None
        """Monotonic seconds of the first and the last change since memory went back."""
        self._started = False

    def change(self) -> None:
        """Say that a version was loaded or closed."""
        if not self._started:
            self._started = True
            leave_unused_code()
        now, changed = time.monotonic(), self._changed  # once: another thread may give back now
        self._changed = (now if changed is None else changed[0], now)

    def give_back(self) -> None:
        """Give memory back if there is some and it is time to; for the thread that loads."""
        if self._changed is None:
            return
        first, last = self._changed
        now = time.monotonic()
        if now - last >= self.SETTLED or now - first >= self.LONGEST:
            self._changed = None
            return_freed()


def return_freed() -> None:
    """Give freed memory back, without the interpreter; nothing in C libraries that cannot.

    glibc looks at one arena after the other, and holds up the threads that use it meanwhile.  Most
    of the time, some 20 ms for Deskdrop, goes to the arena of the thread that loads.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.malloc_trim(ctypes.c_size_t(0))
        # It leaves the end of every arena but the process's first: for the thread that loads, up to
        # what a version takes.  That of this thread goes as a large piece is freed.
        library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        piece = library.malloc(ctypes.c_size_t(_LARGE_PIECE))
        library.mallopt(_TRIM_THRESHOLD, 0)
        library.free(piece)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def leave_unused_code() -> None:
    """Let the system take back the code of large libraries that only start or load has run.

    TensorFlow runs most of its code once, to register its kernels, and 220 MiB of it stay in the
    process.  What calls do run comes back from the system's cache of files as they run it.  Nothing
    on systems without Linux's `/proc`.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None, use_errno=True).madvise
        for begin, size in _unchanged_code(Path("/proc/self/smaps").read_text()):
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _unchanged_code(smaps: str) -> Iterator[tuple[int, int]]:
    """Addresses and sizes of large mappings of code that are as in their files.

    A page that the process has changed, as a loader does that writes addresses into code, would be
    lost: such a mapping is left alone.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if found := _MAPPING.match(line):
            begin, end = (int(one, 16) for one in found.groups()[:2])
            is_code = found[3] == "r-xp" and found[4].startswith("/")
            mapping = (begin, end - begin) if is_code and end - begin >= _LARGE_CODE else None
        elif mapping is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0:
                yield mapping
            mapping = None
