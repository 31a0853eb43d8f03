"""The combined score in NumPy; its counterpart in the served graph is `servable.combine`."""

from collections.abc import Mapping

import numpy as np

from multigate.configs.contract import Contract


def combine(
    contract: Contract,
    scores: Mapping[str, np.ndarray],
    weights: Mapping[str, float] | None = None,
) -> np.ndarray:
    """Combine task scores into one to rank by.

    `sum`: the sum over tasks of weight * score; `product`: the product of
    max(score, epsilon) ** weight.

    Args:
        contract: the rule, and the tasks' weights.
        scores: (N,) by task.
        weights: by task, instead of the contract's.

    Returns:
        (N,) float64.
    """
    if weights is None:
        weights = {name: task.score_weight for name, task in contract.tasks.items()}
    w = np.array([weights[name] for name in contract.tasks])
    stacked = np.stack([scores[name].astype(np.float64) for name in contract.tasks], axis=1)
    if contract.combine.kind == "sum":
        found: np.ndarray = stacked @ w
        return found
    floored = np.maximum(stacked, contract.combine.epsilon)
    return np.prod(floored**w, axis=1)
