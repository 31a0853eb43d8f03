"""The combined score in NumPy, and the gain of a row, which is the same rule applied to its labels.

The counterpart in the served graph is `model.export.graph.combine`.
"""

from collections.abc import Mapping

import numpy as np

from multigate.configs.contract import Contract
from multigate.explanation.terms import combined, terms


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
    stacked = np.stack([scores[name] for name in contract.tasks], axis=1)
    return combined(contract.combine, terms(contract.combine, stacked, w))


def gains(
    contract: Contract, labels: np.ndarray, weights: Mapping[str, float] | None = None
) -> np.ndarray:
    """Gain of every row: the combined labels, less what labels of 0 combine to, at least 0.

    A masked label counts as 0.  With `sum` the gain is max(0, the sum of weight * label).  With
    `product`, weights 1 and 1 and an epsilon of 0.01, a row with both labels has 1 - 0.0001, a row
    with one of them 0.01 - 0.0001 and a row with neither 0.

    Args:
        contract: the rule, and the tasks' weights.
        labels: (N, T) in own units, NaN where masked.
        weights: by task, instead of the contract's.

    Returns:
        (N,) float64.
    """
    known = np.nan_to_num(labels.astype(np.float64), nan=0.0)
    combined = combine(contract, dict(zip(contract.tasks, known.T, strict=True)), weights)
    zeros = {name: np.zeros(1) for name in contract.tasks}
    nothing = combine(contract, zeros, weights)[0]
    gain = combined - nothing
    # Powers of the same numbers may differ by rounding, which must not make a row relevant.
    found: np.ndarray = np.where(gain > 1e-9 * nothing, gain, 0.0)
    return found
