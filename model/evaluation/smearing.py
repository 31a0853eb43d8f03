"""Smearing: the mean of a label that was learnt on its logarithm.

A model of log(1 + y) predicts the mean of that, and its inverse is near y's median.  The mean of y
is estimated by S * exp(prediction) - 1, with S the sum over held-out rows of 1 + y over that of
exp(prediction).  Duan (1983) takes the mean of the ratios (1 + y) / exp(prediction) instead, which
is the same where they do not depend on the prediction.  On Deskdrop they do: low predictions err
more, and his factor is a quarter too high.
"""

from collections.abc import Mapping

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics
from multigate.model.evaluation.calibration import counted
from multigate.model.ranker.scores import as_score, transform


def smearing_factor(
    task: Task, predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> float | None:
    """The factor S, where it lowers the RMSE in the label's own units on these rows.

    Args:
        task: its transform, loss and limits.
        predicted: (N,) on the label's transform.
        labels: (N,) in own units, none masked.
        weights: (N,) of the rows; None if all are equal.

    Returns:
        None where the task is not trained on a logarithm or predicts no mean, where there is no
        row, and where S would raise the error.
    """
    if task.transform != "log1p" or not task.predicts_mean or not len(labels):
        return None
    means = (np.average(np.exp(x), weights=weights) for x in (transform(task, labels), predicted))
    factor = float(np.divide(*means))
    before, after = (
        np.average((smear(task, predicted, by) - labels) ** 2, weights=weights)
        for by in (1.0, factor)
    )
    return factor if after < before else None


def smearing_factors(
    contract: Contract,
    statistics: Statistics,
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """The factor S of each task trained on a logarithm, where it lowers the RMSE on these rows.

    Args:
        contract: tasks.
        statistics: of the training split.
        logits: (N,) by task.
        labels: (N, T) in own units, NaN where masked.
        weights: (N,) of the rows; None if all are equal.
    """
    found = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = counted(labels[:, t], weights)
        of_task = statistics.tasks[name]
        predicted = logits[name][known].astype(np.float64) * of_task.std + of_task.mean
        w = None if weights is None else weights[known]
        factor = smearing_factor(task, predicted, labels[known, t].astype(np.float64), w)
        if factor is not None:
            found[name] = factor
    return found


def smear(task: Task, predicted: np.ndarray, factor: float) -> np.ndarray:
    """Scores (N,) float64 in the label's own units, clipped to its limits.

    Args:
        task: its transform and limits.
        predicted: (N,) on the label's transform.
        factor: of `smearing_factor`; 1 changes nothing.
    """
    return as_score(task, predicted.astype(np.float64) + np.log(factor))
