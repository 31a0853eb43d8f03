"""Workers of tests are never too slow."""

import pytest

from multigate.serving.workers import supervisor
from multigate.serving.workers.supervisor import Slot


@pytest.fixture(scope="module", autouse=True)
def usual_ask():
    """Workers have longer for every answer, so that a slow machine replaces none, nor leaves one
    out of the metrics; yields what it replaces."""
    usual = Slot.ask

    def ask(slot, order, seconds=0.0):
        return usual(slot, order, max(seconds, 100.0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slot, "ask", ask)
        patch.setattr(supervisor, "_METRICS_HELD", 100.0)
        yield usual
