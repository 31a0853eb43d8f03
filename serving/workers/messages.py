"""What the supervisor and a worker send to each other; see `link` for how.

Models and records travel pickled, as bytes: the supervisor only passes them on, and unpickling them
would import TensorFlow.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Served:
    """Models that all workers serve, or are to serve."""

    configs: bytes
    """Pickled."""
    file: bytes | None
    """Content of `--model_config_file` that asked for them; None where it is not polled, or where a
    reload request asked for them."""


@dataclass(frozen=True)
class Ready:
    """A worker's first message: it serves."""

    serving: str
    """Models and versions, in words."""
    served: Served


@dataclass(frozen=True)
class Failed:
    """A worker's first and last message: it cannot serve."""

    reason: str


@dataclass(frozen=True)
class Stop:
    """To a worker: drain, or end the calls in flight at once."""

    at_once: bool = False


@dataclass(frozen=True)
class Prepare:
    """To a worker: load the models of a reload.  Answer: why it cannot, or the empty text."""

    reload: int
    """Number of the reload."""
    served: Served


@dataclass(frozen=True)
class Commit:
    """To a worker: serve the models that it has prepared.  Answer: why it cannot, or None."""

    reload: int


@dataclass(frozen=True)
class Abort:
    """To a worker: drop the models that it has prepared."""

    reload: int


@dataclass(frozen=True)
class Heartbeat:
    """To a worker.  Answer: None, from its event loop: it handles calls."""


@dataclass(frozen=True)
class ThreadFailed:
    """To a worker: a background thread of the supervisor failed; its health is to say so."""


@dataclass(frozen=True)
class GetMetrics:
    """To a worker.  Answer: its metric families, a list of prometheus-client's `Metric`.

    To the supervisor.  Answer: the same of all workers, and its own.
    """


@dataclass(frozen=True)
class GetRecords:
    """To a worker.  Answer: the state of a model's versions, pickled.

    To the supervisor.  Answer: the same of all workers, as a list.
    """

    model: str


@dataclass(frozen=True)
class Reload:
    """To the supervisor: serve these models in all workers.  Answer: why not, or the empty text."""

    served: Served


Order = Stop | Prepare | Commit | Abort | Heartbeat | ThreadFailed | GetMetrics | GetRecords
"""What a worker is asked."""
Request = GetMetrics | GetRecords | Reload
"""What the supervisor is asked."""
