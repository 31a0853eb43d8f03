"""Where a training is: all that its next step depends on, to a snapshot and back."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from multigate.configs.errors import ModelError
from multigate.model.checkpoints import weights
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import snapshots
from multigate.model.training.snapshots import Snapshot
from multigate.model.training.workspace import Workspace


@dataclass
class Place:
    """What a snapshot holds besides the variables.

    Attributes:
        epoch: the current one, from 1.
        step: steps of it that are done.
        seconds: that they took.
        history: the epochs before it.
        measured: the guard's latest measurements.
        best: name and checksum of the best epoch's weights; empty before there are any.
    """

    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    best: list[str] = field(default_factory=list)


def save(work: Workspace, ranker: Ranker, place: Place) -> None:
    """Take a snapshot of a compiled ranker."""
    arrays = [weights.to_numpy(variable) for variable in _variables(ranker)]
    snapshots.save(work.root, Snapshot(arrays, asdict(place)))
    work.forget_best()


def restore(
    work: Workspace, ranker: Ranker, note: Callable[[str], None]
) -> tuple[Place, list[np.ndarray]] | None:
    """Continue from the newest snapshot that is whole.

    Args:
        work: where the snapshots are.
        ranker: compiled, its optimiser built; gets the snapshot's values.
        note: is told what happens.

    Returns:
        The place, and the losses' running means, which Keras sets to zero when an epoch begins;
        None where there is no snapshot.

    Raises:
        ModelError: the snapshot is another model's.
    """

    def check(snapshot: Snapshot) -> None:
        best = snapshot.meta["best"]
        if best and snapshots.checksum(work.root / best[0]) != best[1]:
            raise snapshots.DamagedError(f"{best[0]}: checksum differs")

    found, damaged = snapshots.latest(work.root, check)
    for path in damaged:
        note(f"{path.name} is damaged: continuing from before it")
    if found is None:
        return None
    variables = _variables(ranker)
    shapes = [tuple(variable.shape) for variable in variables]
    if shapes != [array.shape for array in found.arrays]:
        raise ModelError(
            f"{work.root}: the snapshot's variables are not this model's; remove the folder to "
            "start over"
        )
    means = len(ranker.metrics_variables)
    for variable, array in zip(variables[:-means], found.arrays, strict=False):
        variable.assign(array)
    place = Place(**found.meta)
    note(f"continuing at epoch {place.epoch}, step {place.step}")
    return place, found.arrays[-means:]


def _variables(ranker: Ranker) -> list[Any]:
    """Everything that changes from step to step; the losses' running means come last."""
    return [*ranker.variables, *ranker.optimizer.variables, *ranker.metrics_variables]
