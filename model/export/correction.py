"""What is wrong with scores for known reasons, and put right by a shift of the logit.

Downsampled negatives.  Where training held the share s of a task's negatives, the odds that it
learnt are 1/s times too high: p / (p + (1 - p) / s) are right, which is the logit plus log(s).
`statistics.json` has the share of the impressions without a positive label that training kept.
One task's negatives that are another's positives were all kept, and a task that is masked on what
was left out lost none; therefore s is counted for each task on the validation split, which is not
downsampled.  With a single task that is the share itself, and the correction is exact; with
several, it is exact on average.  Sampled negatives, of items that the log does not show, are not
logged impressions, and no correction is known for them.

Smearing (Duan 1983).  A task trained on log(1 + y) predicts the mean of that, and its inverse is
near y's median.  The mean of y is estimated by S * exp(prediction) - 1, S the mean over the
validation split of exp(label - prediction) on the logarithmic scale: the logit plus log(S) / std.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.export.calibration import Curve
from multigate.model.ranker import scores


def shares(
    contract: Contract, kept: float, tasks: Sequence[str], labels: np.ndarray, sampled: np.ndarray
) -> dict[str, float]:
    """The share of its negatives that each binary task was trained on; those of 1 are left out.

    Args:
        contract: tasks.
        kept: share of the impressions without a positive label that training held.
        tasks: whose labels make an impression positive; none: all binary tasks.
        labels: (N, T) of a split that is not downsampled, NaN where masked.
        sampled: (N,) bool, sampled negatives.
    """
    binary = [name for name, task in contract.tasks.items() if task.type == "binary"]
    if kept == 1:
        return {}
    column = {name: t for t, name in enumerate(contract.tasks)}
    positive = (labels[:, [column[name] for name in tasks or binary]] == 1).any(axis=1)
    stays = np.where(positive | sampled, 1.0, kept)  # (N,) chance to be in training
    found = {}
    for name in binary:
        negative = labels[:, column[name]] == 0
        if negative.any() and (share := float(stays[negative].mean())) < 1:
            found[name] = share
    return found


def shift(offset: float) -> Curve:
    """The logit plus an offset."""
    return Curve(np.zeros(1, np.float32), np.array([offset], np.float32), 1.0)


def after(curve: Curve, offset: float) -> Curve:
    """The curve applied to the logit plus an offset."""
    return curve._replace(x=(curve.x - offset).astype(np.float32))


def smearing(
    contract: Contract,
    statistics: Statistics,
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
) -> dict[str, float]:
    """The factor S of each task trained on a logarithm whose RMSE it lowers on these rows.

    Args:
        contract: tasks.
        statistics: of the training split.
        logits: (N,) by task.
        labels: (N, T) in own units, NaN where masked.
    """
    found = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = ~np.isnan(labels[:, t])
        if task.transform != "log1p" or not known.any():
            continue
        of_task = statistics.tasks[name]
        y = labels[known, t]
        predicted = logits[name][known].astype(np.float64) * of_task.std + of_task.mean
        factor = float(np.exp(scores.transform(task, y) - predicted).mean())
        before = rmse(contract, statistics, name, logits[name][known], y)
        shifted = logits[name][known] + np.log(factor) / of_task.std
        if rmse(contract, statistics, name, shifted, y) < before:
            found[name] = factor
    return found


def rmse(
    contract: Contract, statistics: Statistics, task: str, logits: np.ndarray, labels: np.ndarray
) -> float:
    """Root mean squared error in the label's own units, of logits and labels (N,)."""
    found: Any = scores.score(
        contract.tasks[task], statistics.tasks[task], logits.astype(np.float32)
    )
    return float(np.sqrt(np.mean((np.asarray(found, np.float64) - labels) ** 2)))
