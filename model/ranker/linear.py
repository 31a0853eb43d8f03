"""The linear term: straight lines from the numbers, blended with the outputs of regression tasks.

What was paid follows the price.  Shared layers come near such a line slowly, because few rows have
the label and most of what they learn is about other tasks; least squares finds it at once.  The
shared layers do not know of it: they learn the whole label, which tells them much for other tasks
(was it paid much for?), and the line joins them in the end, with the shares that suit validation
best (stacked regressions, Breiman 1996).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor

LEAST_ROWS = 30
PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Ridge penalties to choose from, for columns with deviation 1."""
_NO_PENALTY = (1e-6,)
LEAST_GAIN = 0.01
"""Share of the squared error that a line must save, and the standard error of what it saves."""


class Linear(keras.layers.Layer):
    """Makes a task's outputs o into deep * o + line * y + start, y its line within its labels.

        y = clip(x @ kernel + bias, low, high)

    The limits keep a line from telling of rows unlike all those that it was fitted to. Its weights
    are no variables of training; `fit` and `blend` set them. A new one has no lines.

    Attributes:
        numbers: the parts of x that are numbers.
        columns: theirs.
        tasks: places of the tasks that may have a line.
        active: whether the model uses it: after training, if a task has a line.

    Args:
        widths: columns of each part of x, in their order (`Embedder.widths`).
        numbers: see there.
        count: T, of all tasks.
        tasks: see there.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        numbers: Sequence[str],
        count: int,
        tasks: Sequence[int],
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32", "trainable": False} | kwargs)
        of = [name for name, width in widths.items() for _ in range(width)]
        self.numbers = list(numbers)
        self.columns = np.flatnonzero(np.isin(of, self.numbers))
        self.count, self.tasks, self.active = count, list(tasks), False
        self.kernel = self.add_weight(shape=(len(of), count), initializer="zeros", name="kernel")
        self.bias, self.low, self.high, self.deep, self.line, self.start = (
            self.add_weight(shape=(count,), initializer=start, name=name)
            for name, start in (
                *(("bias", "zeros"), ("low", "zeros"), ("high", "zeros")),
                *(("deep", "ones"), ("line", "zeros"), ("start", "zeros")),
            )
        )
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        """What is added to `deep` times the outputs, (B, T), of the embedder's output x (B, D)."""
        ops = keras.ops
        lines = ops.matmul(x, self.kernel) + self.bias
        lines = ops.minimum(ops.maximum(lines, self.low), self.high)
        return lines * self.line + self.start

    def fit(
        self, numbers: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Find the tasks' lines.

        Args:
            numbers: (N, F) the `columns` of x.
            targets: (N, T) on the scale of the outputs, NaN where masked.
            weights: (N,) of the rows; None if all are equal.
        """
        kernel, (bias, low, high) = np.zeros(self.kernel.shape), np.zeros((3, self.count))
        for t in self.tasks:
            known = ~np.isnan(targets[:, t])
            w = None if weights is None else weights[known]
            # A number that hardly varies where the label is known may vary elsewhere: by about 1.
            line = least_squares(numbers[known], targets[known, t], w, least_deviation=1.0)
            if line is not None:
                kernel[self.columns, t], bias[t] = line.slopes, line.start
                low[t], high[t] = targets[known, t].min(), targets[known, t].max()
        for variable, value in (
            *((self.kernel, kernel), (self.bias, bias)),
            *((self.low, low), (self.high, high)),
        ):
            variable.assign(value)

    def values(self, numbers: np.ndarray) -> np.ndarray:
        """The lines y (N, T) of numbers (N, F)."""
        kernel, bias, low, high = (
            np.asarray(keras.ops.convert_to_numpy(variable))
            for variable in (self.kernel, self.bias, self.low, self.high)
        )
        found: np.ndarray = np.clip(numbers @ kernel[self.columns] + bias, low, high)
        return found

    def blend(
        self, outputs: np.ndarray, lines: np.ndarray, targets: np.ndarray, weights: np.ndarray
    ) -> dict[int, float]:
        """Choose each task's shares by rows that neither was fitted to.

        Args:
            outputs: (N, T) of the deep layers.
            lines: (N, T), `values` of the same rows.
            targets: (N, T) on their scale, NaN where masked.
            weights: (N,) of the rows.

        Returns:
            By place of each task that has a line, the share of the squared error that it saves in
            rows left out one by one.
        """
        deep, (line, start) = np.ones(self.count), np.zeros((2, self.count))
        saved = {}
        for t in self.tasks:
            known = ~np.isnan(targets[:, t]) & (weights > 0)
            both = np.stack([outputs[known, t], lines[known, t]], axis=1)
            found = _shares(both, targets[known, t], weights[known])
            if found is not None:
                (deep[t], line[t]), start[t] = found[0].slopes, found[0].start
                saved[t] = found[1]
        for variable, value in ((self.deep, deep), (self.line, line), (self.start, start)):
            variable.assign(value)
        return saved


def _shares(both: np.ndarray, y: np.ndarray, w: np.ndarray) -> "tuple[Line, float] | None":
    """The shares of outputs and line, at least 0, and what they save of the squared error.

    Args:
        both: (N, 2) outputs and line.
        y: (N,) labels.
        w: (N,) weights above 0.

    Returns:
        None if the line saves less than `LEAST_GAIN` or a standard error, beside the outputs as
        they are (a constant is free, as calibration removes it) and at their best.
    """
    found = least_squares(both, y, w, penalties=_NO_PENALTY)
    if found is not None and found.slopes[0] < 0:  # the line knows all that the outputs know
        found = least_squares(both * [0, 1], y, w, penalties=_NO_PENALTY)
    alone = least_squares(both[:, :1], y, w, penalties=_NO_PENALTY)
    if found is None or found.slopes[1] <= 0 or alone is None:
        return None
    left = y - both[:, 0]
    plain = w / w.sum() * (left - np.average(left, weights=w)) ** 2 * len(y)
    before = min(plain, alone.errors, key=np.mean)
    gain = (before - found.errors) / before.mean()
    least = max(LEAST_GAIN, gain.std() / np.sqrt(len(gain)))
    return (found, float(gain.mean())) if gain.mean() >= least else None


class Line(NamedTuple):
    """y = x @ slopes + start.

    Attributes:
        slopes: (F,).
        start: y at x = 0.
        explained: share of y's variance that the line explains in rows left out one by one.
        errors: (N,) their squared errors times their weights, which are 1 in the mean.
    """

    slopes: np.ndarray
    start: float
    explained: float
    errors: np.ndarray


def least_squares(
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    least_deviation: float = 0.0,
    penalties: Sequence[float] = PENALTIES,
) -> Line | None:
    """The ridge regression that errs least on rows left out one by one.

    Args:
        x: (N, F); rows with infinite values do not count.
        y: (N,).
        weights: (N,) of the rows; None if all are equal.
        least_deviation: of a column in rows like those that the line is for; the penalty counts
            slopes per deviation, of x if that is the larger one.
        penalties: to choose from, for columns with deviation 1.

    Returns:
        None with fewer than `LEAST_ROWS` rows, as many as equal weights would count, or where x or
        y does not vary.
    """
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    counts = (w > 0) & np.isfinite(x).all(axis=1)
    x, y, w = (values[counts].astype(np.float64) for values in (x, y, w))
    if not len(y) or w.sum() ** 2 < LEAST_ROWS * (w**2).sum():
        return None
    w /= w.sum()
    mean, level = w @ x, w @ y
    x, y = x - mean, y - level
    scale, total = np.sqrt(w @ x**2), w @ y**2
    varies = scale > 1e-6
    if not varies.any() or total < 1e-12:
        return None
    scale = np.maximum(scale, least_deviation)
    root = np.sqrt(w * len(y))
    rows, target = x[:, varies] / scale[varies] * root[:, None], y * root
    # In the eigenvectors' axes every penalty's solution, and every row's leverage, is a division.
    values, vectors = np.linalg.eigh(rows.T @ rows)
    rows = rows @ vectors
    along = rows.T @ target
    errors: dict[float, np.ndarray] = {}
    for penalty in penalties:
        shrunk = 1 / (np.maximum(values, 0) + penalty)
        leverage = rows**2 @ shrunk + w  # w: of the mean
        left_out = (target - rows @ (along * shrunk)) / np.maximum(1 - leverage, 1e-6)
        errors[penalty] = left_out**2
    best = min(errors, key=lambda penalty: errors[penalty].mean())
    slopes = np.zeros(len(scale))
    slopes[varies] = vectors @ (along / (np.maximum(values, 0) + best)) / scale[varies]
    explained = 1 - float(errors[best].mean() / total)
    return Line(slopes, float(level - mean @ slopes), explained, errors[best])
