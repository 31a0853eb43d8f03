"""Logits to scores in the labels' own units, and back for targets."""

from collections.abc import Mapping

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.gates.parts.base import Tensor


def score(task: Task, statistics: TaskStatistics, logit: Tensor) -> Tensor:
    """Score of one task in its label's own units.

    binary: sigmoid(logit), a probability.  regression: logit * std + mean, then exp(.) - 1 where
    the label's transform is log1p, then clipped to the task's limits.

    Args:
        task: its type, transform and limits.
        statistics: of the task, from the training split.
        logit: any shape, a backend's tensor.

    Returns:
        The logit's shape.
    """
    ops = keras.ops
    if task.type == "binary":
        return ops.sigmoid(logit)
    value = logit * statistics.std + statistics.mean
    if task.transform == "log1p":
        value = ops.expm1(value)
    if task.limits is not None:
        value = ops.clip(value, *task.limits)
    return value


def scores(
    contract: Contract, statistics: Statistics, logits: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Scores of all tasks, by name, in the contract's order."""
    return {
        name: score(task, statistics.tasks[name], logits[name])
        for name, task in contract.tasks.items()
    }


def targets(task: Task, statistics: TaskStatistics, labels: np.ndarray) -> np.ndarray:
    """Training targets of the logit; for regression the inverse of `score`, without the clip.

    Args:
        task: its type and transform.
        statistics: of the task, from the training split.
        labels: (N,) float32 in own units, NaN where masked.

    Returns:
        (N,) float32, NaN where masked.
    """
    return scaled(task, statistics, transform(task, labels))


def scaled(task: Task, statistics: TaskStatistics, transformed: np.ndarray) -> np.ndarray:
    """Targets (N,) float32 of values on the label's transform; those of a chance are the chance."""
    if task.type == "binary":
        return transformed.astype(np.float32)
    return ((transformed - statistics.mean) / statistics.std).astype(np.float32)


def transform(task: Task, values: np.ndarray) -> np.ndarray:
    """The label's transform, in float64; log1p is log(1 + max(x, 0))."""
    values = values.astype(np.float64)
    return np.log1p(np.maximum(values, 0.0)) if task.transform == "log1p" else values


def as_score(task: Task, values: np.ndarray) -> np.ndarray:
    """Values (...) on the label's transform as scores: in own units, within the limits, float64."""
    values = values.astype(np.float64)
    values = np.expm1(values) if task.transform == "log1p" else values
    return values if task.limits is None else np.clip(values, *task.limits)
