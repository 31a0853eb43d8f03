"""How many calls a server handles, as the process beside it sees it, which works in the gaps.

The system's idle priority gives a process only the cores that nothing else wants.  But the caches
and the memory's bandwidth are the calls' as well, and a call that comes finds its core taken for a
moment.
"""

import mmap
import os
import tempfile
import weakref

_ROOM = mmap.PAGESIZE


class CallsInFlight:
    """A count that one process changes, and that its child processes read at any time.

    A child opens it by the number of its file, which it gets from
    `subprocess.Popen(pass_fds=[calls.file])`.
    """

    def __init__(self, file: int | None = None) -> None:
        """Make a count of 0, or open that of the process which began this one.

        Args:
            file: of the count to open; None: a new one.

        Raises:
            OSError: the system has no room for it, or no such file.
        """
        self.file = _new_file() if file is None else file
        weakref.finalize(self, os.close, self.file)
        self._count = memoryview(mmap.mmap(self.file, _ROOM)).cast("q")

    @property
    def count(self) -> int:
        """Calls in flight."""
        return self._count[0]

    def begin(self) -> None:
        """Count a call; one thread counts."""
        self._count[0] += 1

    def end(self) -> None:
        """Count a call no more."""
        self._count[0] -= 1


def _new_file() -> int:
    try:
        file = os.memfd_create("calls in flight")
    except (AttributeError, OSError):  # not on Linux, or not allowed, as by vm.memfd_noexec
        with tempfile.TemporaryFile() as on_disk:
            file = os.dup(on_disk.fileno())
    os.truncate(file, _ROOM)
    return file
