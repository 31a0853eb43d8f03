"""Questions from the supervisor to a worker, over a pipe, one at a time."""

import itertools
import threading
import time
from multiprocessing.connection import Connection
from typing import Any


class GoneError(Exception):
    """The worker is dead, not ready, or does not answer."""


class Ask:
    """Asks the process at the other end of a pipe; safe to share between threads."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def __call__(self, question: Any, seconds: float) -> Any:
        """The answer to one question.

        Raises:
            GoneError: there was none within so many seconds.
        """
        with self._lock:
            number = next(self._numbers)
            until = time.monotonic() + seconds
            try:
                self._pipe.send((number, question))
                while self._pipe.poll(max(until - time.monotonic(), 0)):
                    answered, answer = self._pipe.recv()
                    if answered == number:  # an older number: its asker waits no longer
                        return answer
            except (EOFError, OSError) as error:
                raise GoneError(str(error)) from None
        raise GoneError(f"no answer within {seconds} s")
