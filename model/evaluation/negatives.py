"""The share of a task's negatives that training held, where the pipeline downsampled them.

`model.export.links` says what it corrects, and why it is counted on the validation split.
"""

from collections.abc import Sequence

import numpy as np

from multigate.configs.contract import Contract


def negative_shares(
    contract: Contract,
    kept: float,
    tasks: Sequence[str],
    labels: np.ndarray,
    sampled: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """The share of its negatives that each binary task was trained on; shares of 1 are left out.

    Args:
        contract: tasks.
        kept: share of the impressions without a positive label that training held.
        tasks: an impression is positive if one of these tasks has a positive label; if none is
            given, all binary tasks count.
        labels: (N, T) of a split that is not downsampled, NaN where masked; of each impression
            once (`Rows.once`).
        sampled: (N,) bool, sampled negatives.
        weights: (N,) of the rows; None if all are equal.
    """
    binary = contract.binary_tasks()
    if kept == 1:
        return {}
    column = {name: t for t, name in enumerate(contract.tasks)}
    positive = (labels[:, [column[name] for name in tasks or binary]] == 1).any(axis=1)
    stays = np.where(positive | sampled, 1.0, kept)  # (N,) chance to be in training
    found = {}
    for name in binary:
        negative = np.where(labels[:, column[name]] == 0, 1.0 if weights is None else weights, 0.0)
        if negative.any() and (share := float(np.average(stays, weights=negative))) < 1:
            found[name] = share
    return found
