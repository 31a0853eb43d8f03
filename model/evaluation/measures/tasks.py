"""Measures of one task over the rows with a label.

scikit-learn's metrics give one value a call; here one pass gives the sample's and every resample's.
The tests compare both.
"""

from typing import TypedDict

import numpy as np
from scipy.special import entr, xlogy

from multigate.configs.sections.labels import Task
from multigate.model.evaluation.measures import pinball, ranks
from multigate.model.evaluation.measures.bootstrap import CONFIDENCE, Interval, Resamples, interval

BINS = 15
"""Of calibration error, reliability and residuals: equally many rows each, as far as ties allow."""

Replicates = dict[str, np.ndarray]
"""By measure, (1 + R,)."""

_SMALLEST = np.finfo(np.float64).eps  # as scikit-learn clips probabilities


class ReliabilityBin(TypedDict):
    """Rows of similar scores: their mean score, and their mean label."""

    score: float
    label: Interval


class ResidualBin(TypedDict):
    """Rows of similar scores: their mean score, and label - score at three quantiles.

    Attributes:
        score: mean.
        low: quantile 0.1.
        median: quantile 0.5.
        high: quantile 0.9.
        rows: how many.
    """

    score: float
    low: float
    median: float
    high: float
    rows: int


def binary(resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> Replicates:
    """Measures of a binary task.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities.

    Returns:
        auc; gauc (AUC within each user that has both classes, averaged by the users' rows);
        log_loss (nats); normalised_entropy (log loss over the entropy of the label's rate: 1 is no
        better than predicting the rate); predicted_over_observed.
    """
    rows, y, p = _known(labels, scores)
    total, positives = resamples.totals(np.ones(len(rows)), rows), resamples.totals(y, rows)
    q = np.clip(p, _SMALLEST, 1 - _SMALLEST)
    loss = ratio(resamples.totals(-xlogy(y, q) - xlogy(1 - y, 1 - q), rows), total)
    rate = ratio(positives, total)
    spread = entr(rate) + entr(1 - rate)
    return {
        "auc": ranks.auc(resamples, y, p, rows),
        "gauc": _gauc(resamples, y, p, rows),
        "log_loss": loss,
        "normalised_entropy": ratio(loss, spread),
        "predicted_over_observed": ratio(resamples.totals(p, rows), positives),
    }


def regression(resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> Replicates:
    """Measures of a regression task, in the label's own units.

    Args:
        resamples: the draws, of N rows.
        labels: (N,), NaN where masked.
        scores: (N,).

    Returns:
        rmse, mae, r2, spearman, bias (mean of score - label).
    """
    rows, y, p = _known(labels, scores)
    total = resamples.totals(np.ones(len(rows)), rows)
    error = p - y
    # Centred, so that the squares do not cancel for labels far from zero.
    centred = y - (y.mean() if len(y) else 0.0)
    mse = ratio(resamples.totals(error**2, rows), total)
    mean = ratio(resamples.totals(centred, rows), total)
    variance = ratio(resamples.totals(centred**2, rows), total) - mean**2
    # Labels are float32: a spread below their step is rounding.
    least = (1e-9 * np.abs(y).max(initial=0.0)) ** 2
    variance = np.where(variance > least, variance, 0.0)
    return {
        "rmse": np.sqrt(mse),
        "mae": ratio(resamples.totals(np.abs(error), rows), total),
        "r2": 1 - ratio(mse, variance),
        "spearman": ranks.spearman(resamples, y, p, rows)
        if len(rows)
        else np.full_like(total, np.nan),
        "bias": ratio(resamples.totals(error, rows), total),
    }


def quantile(resamples: Resamples, labels: np.ndarray, scores: np.ndarray, q: float) -> Replicates:
    """Measures of a task that predicts a quantile, in the label's own units.

    Args:
        resamples: the draws, of N rows.
        labels: (N,), NaN where masked.
        scores: (N,).
        q: the quantile.

    Returns:
        pinball (mean pinball loss), coverage (share of the labels at or below the score, q where
        it is right), spearman.
    """
    rows, y, p = _known(labels, scores)
    total = resamples.totals(np.ones(len(rows)), rows)
    return {
        "pinball": ratio(resamples.totals(pinball.losses(y, p, q), rows), total),
        "coverage": ratio(resamples.totals((y <= p).astype(np.float64), rows), total),
        "spearman": ranks.spearman(resamples, y, p, rows)
        if len(rows)
        else np.full_like(total, np.nan),
    }


MAIN = {"binary": "auc", "regression": "rmse", "quantile": "pinball"}
"""The measure by which a task is compared, sliced and judged, by `Task.measured_as`."""


def measure(task: Task, resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> Replicates:
    """Measures of a task: those of `binary`, `regression` or `quantile`."""
    if task.quantile is not None:
        return quantile(resamples, labels, scores, task.quantile)
    return (binary if task.type == "binary" else regression)(resamples, labels, scores)


def summaries(resamples: Resamples, labels: np.ndarray, found: Replicates) -> dict[str, Interval]:
    """Every measure with its interval, by name; gauc's is of the users that it is measured on."""
    parts = dict.fromkeys(found, labels)
    if "gauc" in found:
        parts["gauc"] = both_classes(resamples, labels)
    summarised = {}
    for name, values in found.items():
        known = ~np.isnan(parts[name])
        users = resamples.users_of(known)
        summarised[name] = interval(values, users, rows=int(known.sum()))
    return summarised


def both_classes(resamples: Resamples, labels: np.ndarray) -> np.ndarray:
    """The labels (N,) of users that have both classes, NaN for other rows.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) 0 or 1, NaN where masked.
    """
    known = ~np.isnan(labels)
    rows = np.bincount(resamples.codes, known, minlength=resamples.users)
    positives = np.bincount(resamples.codes, known & (labels > 0.5), minlength=resamples.users)
    both = (positives > 0) & (positives < rows)
    return np.where(both[resamples.codes], labels, np.nan)


def expected_calibration_error(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Mean over rows of |bin's mean score - bin's mean label|: the one definition in this project.

    Rows of the same score are in the same bin, so that the order of the rows changes nothing and a
    constant score at the labels' rate has an error of 0.

    Args:
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities; at least one row is not masked.
        weights: (N,) of the rows in the means; None if all are equal.
    """
    rows, y, p = _known(labels, scores)
    w = np.ones(len(y)) if weights is None else weights[rows].astype(np.float64)
    return float(np.abs(np.bincount(_bins(p), w * (y - p))).sum() / w.sum())


def calibration_error(resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> Interval:
    """`expected_calibration_error` with its limits.

    Noise alone makes it positive, and a resample adds its own noise, so that percentiles would
    exclude 0 for a calibrated model.  The limits invert a test instead.  With g_b the gap of bin b
    and e_b the deviation of a replicate's gap from it, suppose that the true error is t times the
    measured one, t * sum |g_b|.  Samples would then measure sum |t * g_b + e_b|.  The limits are
    the smallest and the largest t for which the measured error lies between the 2.5 % and 97.5 %
    quantiles of these.  The value can therefore be above its own upper limit.  A measured error far
    below the noise (such as a constant score at the sample's own rate) says little about the true
    one: the limits are then 0 and the noise.
    """
    rows, y, p = _known(labels, scores)
    if not len(rows):
        return interval(np.full(len(resamples.weights), np.nan), 0, rows=0)
    of = _bins(p)
    sums = resamples.totals_by_bin(of, int(of.max()) + 1, y - p, rows)  # (1 + R, bins)
    total = resamples.totals(np.ones(len(rows)), rows)
    gaps = sums / np.maximum(total, 1)[:, None]
    users = resamples.users_of(rows)
    result = interval(np.abs(gaps).sum(axis=1), users, rows=len(rows))
    value = result["value"]
    if value is None or result["low"] is None:
        return result
    g, e = gaps[0], gaps[1:] - gaps[0]
    tail = (1 - CONFIDENCE) / 2
    noise = float(np.quantile(np.abs(e).sum(axis=1), 1 - tail))
    if value <= 1e-9 * noise:
        return result | {"low": 0.0, "high": noise}
    times = np.linspace(0, 1 + 2 * noise / value, 121)
    drawn = np.abs(times[:, None, None] * g + e).sum(axis=2)  # (times, R)
    # Where nothing varies, rounding must not make a measured error differ from itself.
    slack = 1e-12
    possible = (np.mean(drawn >= value - slack, axis=1) > tail) & (
        np.mean(drawn <= value + slack, axis=1) > tail
    )
    found = times[possible] if possible.any() else np.zeros(1)
    return result | {
        "low": float(found.min() * value),
        "high": float(found.max() * value),
    }


def reliability(
    resamples: Resamples, labels: np.ndarray, scores: np.ndarray
) -> list[ReliabilityBin]:
    """Bins of equally many rows by score, lowest first, of a binary or a regression task."""
    rows, y, p = _known(labels, scores)
    if not len(rows):
        return []
    of = _bins(p)
    found: list[ReliabilityBin] = []
    for b in range(of.max() + 1):
        inside = of == b
        ones = resamples.totals(np.ones(int(inside.sum())), rows[inside])
        label = ratio(resamples.totals(y[inside], rows[inside]), ones)
        users = resamples.users_of(rows[inside])
        found.append(
            {
                "score": float(p[inside].mean()),
                "label": interval(label, users, rows=int(inside.sum())),
            }
        )
    return found


def residuals(labels: np.ndarray, scores: np.ndarray) -> list[ResidualBin]:
    """Quantiles of label - score in bins by score, lowest first."""
    _, y, p = _known(labels, scores)
    if not len(y):
        return []
    of = _bins(p)
    found: list[ResidualBin] = []
    for b in range(of.max() + 1):
        inside = of == b
        low, middle, high = np.quantile(y[inside] - p[inside], [0.1, 0.5, 0.9])
        found.append(
            {
                "score": float(p[inside].mean()),
                "low": float(low),
                "median": float(middle),
                "high": float(high),
                "rows": int(inside.sum()),
            }
        )
    return found


def _known(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index, label and score of the rows with a label, in float64."""
    rows = np.flatnonzero(~np.isnan(labels))
    return rows, labels[rows].astype(np.float64), scores[rows].astype(np.float64)


def _gauc(resamples: Resamples, y: np.ndarray, p: np.ndarray, rows: np.ndarray) -> np.ndarray:
    codes = resamples.codes[rows]
    area = np.full(resamples.users, np.nan)
    found = ranks.auc_by_list(codes, y, p)
    area[: len(found)] = found
    count = np.bincount(codes, minlength=resamples.users) * np.isfinite(area)
    weighted = np.where(count > 0, area, 0.0) * count
    return ratio(resamples.of_users(weighted), resamples.of_users(count))


def _bins(scores: np.ndarray) -> np.ndarray:
    """Bin of each row, (n,) from 0 without gaps; rows of the same score are in the same bin."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1]))
    found: np.ndarray = np.unique(
        np.searchsorted(edges, scores, side="right"), return_inverse=True
    )[1]
    return found


def ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide, with NaN where the divisor is not positive."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(b > 0, a / np.where(b > 0, b, 1.0), np.nan)
