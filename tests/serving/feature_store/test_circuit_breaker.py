"""The circuit breaker of the feature store."""

import logging
from itertools import repeat

from multigate.serving.feature_store.circuit_breaker import (
    MAX_FAILURES,
    PAUSE_SECONDS,
    CircuitBreaker,
)


def test_it_opens_after_failures_in_a_row_and_lets_one_call_try(caplog):
    now = [0.0]
    breaker = CircuitBreaker("the store", lambda: now[0])

    def fail(times):
        for _ in repeat(None, times):
            assert breaker.allows_call()
            breaker.record_failure("TimeoutError")

    with caplog.at_level(logging.INFO, "multigate.serving"):
        fail(MAX_FAILURES - 1)
        assert breaker.allows_call()
        breaker.record_success()
        fail(MAX_FAILURES - 1)  # not in a row with those before
        assert not caplog.records
        fail(1)
        assert not breaker.allows_call()
        now[0] += 0.9 * PAUSE_SECONDS
        assert not breaker.allows_call()
        now[0] += 0.2 * PAUSE_SECONDS
        assert breaker.allows_call()
        assert not breaker.allows_call()  # one at a time
        breaker.record_failure("TimeoutError")
        now[0] += 0.9 * PAUSE_SECONDS
        assert not breaker.allows_call()
        now[0] += 0.2 * PAUSE_SECONDS
        assert breaker.allows_call()
        breaker.record_success()
        assert breaker.allows_call()
        assert breaker.allows_call()
    warned, well = [record.getMessage() for record in caplog.records]
    assert warned.startswith("the store: failed 3 times in a row, last with TimeoutError")
    assert well == "the store answers again"
