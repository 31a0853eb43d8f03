"""Requests and answers over a pipe between the supervisor and a worker, many at a time.

`multiprocessing.managers` was considered: it opens a socket per process and a thread per caller,
and its proxies wait without a time limit.
"""

import contextlib
import itertools
import logging
import queue
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

LOG = logging.getLogger("multigate.serving")


class LinkError(Exception):
    """There is no answer."""


class DisconnectedError(LinkError):
    """The process at the other end is dead or not ready."""


class AnswerTimeoutError(LinkError):
    """The other process may live, but does not answer in time."""


class PeerError(LinkError):
    """The other process failed to answer this request; its log says why."""


@dataclass(frozen=True)
class _Failure:
    """Sent in place of an answer."""

    reason: str


@dataclass(frozen=True)
class _Answer:
    """What the thread that reads the pipe hands to the caller; None: the process has ended."""

    value: Any


class PipeServer:
    """The end of a pipe that answers, from several threads."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def receive(self) -> tuple[int, Any]:
        """The next request, with the number for its answer; one thread may wait here.

        Raises:
            EOFError: the process that asks is gone.
            OSError: likewise.
        """
        number, request = self._pipe.recv()
        return number, request

    def send(self, number: int, answer: Any) -> None:
        """Answer a request; does nothing where the process that asked is gone."""
        try:
            self._write(number, answer)
        except Exception as error:  # such as an answer that cannot be pickled
            self.fail(number, error)

    def fail(self, number: int, error: Exception) -> None:
        """Log the error, and tell the process that asked that there will be no answer."""
        LOG.error("a request of another process failed", exc_info=error)
        self._write(number, _Failure(repr(error)))

    def _write(self, number: int, answer: Any) -> None:
        with self._lock, contextlib.suppress(OSError):  # `receive` meets the same error
            self._pipe.send((number, answer))


class PipeClient:
    """The end of a pipe that asks, from several threads; a slow answer delays no other."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[_Answer | None]] = {}
        self._disconnected = False
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
        self._reader.start()

    def __call__(self, request: Any, seconds: float | None = None) -> Any:
        """The answer to one request.

        Args:
            request: what `PipeServer.receive` returns.
            seconds: how long to wait; None: as long as the other process lives.

        Raises:
            AnswerTimeoutError: no answer came in time.
            DisconnectedError: the other process is dead.
            PeerError: the other process failed to answer.
        """
        answers: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
        with self._lock:
            if self._disconnected:
                raise DisconnectedError("the process has ended")
            number = next(self._numbers)
            try:
                self._pipe.send((number, request))
            except OSError as error:
                raise DisconnectedError(str(error)) from None
            # The reader takes the lock to find this entry, so that it cannot come too early.
            self._waiting[number] = answers
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise AnswerTimeoutError(f"no answer within {seconds:g} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer is None:
            raise DisconnectedError("the process has ended")
        if isinstance(answer.value, _Failure):
            raise PeerError(answer.value.reason)
        return answer.value

    def close(self) -> None:
        """Close the pipe once the other process has ended."""
        self._reader.join()
        self._pipe.close()

    def _read(self) -> None:
        try:
            while True:
                number, value = self._pipe.recv()
                with self._lock:
                    if (answers := self._waiting.get(number)) is not None:
                        answers.put(_Answer(value))  # else its caller no longer waits
        except (EOFError, OSError):
            pass
        except Exception:
            LOG.exception("an answer of another process cannot be read; the link to it ends")
        finally:
            with self._lock:
                self._disconnected = True
                for answers in self._waiting.values():
                    answers.put(None)
