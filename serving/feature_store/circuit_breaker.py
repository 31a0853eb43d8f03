"""Leaves a service alone for a moment that has failed several times in a row.

Without it every call would wait out the time limit of a store that hangs, and keep a thread for
as long.  After the pause one call tries; the others go on without, until it has succeeded.
"""

import logging
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("multigate.serving")

FAILURES = 3
"""In a row, after which the service is left alone."""
PAUSE = 1.0
"""Seconds until it is tried again."""


class Breaker:
    """Says whether a service is worth asking; safe to share between threads."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch over a service.

        Args:
            what: names it in the log.
            clock: in seconds.
        """
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    def allows(self) -> bool:
        """Whether to ask now; whoever is let through after a pause is the only one."""
        with self._lock:
            if self._failures < FAILURES:
                return True
            if self._clock() < self._until:
                return False
            self._until = self._clock() + PAUSE
            return True

    def worked(self) -> None:
        """The service has answered."""
        with self._lock:
            was_open, self._failures = self._failures >= FAILURES, 0
        if was_open:
            LOG.info("%s answers again", self._what)

    def failed(self, reason: str) -> None:
        """The service has not answered."""
        with self._lock:
            self._failures += 1
            self._until = self._clock() + PAUSE
            opens = self._failures == FAILURES
        if opens:
            LOG.warning(
                "%s: %d failures in a row, the last one %s; it is asked once in %g s",
                self._what,
                FAILURES,
                reason,
                PAUSE,
            )
