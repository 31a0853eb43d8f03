"""What `history.json` says of each epoch of a training."""

from typing import Any, TypedDict


class TaskLosses(TypedDict):
    """Mean losses of one task over the rows that have its label."""

    loss: float
    val_loss: float


class Losses(TypedDict):
    """The losses of one epoch, counted from 1.

    `loss` is what training minimises, `regularisation` the gates' part of it; `val_loss` is the
    sum over tasks of the contract's weight times the task's validation loss.
    """

    epoch: int
    loss: float
    val_loss: float
    regularisation: float
    tasks: dict[str, TaskLosses]


class Diagnostics(TypedDict):
    """What the gates do on validation rows in the form that is served.

    `gates` has by task experts_per_row, load (E,), weights (E,) and the gate's own numbers.
    """

    experts_per_row: float
    gates: dict[str, dict[str, Any]]


class Epoch(Losses, Diagnostics):
    """One entry of the history; `seconds` of its training steps, without validation."""

    seconds: float
    rows_per_second: float
