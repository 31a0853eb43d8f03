"""Calibration of every task's scores, fitted on the validation split.

A calibration maps a task's logit z to another logit by a rising curve.  It goes into the exported
graph before the sigmoid (binary), or before the logit gets the label's units (regression), and
keeps the order of the task's scores.  Labels y of a regression task are on the scale of training,
where z estimates them.

    platt      a * z + b.  Binary: a and b of largest likelihood (Platt 1999), with a penalty of
               a^2 / 200 for all rows together.  Regression: of least squares.
    isotonic   linear between knots: rows are put into bins of equal size by z, bins are pooled
               until their mean labels rise (Zadrozny and Elkan 2002), and each pool gives a knot
               (mean z, logit of its rate or mean y).  Below the first and above the last knot the
               slope is 1.
    auto       platt; isotonic where it is better by more than `CLEARLY` standard errors.

The loss `zero_inflated` gives an amount, which is not below 0 and has a long tail: its curve is a
factor, the labels' sum over the scores', under every method.  A line of free height would make
small amounts negative.

Rates are smoothed, (positives + 2 r) / (rows + 2) with r the rate of all rows, so that their logits
are finite and the mean stays right where labels are rare.

Where the rows have weights in training (`Config.row_weight`), they have them here: a log that keeps
a tenth of its rows without a click, each with the weight 10, is learnt at the rate of all rows, and
a curve of equal rows would undo that.

A curve is used only where it lowers the task's loss on rows that it was not fitted to: the split
is halved by time (at random where there are no times), each half's curve is measured on the other
half, and the sum must fall.  Halves by time refuse curves that fit a passing rate: on Deskdrop,
random halves let dwell, follow and comment be calibrated, and each got worse on later rows.  The
loss is log loss, or the squared error on the scale of training, within the task's limits.
scikit-learn's `CalibratedClassifierCV` was considered: it calibrates classifiers only, and its
curves are not piecewise linear functions of the logit, which the graph holds.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import keras
import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import Task
from multigate.configs.sections.losses import ZeroInflated
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.evaluation.measures.tasks import expected_calibration_error
from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker import scores

Method = Literal["platt", "isotonic"]

_BINS = 50
FEWEST = 20
"""Labels; and of a binary task's rarer class, a tenth of it."""
CLEARLY = 2.0
_SMALLEST_GAP = 1e-3
"""Closer knots are pooled: the curve would be so steep that rounding of z shows in the score."""


class Curve(NamedTuple):
    """A rising, piecewise linear function through K >= 1 knots.

    Attributes:
        x: (K,) float32, rising.
        y: (K,) float32.
        slope: below the first and above the last knot.
    """

    x: np.ndarray
    y: np.ndarray
    slope: float

    def __call__(self, z: Tensor) -> Tensor:
        """Map z (N,) to (N,)."""
        ops = keras.ops
        outside = ops.minimum(z - self.x[0], 0.0) + ops.maximum(z - self.x[-1], 0.0)
        result = self.y[0] + self.slope * outside
        if len(self.x) == 1:
            return result
        widths = np.diff(self.x)
        passed = ops.clip((z[:, None] - self.x[:-1]) / widths, 0.0, 1.0)  # (N, K - 1)
        return result + ops.sum(passed * np.diff(self.y), axis=1)


_Fit = Callable[[np.ndarray, np.ndarray, np.ndarray], Curve | None]
"""Logits, labels and weights (n,) to a curve; None where nothing rises."""


class TaskCalibration(TypedDict):
    """One task on test rows before and after.

    Both have, of a binary task, `log_loss` and `ece`; of a regression task `rmse` in the label's
    own units and `relative_rmse`, that on the scale of training over the label's deviation.
    """

    method: str
    before: dict[str, float]
    after: dict[str, float]
    rows: int


class CalibrationReport(TypedDict):
    """What metrics.json says of the calibration; `left_as_they_are` has the reason by task."""

    method: str
    tasks: dict[str, TaskCalibration]
    left_as_they_are: dict[str, str]


class Fitted(NamedTuple):
    """Curves and the methods that made them, and why the other tasks have none, by task."""

    curves: dict[str, Curve]
    methods: dict[str, Method]
    left: dict[str, str]


Calibration = Mapping[str, Curve]
"""A curve by task; tasks without one keep their logits."""


