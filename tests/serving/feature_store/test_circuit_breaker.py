"""A service that fails again and again is left alone for a moment."""

import logging
from itertools import repeat

from multigate.serving.feature_store.circuit_breaker import FAILURES, PAUSE, Breaker


def test_it_opens_after_failures_in_a_row_and_lets_one_call_try(caplog):
    now = [0.0]
    breaker = Breaker("the store", lambda: now[0])

    def fail(times):
        for _ in repeat(None, times):
            assert breaker.allows()
            breaker.failed("TimeoutError")

    with caplog.at_level(logging.INFO, "multigate.serving"):
        fail(FAILURES - 1)
        assert breaker.allows()
        breaker.worked()
        fail(FAILURES - 1)  # not in a row with those before
        assert not caplog.records
        fail(1)
        assert not breaker.allows()
        now[0] += 0.9 * PAUSE
        assert not breaker.allows()
        now[0] += 0.2 * PAUSE
        assert breaker.allows()
        assert not breaker.allows()  # one at a time
        breaker.failed("TimeoutError")
        now[0] += 0.9 * PAUSE
        assert not breaker.allows()
        now[0] += 0.2 * PAUSE
        assert breaker.allows()
        breaker.worked()
        assert breaker.allows()
        assert breaker.allows()
    warned, well = [record.getMessage() for record in caplog.records]
    assert warned.startswith("the store: 3 failures in a row, the last one TimeoutError")
    assert well == "the store answers again"
