"""A process beside the server, which does what would hold the server's interpreter or cores.

It answers one question after the other over a pipe, and ends with its server: then the pipe is
closed.  `concurrent.futures.ProcessPoolExecutor` was considered: server processes under
`--workers` are daemons, which may have no children of multiprocessing.

This module imports little: the process has its priority before it imports what it works with.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal

Priority = Literal["as the server", "lower", "idle"]
"""`idle` runs only while nothing else wants a core, where the system has such a thing."""


class ChildError(Exception):
    """The process died, hangs, or could not be started; says which of them."""


class Child:
    """A process that answers questions; `ask` starts it, and starts it anew where it has died."""

    def __init__(
        self,
        module: str,
        priority: Priority,
        longest: float,
        *arguments: Any,
        files: Sequence[int] = (),
    ) -> None:
        """Make one whose process does not run yet.

        Args:
            module: whose `main` gets the process's end of the pipe, and the arguments.
            priority: beside that of the server.
            longest: seconds after which a process that does not answer is ended.
            arguments: can be pickled.
            files: open ones that the process has under the same numbers.
        """
        self._module = module
        self._priority = priority
        self._longest = longest
        self._arguments = arguments
        self._files = files
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Of the process; None where none runs."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process if it does not run.

        Raises:
            OSError: the system starts no process.
        """
        with self._lock:
            if self._closed or self._process is not None:
                return
            ours, its = Pipe()
            with its:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", __name__),
                        *(str(its.fileno()), self._priority, self._module),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[its.fileno(), *self._files],
                )
            self._pipe = ours
            ours.send(self._arguments)

    def ask(self, question: Any) -> Any:
        """The process's answer; one thread asks.

        Args:
            question: can be pickled.

        Raises:
            ChildError: it died, hangs, cannot be started, or is closed.
        """
        try:
            self.start()
            pipe = self._pipe
            if pipe is None:
                raise EOFError
            pipe.send(question)
            if pipe.poll(self._longest):
                return pipe.recv()
            reason = f"did not answer within {self._longest:g} s"
        except (EOFError, OSError) as error:
            reason = "has ended" if isinstance(error, EOFError) else f"has ended: {error}"
        self.end()
        raise ChildError(reason)

    def close(self) -> None:
        """End the process for good."""
        self._closed = True
        self.end()

    def end(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            process, self._process = self._process, None
            # Not closed: another thread may wait at it.  It closes with its last reference.
            self._pipe = None
        if process is not None:
            process.kill()
            process.wait()


def take_priority(priority: Priority) -> None:
    """Give this process, whose other threads do not run yet, its priority."""
    if priority == "idle":
        with contextlib.suppress(OSError, AttributeError):  # not on Linux, or not allowed
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            return
    os.nice({"as the server": 0, "lower": 5, "idle": 19}[priority])


def _begin(pipe: Connection, priority: Priority, module: str) -> None:
    for one in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group
        signal.signal(one, signal.SIG_IGN)
    take_priority(priority)
    with contextlib.suppress(EOFError, OSError):  # the server has ended
        importlib.import_module(module).main(pipe, *pipe.recv())


if __name__ == "__main__":
    _begin(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3])  # type: ignore[arg-type]
