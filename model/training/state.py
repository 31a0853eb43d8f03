"""The state of a training: all that its next step depends on, to a snapshot and back."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from multigate.configs.errors import ModelError
from multigate.model.checkpoints import weights
from multigate.model.checkpoints.history import Epoch
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import snapshots
from multigate.model.training.snapshots import Snapshot
from multigate.model.training.workspace import Workspace


@dataclass
class TrainingState:
    """What a snapshot holds besides the variables.

    Attributes:
        epoch: the current one, from 1.
        step: number of its steps that are done.
        seconds: that these steps took.
        history: the epochs before it.
        measured: the loss guard's latest measurements.
        best: file name and checksum of the best epoch's weights; empty before the first epoch.
    """

    epoch: int = 1
    step: int = 0
    seconds: float = 0.0
    history: list[Epoch] = field(default_factory=list)
    measured: list[float] = field(default_factory=list)
    best: list[str] = field(default_factory=list)


def save(work: Workspace, ranker: Ranker, state: TrainingState) -> None:
    """Take a snapshot of a compiled ranker."""
    arrays = (weights.to_numpy(variable) for variable in _variables(ranker))
    snapshots.save(work.root, Snapshot(arrays, asdict(state)))
    work.remove_old_best()


def restore(
    work: Workspace, ranker: Ranker, note: Callable[[str], None]
) -> tuple[TrainingState, list[np.ndarray]] | None:
    """Set a ranker to the newest snapshot that is not damaged.

    Args:
        work: folder with the snapshots.
        ranker: compiled, with its optimiser built; its variables are assigned.
        note: called with a line about each thing that happens.

    Returns:
        The state, and the running means of the losses, which Keras resets when an epoch begins;
        None if there is no snapshot.

    Raises:
        ModelError: the snapshot is of another model.
    """

    def check(snapshot: Snapshot) -> None:
        best = snapshot.meta["best"]
        if best and snapshots.checksum(work.root / best[0]) != best[1]:
            raise snapshots.DamagedError(f"{best[0]}: checksum differs")

    found, damaged = snapshots.latest(work.root, check)
    for path in damaged:
        note(f"{path.name} is damaged: continuing from the one before it")
    if found is None:
        return None
    variables = _variables(ranker)
    shapes = [tuple(variable.shape) for variable in variables]
    arrays = list(found.arrays)
    if shapes != [array.shape for array in arrays]:
        raise ModelError(
            f"{work.root}: the snapshot's variables are not this model's; remove the folder to "
            "start over"
        )
    means = len(ranker.metrics_variables)
    for variable, array in zip(variables[:-means], arrays, strict=False):
        variable.assign(array)
    state = TrainingState(**found.meta)
    note(f"continuing at epoch {state.epoch}, step {state.step}")
    return state, arrays[-means:]


def _variables(ranker: Ranker) -> list[Any]:
    """Everything that changes from step to step; the running means of the losses come last."""
    return [*ranker.variables, *ranker.optimizer.variables, *ranker.metrics_variables]
