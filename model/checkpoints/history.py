"""What `history.json` says of each epoch of a training, and which epoch was kept."""

import math
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict


class TaskLosses(TypedDict):
    """Mean losses of one task over the rows that have its label, and its quality.

    Where a teacher taught in the epoch, `loss` is of its targets, also of rows without a label.
    `val_quality` is the AUC of a binary task, or on the scale of training the explained variance of
    a regression task and the pinball skill of one that predicts a quantile (see
    `training.validation`), on validation rows; None where the split has too few labels.
    `val_quality_error` is its standard error.  Histories of older versions have neither.
    """

    loss: float
    val_loss: float
    val_quality: NotRequired[float | None]
    val_quality_error: NotRequired[float | None]


class Losses(TypedDict):
    """The losses of one epoch, counted from 1.

    `loss` is what training minimises; `regularisation` is the part of it that the gates' terms and
    the wide term's penalty make; `ranking` is the ranking terms before their weight, if training
    has some; `val_loss` is the sum over tasks of the weight that training gives the task times its
    validation loss (the contract's weight, scaled by label counts with `task_weighting: labels`).
    `val_quality` is the mean of the tasks' qualities (see `training.validation`); None where
    none is measured.  `monitor` decides which epoch is kept: quality, loss or a task's name.
    """

    epoch: int
    loss: float
    val_loss: float
    val_quality: NotRequired[float | None]
    monitor: NotRequired[str]
    regularisation: float
    ranking: NotRequired[float]
    tasks: dict[str, TaskLosses]


class Diagnostics(TypedDict):
    """What the gates do on validation rows in the form that is served.

    `gates` has by task experts_per_row, load (E,), weights (E,) and the gate's own numbers.
    """

    experts_per_row: float
    gates: dict[str, dict[str, Any]]


class Teaching(TypedDict, total=False):
    """What a teacher did, if there is one.

    `taught` has the tasks that it taught in this epoch, and `outgrown` those in which the ranker
    was clearly ahead of it then: it does not teach them any more. In the next epoch it teaches
    those that the ranker has `passed` on rows with labels alone.
    """

    taught: list[str]
    outgrown: list[str]
    passed: list[str]


class Epoch(Losses, Diagnostics, Teaching):
    """One entry of the history.

    `seconds` of its training steps, without validation; `lines`, of an epoch that was the best so
    far, has by task with a line what it saves of the squared error on validation (`model.linear`),
    while losses and qualities are those without lines.  Older histories have no `lines`.
    """

    seconds: float
    rows_per_second: float
    lines: dict[str, float]


def monitor(epochs: Sequence[Epoch]) -> str:
    """What decided which epoch was kept; older versions kept the lowest validation loss."""
    return epochs[0].get("monitor", "loss")


def monitored(epoch: Epoch) -> float:
    """Value of the monitor; NaN where it is not measured."""
    name = epoch.get("monitor", "loss")
    if name == "loss":
        return epoch["val_loss"]
    value = epoch if name == "quality" else epoch["tasks"][name]
    found = value.get("val_quality")
    return math.nan if found is None else found


def kept(epochs: Sequence[Epoch]) -> Epoch:
    """The epoch with the best value of the monitor: of several the first, a value before NaN."""
    return _best(epochs, [monitored(epoch) for epoch in epochs], monitor(epochs) != "loss")


def best_epochs(epochs: Sequence[Epoch]) -> dict[str, int]:
    """Each task's best epoch by its quality; by its validation loss where that is not measured."""
    found = {}
    for name, last in epochs[-1]["tasks"].items():
        if last.get("val_quality") is None:
            losses = [epoch["tasks"][name]["val_loss"] for epoch in epochs]
            found[name] = _best(epochs, losses, False)["epoch"]
        else:
            values = [epoch["tasks"][name].get("val_quality") for epoch in epochs]
            known = [math.nan if value is None else value for value in values]
            found[name] = _best(epochs, known, True)["epoch"]
    return found


def _best(epochs: Sequence[Epoch], values: Sequence[float], higher: bool) -> Epoch:
    sign = -1 if higher else 1
    order = [math.inf if math.isnan(value) else sign * value for value in values]
    return epochs[order.index(min(order))]
