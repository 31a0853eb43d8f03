"""Exact metrics of one task over the rows whose label is not masked."""

from typing import Any

import numpy as np
from sklearn import metrics


def binary(labels: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """AUC and log loss.

    Args:
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities.

    Returns:
        metric ("auc"), value, rows (not masked), masked, positives, rate (of the label),
        mean_score, log_loss (nats).  `value` is None where the labels are all alike, and `reason`
        says so; `log_loss`, `rate` and `mean_score` are None without rows.
    """
    y, p, result = _known(labels, scores)
    result |= {"metric": "auc", "value": None, "positives": int(y.sum())}
    result |= dict.fromkeys(("rate", "mean_score", "log_loss"))
    if not len(y):
        return result | {"reason": "every label is masked"}
    result |= {
        "rate": float(y.mean()),
        "mean_score": float(p.mean()),
        "log_loss": float(metrics.log_loss(y, p, labels=[0, 1])),
    }
    if y.min() == y.max():
        return result | {"reason": f"every label is {y[0]:g}; AUC needs both classes"}
    return result | {"value": float(metrics.roc_auc_score(y, p))}


def regression(labels: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Errors in the label's own units.

    Args:
        labels: (N,), NaN where masked.
        scores: (N,) in the label's units.

    Returns:
        metric ("rmse"), value, rows (not masked), masked, mse, mae, label_mean, label_std,
        mean_score.  All but the counts are None without rows, and `reason` says so.
    """
    y, p, result = _known(labels, scores)
    result |= {"metric": "rmse"}
    if not len(y):
        keys = ("value", "mse", "mae", "label_mean", "label_std", "mean_score")
        return result | dict.fromkeys(keys) | {"reason": "every label is masked"}
    mse = float(metrics.mean_squared_error(y, p))
    return result | {
        "value": mse**0.5,
        "mse": mse,
        "mae": float(metrics.mean_absolute_error(y, p)),
        "label_mean": float(y.mean()),
        "label_std": float(y.std()),
        "mean_score": float(p.mean()),
    }


def _known(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Labels and scores of the rows that are not masked, in float64, and how many there are."""
    known = ~np.isnan(labels)
    counts = {"rows": int(known.sum()), "masked": int((~known).sum())}
    return labels[known].astype(np.float64), scores[known].astype(np.float64), counts
