"""Smearing: the mean of a label that was learnt on its logarithm.

A model of log(1 + y) predicts the mean of that, and its inverse is near y's median.  The mean of y
is estimated by S * exp(c * prediction) - 1, from held-out rows: S is the sum of 1 + y over that of
exp(c * prediction), so that the mean is right at every power c, and c is 1 or, where that clearly
lowers the squared error of y on rows that it was not fitted to, the power of the least error: a few
large labels decide much of that error.

Duan (1983) has c = 1 and takes the mean of the ratios (1 + y) / exp(prediction), which is right
where they do not depend on the prediction.  On Deskdrop they do: low predictions err more, so that
their mean is farther above their median.  His factor is a quarter too high, and with c = 1 two
trainings whose errors are alike on the logarithm differ by 8 % in seconds, because exp() makes much
of how far predictions are spread; with c of 0.4 to 0.6 they differ by 1 %.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics
from multigate.model.evaluation.calibration import CLEARLY, FEWEST, counted, second_half
from multigate.model.ranker.scores import as_score, transform

_POWERS = (0.1, 2.0)
"""Beyond these, scores would be nearly constant, or follow the few largest labels."""


class Smearing(NamedTuple):
    """What turns a prediction of log(1 + y) into the mean of y, plus 1: S * exp(c * prediction).

    Attributes:
        factor: S.
        power: c, above 0, so that the order of the scores stays.
    """

    factor: float
    power: float = 1.0

    def scores(self, task: Task, predicted: np.ndarray) -> np.ndarray:
        """Scores (N,) float64 in the label's own units, clipped to its limits.

        Args:
            task: its transform and limits.
            predicted: (N,) on the label's transform.
        """
        return as_score(task, self.power * predicted.astype(np.float64) + np.log(self.factor))


_NONE = Smearing(1.0)


def fit_task(
    task: Task,
    predicted: np.ndarray,
    labels: np.ndarray,
    times: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> Smearing | None:
    """Fit one task, where that lowers the RMSE in the label's own units on these rows.

    Args:
        task: its transform, loss and limits.
        predicted: (N,) on the label's transform.
        labels: (N,) in own units, none masked.
        times: (N,) of the rows, by which they are halved to check the power; None for at random.
        weights: (N,) of the rows; None if all are equal.

    Returns:
        None where the task is not trained on a logarithm or predicts no mean, where there is no
        row, and where smearing would raise the error.
    """
    if task.transform != "log1p" or not task.predicts_mean or not len(labels):
        return None
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    rows = predicted.astype(np.float64), labels.astype(np.float64), w
    found = _fitted(task, *rows, power=_power(task, *rows, second_half(len(labels), times)))
    return found if _error(task, found, *rows) < _error(task, _NONE, *rows) else None


def fit(
    contract: Contract,
    statistics: Statistics,
    logits: Mapping[str, np.ndarray],
    labels: np.ndarray,
    times: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> dict[str, Smearing]:
    """Fit each task trained on a logarithm, where it lowers the RMSE on these rows.

    Args:
        contract: tasks.
        statistics: of the training split.
        logits: (N,) by task.
        labels: (N, T) in own units, NaN where masked.
        times: (N,) of the rows; None if they have none.
        weights: (N,) of the rows; None if all are equal.
    """
    found = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = counted(labels[:, t], weights)
        of_task = statistics.tasks[name]
        predicted = logits[name][known].astype(np.float64) * of_task.std + of_task.mean
        when, w = (None if one is None else one[known] for one in (times, weights))
        smearing = fit_task(task, predicted, labels[known, t], when, w)
        if smearing is not None:
            found[name] = smearing
    return found


def _power(
    task: Task, predicted: np.ndarray, labels: np.ndarray, w: np.ndarray, late: np.ndarray
) -> float:
    """The power for predictions, labels and weights (N,), checked on the halves of `late` (N,)."""
    if len(labels) < FEWEST:
        return 1.0
    none, plain, free = np.zeros((3, len(labels)))  # squared errors of rows that were held out
    for half in (late, ~late):
        fitted_to = predicted[~half], labels[~half], w[~half]
        powers = (1.0, _best(task, *fitted_to))
        of_half = (_NONE, *(_fitted(task, *fitted_to, power=power) for power in powers))
        for errors, one in zip((none, plain, free), of_half, strict=True):
            errors[half] = w[half] * (one.scores(task, predicted[half]) - labels[half]) ** 2
    gains = (none - free, plain - free)
    least = CLEARLY / np.sqrt(len(labels))
    clearly = all(gain.mean() > least * gain.std() for gain in gains)
    return _best(task, predicted, labels, w) if clearly else 1.0


def _best(task: Task, predicted: np.ndarray, labels: np.ndarray, w: np.ndarray) -> float:
    """The power of the least squared error on predictions, labels and weights (N,)."""

    def error(power: float) -> float:
        return _error(task, _fitted(task, predicted, labels, w, power=power), predicted, labels, w)

    return float(minimize_scalar(error, bounds=_POWERS, method="bounded").x)


def _fitted(
    task: Task, predicted: np.ndarray, labels: np.ndarray, w: np.ndarray, *, power: float
) -> Smearing:
    """With the factor by which the sums over predictions, labels and weights (N,) agree."""
    average = partial(np.average, weights=w)
    sums = average(np.exp(transform(task, labels))), average(np.exp(power * predicted))
    return Smearing(float(np.divide(*sums)), power)


def _error(
    task: Task, smearing: Smearing, predicted: np.ndarray, labels: np.ndarray, w: np.ndarray
) -> float:
    """The mean squared error on predictions, labels and weights (N,)."""
    return float(np.average((smearing.scores(task, predicted) - labels) ** 2, weights=w))
