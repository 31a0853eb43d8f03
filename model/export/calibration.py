"""Calibration of the binary tasks' probabilities, fitted on the validation split.

A calibration maps a task's logit z to another logit by a rising curve.  It goes into the exported
graph before the sigmoid and keeps the order of the task's scores:

    platt      a * z + b, with a and b of largest likelihood (Platt 1999)
    isotonic   linear between knots: rows are put into bins of equal size by z, bins are pooled
               until their rates rise (Zadrozny and Elkan 2002), and each pool gives a knot (mean z,
               logit of its rate).  Below the first and above the last knot the slope is 1.

Rates are smoothed, (positives + 1) / (rows + 2), so that their logits are finite.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypedDict

import keras
import numpy as np
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from multigate.configs.contract import Contract
from multigate.model.evaluation.measures.tasks import expected_calibration_error
from multigate.model.gates.parts.base import Tensor

Method = Literal["platt", "isotonic"]

_BINS = 50
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


class TaskCalibration(TypedDict):
    """One task on test rows before and after; each has `log_loss` and `ece`."""

    before: dict[str, float]
    after: dict[str, float]
    rows: int


class CalibrationReport(TypedDict):
    """What metrics.json says of the calibration; `left_as_they_are` has the reason by task."""

    method: str
    tasks: dict[str, TaskCalibration]
    left_as_they_are: dict[str, str]


Calibration = Mapping[str, Curve]
"""A curve by task; tasks without one keep their logits."""


def apply(calibration: Calibration, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Calibrated logits by task."""
    return {task: calibration[task](z) if task in calibration else z for task, z in logits.items()}


def fit(
    contract: Contract, method: Method, logits: Mapping[str, np.ndarray], labels: np.ndarray
) -> tuple[dict[str, Curve], dict[str, str]]:
    """Fit every binary task.

    Args:
        contract: tasks.
        method: see the module docstring.
        logits: (N,) by task.
        labels: (N, T), NaN where masked.

    Returns:
        Curves by task, and by task the reason why it has none.
    """
    curves: dict[str, Curve] = {}
    left: dict[str, str] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        if task.type != "binary":
            continue
        known = ~np.isnan(labels[:, t])
        z, y = logits[name][known].astype(np.float64), labels[known, t].astype(np.float64)
        if len(np.unique(y)) < 2:
            left[name] = f"its {len(y)} validation labels are all alike"
            continue
        curve = _platt(z, y) if method == "platt" else _isotonic(z, y)
        if curve is None:
            left[name] = "its scores do not rise with the label on the validation split"
        else:
            curves[name] = curve
    return curves, left


def measure(
    contract: Contract,
    calibration: Calibration,
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
) -> dict[str, TaskCalibration]:
    """Log loss and expected calibration error of every calibrated task, before and after."""
    report: dict[str, TaskCalibration] = {}
    for t, name in enumerate(contract.tasks):
        known = ~np.isnan(labels[:, t])
        if name not in calibration or not known.any():
            continue
        y, z = labels[known, t].astype(np.float64), logits[name][known].astype(np.float64)
        calibrated = np.asarray(keras.ops.convert_to_numpy(calibration[name](z)))
        before, after = (
            {
                "log_loss": float(log_loss(y, sigmoid(values), labels=[0, 1])),
                "ece": expected_calibration_error(y, sigmoid(values)),
            }
            for values in (z, calibrated)
        )
        report[name] = {"before": before, "after": after, "rows": int(known.sum())}
    return report


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)), without overflow."""
    p: np.ndarray = 0.5 * (1.0 + np.tanh(0.5 * z))
    return p


def _platt(z: np.ndarray, y: np.ndarray) -> Curve | None:
    found = LogisticRegression(C=1e6).fit(z[:, None], y)
    slope, offset = float(found.coef_[0, 0]), float(found.intercept_[0])
    if slope <= 0:
        return None
    return Curve(np.zeros(1, np.float32), np.array([offset], np.float32), slope)


def _isotonic(z: np.ndarray, y: np.ndarray) -> Curve | None:
    order = np.argsort(z, kind="stable")
    parts = [p for p in np.array_split(order, _BINS) if len(p)]
    rows = np.array([len(p) for p in parts], np.float64)
    means = np.array([z[p].mean() for p in parts])
    rates = np.array([y[p].mean() for p in parts])
    rising = IsotonicRegression().fit_transform(means, rates, sample_weight=rows)
    parted = (np.diff(rising) > 0) & (np.diff(means) >= _SMALLEST_GAP)
    pools = np.concatenate([[0], np.cumsum(parted)])
    count = np.bincount(pools, rows)
    x = np.bincount(pools, rows * means) / count
    p = (np.bincount(pools, rows * rates) + 1) / (count + 2)
    y_knots = np.maximum.accumulate(np.log(p / (1 - p)))
    if y_knots[-1] <= y_knots[0]:
        return None
    return Curve(x.astype(np.float32), y_knots.astype(np.float32), 1.0)
