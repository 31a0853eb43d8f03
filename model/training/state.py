"""The state of a training: all that its next step depends on, to a snapshot and back."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from multigate.configs.errors import ModelError
from multigate.model.checkpoints import weights
from multigate.model.checkpoints.history import Epoch
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import snapshots
from multigate.model.training.snapshots import Snapshot
from multigate.model.training.workspace import Workspace

_LAYOUT = "variables"  # key of the variables' names in a snapshot


@dataclass
class TrainingState:
    """What a snapshot holds besides the variables and their names.

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
    variables = _variables(ranker)
    arrays = (weights.to_numpy(variable) for variable in variables)
    meta = asdict(state) | {_LAYOUT: [_name(variable) for variable in variables]}
    snapshots.save(work.root, Snapshot(arrays, meta))
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
        ModelError: the snapshot is of a model of other variables, such as an earlier version's.
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
    arrays, meta = list(found.arrays), dict(found.meta)
    names = [_name(variable) for variable in variables]
    # Snapshots of former versions tell shapes only.
    before = _described(meta.pop(_LAYOUT, [""] * len(arrays)), arrays)
    now = _described(names if any(name for name, _ in before) else [""] * len(names), variables)
    for one, other in zip_longest(before, now, fillvalue=("no variable", ())):
        if one != other:
            raise ModelError(
                f"{work.root}: the snapshot is of another version, whose variables differ: "
                f"expected {_text(other)}, received {_text(one)}; finish the training with the "
                "version that began it, or remove the folder to start over"
            )
    means = len(ranker.metrics_variables)
    for variable, array in zip(variables[:-means], arrays, strict=False):
        variable.assign(array)
    state = TrainingState(**meta)
    note(f"continuing at epoch {state.epoch}, step {state.step}")
    return state, arrays[-means:]


def _variables(ranker: Ranker) -> list[Any]:
    """Everything that changes from step to step; the running means of the losses come last."""
    return [*ranker.variables, *ranker.optimizer.variables, *ranker.metrics_variables]


def _name(variable: Any) -> str:
    """A variable's name without the numbers by which Keras tells a process's layers apart."""
    return re.sub(r"_\d+", "", str(getattr(variable, "path", variable.name)))


def _described(names: Sequence[str], arrays: Sequence[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of each variable."""
    return [(name, tuple(array.shape)) for name, array in zip(names, arrays, strict=True)]


def _text(described: tuple[str, tuple[int, ...]]) -> str:
    name, shape = described
    return f"{name or 'one'} of shape {list(shape)}"
