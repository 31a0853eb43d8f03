"""Questions and answers over a pipe between the supervisor and a worker, many at a time."""

import contextlib
import itertools
import queue
import threading
from multiprocessing.connection import Connection
from typing import Any


class GoneError(Exception):
    """The process at the other end is dead, not ready, or does not answer."""


class LateError(GoneError):
    """It may live, but does not answer in time."""


class Replies:
    """One end of a pipe, to answer from several threads."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def next(self) -> tuple[int, Any]:
        """The next question, with the number that its answer must have; one thread may wait.

        Raises:
            EOFError: who asks is gone.
            OSError: likewise.
        """
        number, question = self._pipe.recv()
        return number, question

    def send(self, number: int, answer: Any) -> None:
        """Answer a question; nothing happens where nobody is there any more."""
        with self._lock, contextlib.suppress(OSError):  # asking for the next one finds the same
            self._pipe.send((number, answer))


class Ask:
    """The other end, to ask from several threads; a long answer keeps no other one waiting."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[tuple[Any, ...]]] = {}
        self._gone = False
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
        self._reader.start()

    def __call__(self, question: Any, seconds: float | None = None) -> Any:
        """The answer to one question.

        Args:
            question: what `Replies.next` gives.
            seconds: how long to wait; without, as long as the other process lives.

        Raises:
            LateError: there was none within so many seconds.
            GoneError: the other process is dead.
        """
        answers: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        with self._lock:
            if self._gone:
                raise GoneError("the process has ended")
            number = next(self._numbers)
            self._waiting[number] = answers
            try:
                self._pipe.send((number, question))
            except OSError as error:
                del self._waiting[number]
                raise GoneError(str(error)) from None
        try:
            answer = answers.get(timeout=seconds)
        except queue.Empty:
            raise LateError(f"no answer within {seconds:g} s") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if not answer:
            raise GoneError("the process has ended")
        return answer[0]

    def close(self) -> None:
        """Close the pipe once the other process has ended."""
        self._reader.join()
        self._pipe.close()

    def _read(self) -> None:
        try:
            while True:
                number, answer = self._pipe.recv()
                with self._lock:
                    if (answers := self._waiting.get(number)) is not None:
                        answers.put((answer,))  # else its asker waits no longer
        except (EOFError, OSError):
            with self._lock:
                self._gone = True
                for answers in self._waiting.values():
                    answers.put(())
