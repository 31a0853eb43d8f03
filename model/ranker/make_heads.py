"""The head of each task, from its configuration and the statistics of its label."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections import losses as configs
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.ranker import scores
from multigate.model.ranker.heads.censored import Censored
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.heads.location import Huber, Logistic, Quantile, Squared
from multigate.model.ranker.heads.ordinal import Ordinal
from multigate.model.ranker.heads.zero_inflated import ZeroInflated


def make_head(task: Task, statistics: TaskStatistics, rate: float | None = None) -> Head:
    """The head of a task.

    Args:
        task: its type, loss, transform and cap.
        statistics: of the task, from the training split; with `quantiles` if `reads_quantiles`.
        rate: initial probability of a binary task; its label's rate if None.
    """
    if task.type == "binary":
        rate = min(max(statistics.mean if rate is None else rate, 1e-4), 1 - 1e-4)
        return Logistic(math.log(rate / (1 - rate)))
    return Squared() if task.loss is None else _MAKERS[type(task.loss)](task, statistics)


def make_heads(contract: Contract, statistics: Statistics) -> dict[str, Head]:
    """The heads of all tasks, by name; conditional ones of a funnel start at P(task | given)."""
    found = {}
    for name, task in contract.tasks.items():
        rate = None
        if task.given is not None:
            rate = statistics.tasks[name].mean / max(statistics.tasks[task.given].mean, 1e-6)
        found[name] = make_head(task, statistics.tasks[name], rate)
    return found


def reads_quantiles(task: Task) -> bool:
    """Whether the task's head needs the quantiles of its training labels."""
    return isinstance(task.loss, configs.Ordinal | configs.ZeroInflated | configs.Quantile)


def _standardised(statistics: TaskStatistics, values: Any) -> np.ndarray:
    found: np.ndarray = (np.asarray(values, np.float64) - statistics.mean) / statistics.std
    return found


def _quantile(task: Task, statistics: TaskStatistics) -> Head:
    assert isinstance(task.loss, configs.Quantile)
    known = _standardised(statistics, statistics.quantiles or [statistics.mean])
    return Quantile(task.loss.q, float(np.quantile(known, task.loss.q)))


def _censored(task: Task, statistics: TaskStatistics) -> Head:
    assert task.cap is not None
    cap = scores.targets(task, statistics, np.array([task.cap], np.float32))
    return Censored(float(cap[0]))


def ordinal_thresholds(statistics: TaskStatistics, count: int) -> tuple[float, ...]:
    """At most `count` thresholds at quantiles of the training labels, ascending."""
    known = _known_labels(statistics)
    # A threshold is a label itself, and "above" means beyond it: stars 1 to 5 give 1, 2, 3, 4.
    chosen = np.quantile(known, np.arange(1, count + 1) / (count + 1), method="lower")
    thresholds = np.unique(chosen[chosen < known[-1]])
    if not len(thresholds):  # most labels are the largest one
        thresholds = known[known < known[-1]][-1:]
    return tuple(float(one) for one in thresholds)


def _ordinal(task: Task, statistics: TaskStatistics) -> Head:
    """The head at the thresholds of the statistics; levels are those of the present labels.

    Each level is the mean of the labels in its range, so that after a warm start on labels that
    have grown the highest level grows too.  An empty range has its middle.
    """
    assert isinstance(task.loss, configs.Ordinal)
    known = _known_labels(statistics)
    thresholds = np.asarray(
        statistics.thresholds or ordinal_thresholds(statistics, task.loss.thresholds)
    )
    place = np.searchsorted(thresholds, known, side="left")  # (Q,) number of the range
    ends = np.concatenate([thresholds[:1], thresholds, thresholds[-1:]])
    levels = np.array(
        [
            known[place == k].mean() if (place == k).any() else ends[k : k + 2].mean()
            for k in range(len(thresholds) + 1)
        ]
    )
    rates = np.array([(known > threshold).mean() for threshold in thresholds])
    return Ordinal(_standardised(statistics, thresholds), _standardised(statistics, levels), rates)


def _known_labels(statistics: TaskStatistics) -> np.ndarray:
    """Quantiles of the labels; two numbers where they are all alike."""
    known = np.asarray(statistics.quantiles, np.float64)
    if len(known) < 2 or known[0] == known[-1]:
        known = np.array([statistics.mean, statistics.mean + 1.0])
    return known


def _zero_inflated(task: Task, statistics: TaskStatistics) -> Head:
    known = np.asarray(statistics.quantiles, np.float64)
    amounts = known[known > 0] if (known > 0).any() else np.ones(1)
    logs = np.log(amounts)
    return ZeroInflated(
        statistics.mean,
        statistics.std,
        zero=float(scores.targets(task, statistics, np.zeros(1, np.float32))[0]),
        largest=float(amounts.max()),
        rate=float((known > 0).mean()) if len(known) else 0.5,
        log_mean=float(logs.mean()),
        log_std=max(float(logs.std()), 0.1),
    )


_MAKERS: Mapping[type, Callable[[Any, TaskStatistics], Head]] = {
    configs.Squared: lambda task, statistics: Squared(),
    configs.Huber: lambda task, statistics: Huber(task.loss.delta),
    configs.Quantile: _quantile,
    configs.Censored: _censored,
    configs.Ordinal: _ordinal,
    configs.ZeroInflated: _zero_inflated,
}
