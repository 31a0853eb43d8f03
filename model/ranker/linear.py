"""The linear term: straight lines from the numbers to regression tasks, found before training.

What was paid follows the price.  Shared layers come near such a line slowly, because few rows have
the label and most of what they learn is about other tasks; least squares finds it at once.  The
towers then learn what the lines leave, as they learn what the base rate leaves.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor

LEAST_EXPLAINED = 0.5
"""Share of a label's variance that a line must explain on rows that it was not fitted to.  What
shared layers learn of a label serves the other tasks as well, and a line takes the straight part of
it away: at a share of 0.3 to 0.45 the task gains some per cent and the others lose a little."""
LEAST_ROWS = 30
_PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Ridge penalties to choose from, for columns and labels with deviation 1."""


class Linear(keras.layers.Layer):
    """Adds x @ kernel + bias to the outputs (B, T); training does not change it.

    The kernel is 0 for tasks without a line and for columns that are no numbers.

    Attributes:
        numbers: the parts of x that are numbers.
        columns: theirs.
        tasks: places of the tasks that may have a line.
        active: whether any task may have one, which is not known before the weights are there;
            `fit` says whether one has.

    Args:
        widths: columns of each part of x, in their order (`Embedder.widths`).
        numbers: see there.
        tasks: T.
        lines: `tasks`, see there.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        numbers: Sequence[str],
        tasks: int,
        lines: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", "trainable": False} | kwargs)
        of = [name for name, width in widths.items() for _ in range(width)]
        self.numbers = list(numbers)
        self.columns = np.flatnonzero(np.isin(of, self.numbers))
        self.tasks, self.active = list(lines), True
        self.kernel = self.add_weight(shape=(len(of), tasks), initializer="zeros", name="kernel")
        self.bias = self.add_weight(shape=(tasks,), initializer="zeros", name="bias")
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """What the lines add to the outputs, (B, T), from the embedder's output x (B, D)."""
        return keras.ops.matmul(keras.ops.stop_gradient(x), self.kernel) + self.bias

    def fit(
        self, numbers: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> dict[int, float]:
        """Find the tasks' lines.

        Args:
            numbers: (N, F) the `columns` of x.
            targets: (N, T) on the scale of the outputs, NaN where masked.
            weights: (N,) of the rows; None if all are equal.

        Returns:
            By place of each task that has a line, the share of the variance that it explains.
        """
        kernel, bias = np.zeros(self.kernel.shape), np.zeros(self.bias.shape)
        explained = {}
        for t in self.tasks:
            known = ~np.isnan(targets[:, t])
            line = least_squares(
                numbers[known], targets[known, t], None if weights is None else weights[known]
            )
            if line is not None and line.explained >= LEAST_EXPLAINED:
                kernel[self.columns, t], bias[t] = line.slopes, line.start
                explained[t] = line.explained
        self.kernel.assign(kernel)
        self.bias.assign(bias)
        self.active = bool(explained)
        return explained


class Line(NamedTuple):
    """y = x @ slopes + start.

    Attributes:
        slopes: (F,).
        start: chosen so that the line is 0 in the mean: the tower's bias is the label's level.
        explained: share of y's variance that the line explains in rows left out one by one.
    """

    slopes: np.ndarray
    start: float
    explained: float


def least_squares(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Line | None:
    """The ridge regression that errs least on rows left out one by one.

    Args:
        x: (N, F).
        y: (N,).
        weights: (N,) of the rows; None if all are equal.

    Returns:
        None with fewer than `LEAST_ROWS` rows of any weight, or where x or y does not vary.
    """
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    x, y, w = (values[w > 0].astype(np.float64) for values in (x, y, w))
    if len(y) < LEAST_ROWS:
        return None
    w /= w.sum()
    mean, level = w @ x, w @ y
    x, y = x - mean, y - level
    deviation, total = np.sqrt(w @ x**2), w @ y**2
    varies = deviation > 1e-6
    if not varies.any() or total < 1e-12:
        return None
    root = np.sqrt(w * len(y))
    rows, target = x[:, varies] / deviation[varies] * root[:, None], y * root
    # In the eigenvectors' axes every penalty's solution, and every row's leverage, is a division.
    values, vectors = np.linalg.eigh(rows.T @ rows)
    rows = rows @ vectors
    along = rows.T @ target
    errors = {}
    for penalty in _PENALTIES:
        shrunk = 1 / (np.maximum(values, 0) + penalty)
        leverage = rows**2 @ shrunk + w  # w: of the mean
        left_out = (target - rows @ (along * shrunk)) / np.maximum(1 - leverage, 1e-6)
        errors[penalty] = float(np.mean(left_out**2))
    best = min(errors, key=errors.__getitem__)
    slopes = np.zeros(len(deviation))
    slopes[varies] = vectors @ (along / (np.maximum(values, 0) + best)) / deviation[varies]
    return Line(slopes, float(-mean @ slopes), 1 - errors[best] / float(total))