def apply(calibration: Calibration, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Calibrated logits by task."""
    return {task: calibration[task](z) if task in calibration else z for task, z in logits.items()}


def fit(
    contract: Contract,
    statistics: Statistics,
    method: Method | Literal["auto"],
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
    times: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Fitted:
    """Fit every task.

    Args:
        contract: tasks.
        statistics: of the training split.
        method: see the module docstring.
        logits: (N,) by task.
        labels: (N, T) in own units, NaN where masked.
        times: (N,) of the rows; None if they have none.
        weights: (N,) of the rows, at least 0; None if all are equal.
    """
    found = Fitted({}, {}, {})
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = counted(labels[:, t], weights)
        z = logits[name][known].astype(np.float64)
        y = scores.targets(task, statistics.tasks[name], labels[known, t]).astype(np.float64)
        if reason := _unfit(task, y):
            found.left[name] = reason
            continue
        late = second_half(len(y), None if times is None else times[known])
        w = np.ones(len(y)) if weights is None else weights[known].astype(np.float64)
        w /= w.mean()
        curve, used, reason = _choose(task, statistics.tasks[name], method, z, y, w, late)
        if curve is None:
            found.left[name] = reason
        else:
            found.curves[name], found.methods[name] = curve, used
    return found


def counted(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Rows (N,) with a label (N,) and a weight (N,)."""
    known: np.ndarray = ~np.isnan(labels)
    return known if weights is None else known & (weights > 0)


def _unfit(task: Task, y: np.ndarray) -> str:
    """Why no curve can be fitted to the labels (n,); empty where one can."""
    if not task.predicts_mean:
        return "it predicts a quantile, and a curve is fitted to the mean"
    if len(y) == 0 or np.ptp(y) == 0:
        return f"its {len(y)} validation labels are all alike"
    rarer = min(np.sum(y > 0.5), np.sum(y <= 0.5)) if task.type == "binary" else len(y)
    if len(y) < FEWEST or 10 * rarer < FEWEST:
        return f"its {len(y)} validation labels are too few to fit a curve and to check it"
    return ""


def _choose(
    task: Task,
    statistics: TaskStatistics,
    method: Method | Literal["auto"],
    z: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    late: np.ndarray,
) -> tuple[Curve | None, Method, str]:
    """The curve of one task, what made it, or the reason why there is none.

    Args:
        task: its type, loss and limits.
        statistics: of the task.
        method: to use.
        z: (n,) logits.
        y: (n,) labels on the scale of the logits.
        w: (n,) weights, 1 in the mean.
        late: (n,) bool, the rows of the second half.
    """
    fits = _fits(task, statistics)
    loss = _row_losses(task, statistics, y)
    as_it_is = loss(z)
    used: Method = "isotonic" if method == "isotonic" and "isotonic" in fits else "platt"
    checked = _cross_fitted(fits[used], z, y, w, late)
    if method == "auto" and "isotonic" in fits:
        other = _cross_fitted(fits["isotonic"], z, y, w, late)
        gain = w * (loss(checked) - loss(other))
        if gain.mean() > CLEARLY * gain.std() / np.sqrt(len(y)):
            used, checked = "isotonic", other
    curve = fits[used](z, y, w)
    if curve is None:
        return None, used, "its scores do not rise with the label on the validation split"
    before, after = float((w * as_it_is).mean()), float((w * loss(checked)).mean())
    if not after < before:
        what = "log loss" if task.type == "binary" else "squared error"
        return (
            None,
            used,
            (
                f"its {what} on held-out halves of the validation split would go from {before:.4f} "
                f"to {after:.4f}"
            ),
        )
    return curve, used, ""


def second_half(rows: int, times: np.ndarray | None) -> np.ndarray:
    """The second half of the rows by time, (rows,) bool; at random where times do not part them."""
    if times is not None:
        late: np.ndarray = times > np.median(times)
        if 4 * min(late.sum(), (~late).sum()) >= rows:
            return late
    return np.random.default_rng(0).permutation(rows) % 2 == 1


def _fits(task: Task, statistics: TaskStatistics) -> Mapping[Method, _Fit]:
    """What makes a curve of logits, labels and weights (n,), by method."""
    if isinstance(task.loss, ZeroInflated):
        return {"platt": partial(_factor, nothing=-statistics.mean / statistics.std)}
    binary = task.type == "binary"
    return {"platt": partial(_platt, binary=binary), "isotonic": partial(_isotonic, binary=binary)}


def _cross_fitted(
    fit: _Fit, z: np.ndarray, y: np.ndarray, w: np.ndarray, late: np.ndarray
) -> np.ndarray:
    """Each row's logit by the curve of the half that it is not in, (n,); z without a curve."""
    result = z.copy()
    for half in (late, ~late):
        y_fit = y[~half]
        curve = None if np.ptp(y_fit) == 0 else fit(z[~half], y_fit, w[~half])
        if curve is not None:
            result[half] = _evaluate(curve, z[half])
    return result


def _row_losses(
    task: Task, statistics: TaskStatistics, y: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """A function of logits (n,): log loss, or squared error within the limits, (n,)."""
    if task.type == "binary":
        return lambda z: np.logaddexp(0.0, z) - y * z
    low, high = -np.inf, np.inf
    if task.limits is not None:
        ends = np.asarray(task.limits, np.float64)
        low, high = (scores.transform(task, ends) - statistics.mean) / statistics.std
    return lambda z: (y - np.clip(z, low, high)) ** 2


def measure(
    contract: Contract,
    statistics: Statistics,
    fitted: Fitted,
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, TaskCalibration]:
    """What the curves change on some rows, by task; tasks without labels are left out.

    Args:
        contract: tasks.
        statistics: of the training split.
        fitted: the curves.
        logits: (N,) by task.
        labels: (N, T) in own units, NaN where masked.
        weights: (N,) of the rows, at least 0; None if all are equal.
    """
    report: dict[str, TaskCalibration] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = counted(labels[:, t], weights)
        if name not in fitted.curves or not known.any():
            continue
        w = None if weights is None else weights[known]
        y, z = labels[known, t].astype(np.float64), logits[name][known].astype(np.float64)
        both = z, _evaluate(fitted.curves[name], z)
        if task.type == "binary":
            before, after = (log_loss_and_ece(values, y, w) for values in both)
        else:
            of_task = statistics.tasks[name]
            before, after = (_errors(task, of_task, values, y, w) for values in both)
        report[name] = {
            "method": fitted.methods[name],
            "before": before,
            "after": after,
            "rows": int(known.sum()),
        }
    return report


def log_loss_and_ece(
    z: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float]:
    """Log loss and expected calibration error of logits (n,), by labels (n,) and weights (n,)."""
    return {
        "log_loss": float(log_loss(y, sigmoid(z), labels=[0, 1], sample_weight=weights)),
        "ece": expected_calibration_error(y, sigmoid(z), weights),
    }


def _errors(
    task: Task,
    statistics: TaskStatistics,
    z: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None,
) -> dict[str, float]:
    """RMSE in own units, and on the scale of training over the label's deviation."""
    score: Any = keras.ops.convert_to_numpy(scores.score(task, statistics, z.astype(np.float32)))
    p = np.asarray(score, np.float64)
    on_scale = scores.transform(task, p), scores.transform(task, y)
    centred = on_scale[1] - np.average(on_scale[1], weights=weights)
    errors = p - y, on_scale[0] - on_scale[1], centred
    rmse, error, deviation = (float(np.sqrt(np.average(e**2, weights=weights))) for e in errors)
    found = {"rmse": rmse}
    if deviation > 0:
        found["relative_rmse"] = error / deviation
    return found


def _evaluate(curve: Curve, z: np.ndarray) -> np.ndarray:
    """The curve's values of z (n,) in float64, without the graph's (n, K) arrays."""
    outside = np.minimum(z - curve.x[0], 0.0) + np.maximum(z - curve.x[-1], 0.0)
    found: np.ndarray = np.interp(z, curve.x, curve.y) + curve.slope * outside
    return found


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow."""
    p: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * z))
    return p


def _platt(z: np.ndarray, y: np.ndarray, w: np.ndarray, binary: bool) -> Curve | None:
    """The line a * z + b; None where it does not rise."""
    if np.ptp(z) == 0:
        return None
    if binary:
        # scikit-learn's default stops where the mean gradient is 1e-4, a tenth of a rate of 0.1 %.
        # The penalty bounds slopes where logits hardly differ or classes are parted: a line of a
        # slope of hundreds would show the rounding of z.
        mean = z.mean()
        line = LogisticRegression(C=100.0, tol=1e-9, max_iter=1000)
        line.fit(z[:, None] - mean, y, w)
        slope = float(line.coef_[0, 0])
        offset = float(line.intercept_[0]) - slope * mean
    else:
        slope, offset = (float(number) for number in np.polyfit(z, y, 1, w=np.sqrt(w)))
    if slope <= 0:
        return None
    return Curve(np.zeros(1, np.float32), np.array([offset], np.float32), slope)


def _factor(z: np.ndarray, y: np.ndarray, w: np.ndarray, nothing: float) -> Curve | None:
    """Amounts times the sum of the labels over theirs; `nothing` is the logit of an amount of 0."""
    amounts, labels = (float(np.average(values - nothing, weights=w)) for values in (z, y))
    if amounts <= 0 or labels <= 0:
        return None
    fixed = np.array([nothing], np.float32)
    return Curve(fixed, fixed, labels / amounts)


def _isotonic(z: np.ndarray, y: np.ndarray, w: np.ndarray, binary: bool) -> Curve | None:
    """Linear between pools of bins; None where nothing rises."""
    order = np.argsort(z, kind="stable")
    parts = [p for p in np.array_split(order, _BINS) if len(p)]
    rows = np.array([w[p].sum() for p in parts])
    means = np.array([np.average(z[p], weights=w[p]) for p in parts])
    labels = np.array([np.average(y[p], weights=w[p]) for p in parts])
    rising = IsotonicRegression().fit_transform(means, labels, sample_weight=rows)
    parted = (np.diff(rising) > 0) & (np.diff(means) >= _SMALLEST_GAP)
    pools = np.concatenate([[0], np.cumsum(parted)])
    count, total = np.bincount(pools, rows), np.bincount(pools, rows * labels)
    x = np.bincount(pools, rows * means) / count
    if binary:
        p = (total + 2 * total.sum() / count.sum()) / (count + 2)
        y_knots = np.log(p / (1 - p))
    else:
        y_knots = total / count
    y_knots = np.maximum.accumulate(y_knots)
    if y_knots[-1] <= y_knots[0]:
        return None
    return Curve(x.astype(np.float32), y_knots.astype(np.float32), 1.0)
