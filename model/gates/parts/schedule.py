"""Numbers that change with the training step: regulariser strengths, temperatures, widths."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Tensor

Points = Sequence[Sequence[float]]  # (step, value) pairs


class ScheduledGate(Gate):
    """A gate that counts its own training steps.

    The count is a non-trainable variable, incremented once per training call.  It is saved with the
    model, so inference uses the value at the end of training.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the step counter, a scalar."""
        self.step = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="step"
        )

    def read_step(self, training: bool) -> Tensor:
        """Number of earlier training calls, float32 scalar; a training call increments it."""
        now = keras.ops.cast(self.step, "float32")
        if training:
            self.step.assign(self.step + 1)
        return now

    def check_annealing(self, name: str, start: float, end: float | None, steps: int) -> None:
        """Check the settings `name`, `name`_end and `name`_steps, which `geometric` takes.

        Raises:
            ValueError: a value or the number of steps is not positive.
        """
        self.check_option(name, start, start > 0, "more than 0")
        self.check_option(f"{name}_end", end, end is None or end > 0, "None or more than 0")
        self.check_option(f"{name}_steps", steps, steps >= 1, "at least 1")


def check_points(points: Points | None, argument: str) -> list[list[float]] | None:
    """Check schedule points and return them as plain lists.

    Raises:
        ValueError: there are no points, one is not a (step, value) pair, steps are negative or do
            not increase, or a value is negative.
    """
    if points is None:
        return None
    rows = [[float(number) for number in point] for point in points]
    steps = [row[0] for row in rows if len(row) == 2]
    rising = all(a < b for a, b in pairwise(steps))
    if not rows or len(steps) < len(rows) or not rising or steps[0] < 0:
        raise ValueError(
            f"{argument}: expected (step, value) pairs with increasing steps >= 0, "
            f"received {points!r}"
        )
    if any(row[1] < 0 for row in rows):
        raise ValueError(f"{argument}: expected values >= 0, received {points!r}")
    return rows


def piecewise_linear(points: Points | None, step: Tensor) -> Any:
    """Value at `step`: linear between the points, constant outside; 1.0 without points."""
    if points is None:
        return 1.0
    value = points[0][1] * keras.ops.ones_like(step)
    for (x0, y0), (x1, y1) in pairwise(points):
        share = keras.ops.clip((step - x0) / (x1 - x0), 0.0, 1.0)
        value = value + share * (y1 - y0)
    return value


def geometric(start: float, end: float | None, steps: int, step: Tensor) -> Any:
    """From `start` to `end` in equal ratios over `steps`, then constant; `start` if no end."""
    if end is None:
        return start
    share = keras.ops.clip(step / steps, 0.0, 1.0)
    return start * keras.ops.exp(share * math.log(end / start))
