"""Gaps between a server's calls, in which a process beside it works and touches none of them.

The system's idle priority gives that process only the cores that nothing else wants.  But it has
caches and the memory's bandwidth in common with the calls, and holds a core for a moment when one
comes: on two cores that made every tenth call 3 ms later (docs/results/serving.md).
"""

import time

from multigate.runtime.cores import cores
from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.core.options import ServerOptions

LONGEST_WAIT = 0.02
"""Seconds: where calls leave no gap, work goes on, slowly."""
WORK_SECONDS = 4e-3
"""Of work after such a wait: what a run takes.  Where each small piece waited, a call that is
always in flight, such as one that waits for a store, would have most of the work dropped."""
_LOOK_SECONDS = 5e-4
_BESIDE_RUNS = 2
"""Cores that a server wants besides those of its runs: its loop, and gRPC's threads."""


class Gaps:
    """Waits for moments in which the server handles no call, if it can want every core."""

    def __init__(self, calls: CallsInFlight, options: ServerOptions) -> None:
        """Look how many cores there are.

        Args:
            calls: of the server.
            options: of the server, of whose workers it is one.
        """
        self._calls = calls
        self._needed = _wants_every_core(options)
        self._next_wait = 0.0
        """Monotonic seconds before which there is none."""

    def wait(self) -> None:
        """Wait until no call is in flight; without a gap, `LONGEST_WAIT` for `WORK_SECONDS`."""
        now = time.monotonic()
        if not self._needed or now < self._next_wait:
            return
        until = now + LONGEST_WAIT
        while self._calls.count:
            if time.monotonic() >= until:
                self._next_wait = time.monotonic() + WORK_SECONDS
                return
            time.sleep(_LOOK_SECONDS)


def _wants_every_core(options: ServerOptions) -> bool:
    """Whether a worker can want its share of the cores so that none is left."""
    inside = options.tensorflow_intra_op_parallelism
    between = options.tensorflow_inter_op_parallelism
    if 0 in (inside, between):  # TensorFlow takes as many threads as there are cores
        return True
    # Runs share these threads; an operation's first one is the run's own, and -1 stands for none.
    of_runs = options.batch_slots + inside - 1 + max(between, 0)
    return cores() / options.workers < of_runs + _BESIDE_RUNS + 1
