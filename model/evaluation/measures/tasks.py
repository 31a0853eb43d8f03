"""Measures of one task over the rows whose label is not masked."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import entr, xlogy

from multigate.model.evaluation.measures import ranks
from multigate.model.evaluation.measures.resamples import CONFIDENCE, Resamples, interval

BINS = 15
"""Of reliability and residuals: equally many rows each, as far as ties allow."""

Replicates = dict[str, np.ndarray]
"""By measure, (1 + R,)."""

_SMALLEST = np.finfo(np.float64).eps  # as scikit-learn clips probabilities


def binary(resamples: Resamples, labels: np.ndarray, scores: np.ndarray) -> Replicates:
    """Measures of a binary task.

    Args:
        resamples: the draws, of N rows.
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities.

    Returns:
        auc; gauc, the mean over users with both classes of the AUC of their rows, weighted by the
        rows; log_loss (nats); normalised_entropy, log loss over the entropy of the label's rate
        (1: no better than predicting the rate); predicted_over_observed.
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
    # About the mean, so that the squares do not cancel for labels far from zero.
    centred = y - (y.mean() if len(y) else 0.0)
    mse = ratio(resamples.totals(error**2, rows), total)
    mean = ratio(resamples.totals(centred, rows), total)
    variance = ratio(resamples.totals(centred**2, rows), total) - mean**2
    # Labels are float32: what varies by less than its step is rounding.
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


OF_TYPE: dict[str, Callable[[Resamples, np.ndarray, np.ndarray], Replicates]] = {
    "binary": binary,
    "regression": regression,
}
MAIN = {"binary": "auc", "regression": "rmse"}
"""The measure by which a task of each type is compared, sliced and judged."""


def summaries(resamples: Resamples, labels: np.ndarray, found: Replicates) -> dict[str, Any]:
    """Every measure as `interval` gives it, by name."""
    known = ~np.isnan(labels)
    users, rows = len(np.unique(resamples.codes[known])), int(known.sum())
    return {name: interval(values, users, rows=rows) for name, values in found.items()}


def expected_calibration_error(labels: np.ndarray, scores: np.ndarray) -> float:
    """Mean over rows of |bin's mean score - bin's mean label|: the one definition in this project.

    Rows of the same score are in the same bin, so that the order of the rows changes nothing and a
    constant score at the labels' rate has an error of 0.

    Args:
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities; at least one row is not masked.
    """
    _, y, p = _known(labels, scores)
    return float(np.abs(np.bincount(_bins(p), y - p)).sum() / len(y))


def calibration_error(
    resamples: Resamples, labels: np.ndarray, scores: np.ndarray
) -> dict[str, Any]:
    """`expected_calibration_error` with its limits.

    Noise alone makes it positive, and resampling adds noise to noise, so that percentiles would
    exclude a calibrated model's 0.  The limits are a test turned round instead: with g_b the gaps
    of the bins and e_b the deviations of their replicates from them, the truth may be t * sum |g_b|
    where sum |t * g_b + e_b| is neither below nor above the measured error in all but 2.5 % of the
    replicates.  The value can therefore be above its own upper limit.  A measured error far below
    the noise (a constant score that happens to be the sample's rate) says little about the truth,
    which may be as far as the noise reaches.

    Returns:
        As `interval`.
    """
    rows, y, p = _known(labels, scores)
    if not len(rows):
        return interval(np.full(len(resamples.weights), np.nan), 0, rows=0)
    of = _bins(p)
    sums = resamples.totals_by_bin(of, int(of.max()) + 1, y - p, rows)  # (1 + R, bins)
    total = resamples.totals(np.ones(len(rows)), rows)
    gaps = sums / np.maximum(total, 1)[:, None]
    users = len(np.unique(resamples.codes[rows]))
    result = interval(np.abs(gaps).sum(axis=1), users, rows=len(rows))
    if result["low"] is None:
        return result
    g, e = gaps[0], gaps[1:] - gaps[0]
    tail = (1 - CONFIDENCE) / 2
    noise = float(np.quantile(np.abs(e).sum(axis=1), 1 - tail))
    if result["value"] <= 1e-9 * noise:
        return result | {"low": 0.0, "high": noise}
    times = np.linspace(0, 1 + 2 * noise / result["value"], 121)
    drawn = np.abs(times[:, None, None] * g + e).sum(axis=2)  # (times, R)
    # Rounding must not part a measured error from itself where nothing varies.
    slack = 1e-12
    possible = (np.mean(drawn >= result["value"] - slack, axis=1) > tail) & (
        np.mean(drawn <= result["value"] + slack, axis=1) > tail
    )
    found = times[possible] if possible.any() else np.zeros(1)
    limits = {
        "low": float(found.min() * result["value"]),
        "high": float(found.max() * result["value"]),
    }
    return result | limits


def reliability(
    resamples: Resamples, labels: np.ndarray, scores: np.ndarray
) -> list[dict[str, Any]]:
    """Bins of equally many rows by score, lowest first: score (mean), and label (an interval).

    For a regression task the same: mean score against mean label.
    """
    rows, y, p = _known(labels, scores)
    if not len(rows):
        return []
    of = _bins(p)
    found = []
    for b in range(of.max() + 1):
        inside = of == b
        ones = resamples.totals(np.ones(int(inside.sum())), rows[inside])
        label = ratio(resamples.totals(y[inside], rows[inside]), ones)
        users = len(np.unique(resamples.codes[rows[inside]]))
        found.append(
            {
                "score": float(p[inside].mean()),
                "label": interval(label, users, rows=int(inside.sum())),
            }
        )
    return found


def residuals(labels: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    """Bins by score, lowest first: score (mean), and quantiles of label - score within it."""
    _, y, p = _known(labels, scores)
    if not len(y):
        return []
    of = _bins(p)
    found = []
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
    """Index, label and score of the rows that are not masked, in float64."""
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
