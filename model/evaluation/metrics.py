"""Exact metrics of one task over the rows with a label, by scikit-learn."""

import numpy as np
from sklearn import metrics

from multigate.configs.sections.labels import Task
from multigate.model.evaluation.measures import pinball
from multigate.model.evaluation.results import Metrics


def of_task(task: Task, labels: np.ndarray, scores: np.ndarray) -> Metrics:
    """Metrics of a task: those of `binary`, `regression` or `quantile`."""
    if task.quantile is not None:
        return quantile(labels, scores, task.quantile)
    return (binary if task.type == "binary" else regression)(labels, scores)


def binary(labels: np.ndarray, scores: np.ndarray) -> Metrics:
    """AUC and log loss.

    Args:
        labels: (N,) 0 or 1, NaN where masked.
        scores: (N,) probabilities.

    Returns:
        Without a value where all labels are alike.
    """
    y, p = _known(labels, scores)
    result: Metrics = {
        "rows": len(y),
        "masked": len(labels) - len(y),
        "metric": "auc",
        "value": None,
        "positives": int(y.sum()),
        "rate": None,
        "mean_score": None,
        "log_loss": None,
    }
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


def regression(labels: np.ndarray, scores: np.ndarray) -> Metrics:
    """RMSE and other errors, in the label's own units.

    Args:
        labels: (N,), NaN where masked.
        scores: (N,) in the label's units.
    """
    y, p = _known(labels, scores)
    result: Metrics = {
        "rows": len(y),
        "masked": len(labels) - len(y),
        "metric": "rmse",
        "value": None,
        "mse": None,
        "mae": None,
        "label_mean": None,
        "label_std": None,
        "mean_score": None,
    }
    if not len(y):
        return result | {"reason": "every label is masked"}
    mse = float(metrics.mean_squared_error(y, p))
    return result | {
        "value": mse**0.5,
        "mse": mse,
        "mae": float(metrics.mean_absolute_error(y, p)),
        "label_mean": float(y.mean()),
        "label_std": float(y.std()),
        "mean_score": float(p.mean()),
    }


def quantile(labels: np.ndarray, scores: np.ndarray, q: float) -> Metrics:
    """Pinball loss and coverage, in the label's own units.

    Args:
        labels: (N,), NaN where masked.
        scores: (N,) in the label's units.
        q: the quantile that they predict.
    """
    y, p = _known(labels, scores)
    result: Metrics = {
        "rows": len(y),
        "masked": len(labels) - len(y),
        "metric": "pinball",
        "value": None,
        "q": q,
        "pinball": None,
        "pinball_of_constant": None,
        "coverage": None,
        "label_mean": None,
        "label_std": None,
        "mean_score": None,
    }
    if not len(y):
        return result | {"reason": "every label is masked"}
    constant = np.full(len(y), pinball.best_constant(y, q))
    loss, most = (float(metrics.mean_pinball_loss(y, of, alpha=q)) for of in (p, constant))
    return result | {
        "value": loss,
        "pinball": loss,
        "pinball_of_constant": most,
        "coverage": float((y <= p).mean()),
        "label_mean": float(y.mean()),
        "label_std": float(y.std()),
        "mean_score": float(p.mean()),
    }


def _known(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of the rows with a label, in float64."""
    known = ~np.isnan(labels)
    return labels[known].astype(np.float64), scores[known].astype(np.float64)
