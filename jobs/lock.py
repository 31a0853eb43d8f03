"""A lock between processes that a killed process cannot leave behind.

The system holds the lock (`flock`) as long as the process lives; the file's text only says who
holds it. On a shared folder it works between machines if the file system supports `flock` (NFS 4
does).
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from multigate.configs.errors import RunError

_PAUSE = 0.1  # s between attempts


@contextmanager
def locked(path: Path, purpose: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock for the length of a block.

    Args:
        path: the lock's file, in a folder that exists.
        purpose: what is done under the lock, for the message to others.
        wait: seconds to wait while another process holds it.

    Raises:
        RunError: another process holds it; the message names the process.
    """
    with path.open("a+", encoding="utf-8") as file:
        deadline = time.monotonic() + wait
        while not _try_lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise RunError(
                    f"{path}: held by {_holder(path)}; wait until it ends, or end it: the lock "
                    "goes with the process"
                )
            time.sleep(_PAUSE)
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(f"{purpose} (process {os.getpid()} on {socket.gethostname()}, since {now})")
        file.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a process holds the lock now."""
    if not path.exists():
        return False
    with path.open("r", encoding="utf-8") as file:
        return not _try_lock(file.fileno(), fcntl.LOCK_SH)  # closing the file releases it


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() or "another process"
