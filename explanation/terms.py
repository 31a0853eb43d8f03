"""What each task gives to the combined score: an addend or a factor.

The counterpart in the served graph is `model.export.graph.combine`.
"""

import numpy as np

from multigate.configs.contract import Combine


def terms(rule: Combine, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each task's term (N, T) of the combined score.

    `sum`: weight * score, an addend; `product`: max(score, epsilon) ** weight, a factor.

    Args:
        rule: of the contract.
        scores: (N, T).
        weights: (T,), or (N, T).
    """
    known = scores.astype(np.float64)
    found: np.ndarray = (
        known * weights if rule.kind == "sum" else np.maximum(known, rule.epsilon) ** weights
    )
    return found


def combined(rule: Combine, found: np.ndarray) -> np.ndarray:
    """The combined score (N,) of terms (N, T)."""
    total: np.ndarray = found.sum(axis=1) if rule.kind == "sum" else found.prod(axis=1)
    return total
