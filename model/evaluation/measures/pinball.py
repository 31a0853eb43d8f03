"""Pinball loss, the measure of a predicted quantile (Koenker and Bassett 1978).

Its mean is least where a share q of the labels is at or below the score: a label above the score
costs q times the distance, one below 1 - q times.
"""

import numpy as np


def losses(labels: np.ndarray, scores: np.ndarray | float, q: float) -> np.ndarray:
    """Pinball loss (n,) of each row, in the label's units.

    Args:
        labels: (n,).
        scores: (n,), or one for all rows.
        q: the quantile, between 0 and 1.
    """
    residual = labels - scores
    found: np.ndarray = np.maximum(q * residual, (q - 1) * residual)
    return found


def best_constant(labels: np.ndarray, q: float, weights: np.ndarray | None = None) -> float:
    """The score that has the least mean loss if every row has it: the labels' q-quantile.

    Args:
        labels: (n,), at least one.
        q: the quantile, between 0 and 1.
        weights: (n,) of the rows, not all 0; None if all are equal.
    """
    order = np.argsort(labels, kind="stable")
    running = np.cumsum(np.ones(len(labels)) if weights is None else weights[order])
    return float(labels[order[np.searchsorted(running, q * running[-1])]])
