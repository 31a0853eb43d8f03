"""Circuit breaker: stops calling a service that failed several times in a row, then tries again.

Without it, every call would wait for the time limit of a store that hangs, and block a thread
meanwhile.  After a pause, one call tries the service; the others skip it until that call succeeds.
"""

import logging
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("multigate.serving")

MAX_FAILURES = 3
"""Failures in a row that open the circuit."""
PAUSE_SECONDS = 1.0
"""How long the circuit stays open before one call tries again."""


class CircuitBreaker:
    """Decides whether to call a service; thread-safe."""

    def __init__(self, service: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Make a breaker whose circuit is closed: every call goes through.

        Args:
            service: its name in the log.
            clock: seconds.
        """
        self._service = service
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    def allows_call(self) -> bool:
        """Whether to call the service now; after a pause, only one caller gets True."""
        with self._lock:
            if self._failures < MAX_FAILURES:
                return True
            if self._clock() < self._open_until:
                return False
            self._open_until = self._clock() + PAUSE_SECONDS
            return True

    def record_success(self) -> None:
        """The service answered: close the circuit."""
        with self._lock:
            was_open, self._failures = self._failures >= MAX_FAILURES, 0
        if was_open:
            LOG.info("%s answers again", self._service)

    def record_failure(self, reason: str) -> None:
        """The service did not answer; opens the circuit after `MAX_FAILURES` in a row."""
        with self._lock:
            self._failures += 1
            self._open_until = self._clock() + PAUSE_SECONDS
            opens = self._failures == MAX_FAILURES
        if opens:
            LOG.warning(
                "%s: failed %d times in a row, last with %s; now tried once every %g s",
                self._service,
                MAX_FAILURES,
                reason,
                PAUSE_SECONDS,
            )
