"""Validation: losses and quality of every task, from one pass over the validation split.

The quality of a binary task is its AUC, exact, ties counting half.  That of a regression task is
its explained variance on the scale of training, 1 - Var(label - output) / Var(label): a constant
offset does not count, because calibration removes it.  That of a task that predicts a quantile is
its pinball skill on the same scale: 1 - its pinball loss over that of the best constant, which is
the labels' own quantile.  There an offset counts, because nothing calibrates it.  A task's quality
is measured from `FEWEST` labels of each class (regression: `FEWEST` labels that are not all alike)
upward.

`quality` is the mean over the tasks that are measured and that the loss weighs, each task alike,
whatever its loss weight: a small loss weight often only balances units.  A quality below -1 counts
as -1 in it, so that one task far off does not decide alone.

Keras's `evaluate` was considered: it gives no logits, so that AUC would need a second pass, and its
AUC metric is approximate.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.data.examples import Taught
from multigate.model.data.feeds import Feed
from multigate.model.evaluation.measures import pinball
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.scores import scaled

FEWEST = 10
_LOWEST = -1.0  # of a quality in the mean

QUALITIES = {"binary": "AUC", "regression": "explained variance", "quantile": "pinball skill"}
"""What a task's quality is, in words, by `Task.measured_as`."""

Forward = Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Encoded features of B rows to logits (B,) and the heads' outputs (B, K), by task."""


class Quality(NamedTuple):
    """A task's quality and its standard error; None where there are too few labels."""

    value: float | None
    error: float | None


class Validated(NamedTuple):
    """What one validation found.

    Attributes:
        losses: mean of the head's loss over the rows with a label, by task.
        qualities: by task.
        quality: mean of the tasks' qualities; None where none is measured.
        logits: (N,) by task.
        targets: (N, T), NaN where masked.
        weights: (N,) of the rows.
    """

    losses: dict[str, float]
    qualities: dict[str, Quality]
    quality: float | None
    logits: dict[str, np.ndarray]
    targets: np.ndarray
    weights: np.ndarray


def make_forward(ranker: Ranker) -> Forward:
    """The ranker outside training, compiled for many batches."""
    if backend.name() != "tensorflow":
        return ranker.jitted(ranker.validate_on)
    import tensorflow as tf

    # Not `ranker` itself: Keras would trace its call anew for every size of a batch.
    compiled: Forward = tf.function(ranker.validate_on, reduce_retracing=True)
    return compiled


def validate(
    forward: Forward, feed: Feed, contract: Contract, heads: Mapping[str, Head]
) -> Validated:
    """Measure the ranker on a split.

    Args:
        forward: of `make_forward`.
        feed: the split's rows, with their weights if they have some.
        contract: tasks.
        heads: of the tasks.
    """
    logits: dict[str, list[np.ndarray]] = {name: [] for name in contract.tasks}
    outputs: dict[str, list[np.ndarray]] = {name: [] for name in contract.tasks}
    aims: list[list[np.ndarray]] = []
    for encoded, *of_batch in feed.epoch():
        for found, parts in zip(forward(encoded), (logits, outputs), strict=True):
            for name, values in found.items():
                parts[name].append(_numpy(values))
        aims.append([_numpy(values) for values in of_batch])
    y, w = _joined(aims)
    z = {name: np.concatenate(parts).astype(np.float64) for name, parts in logits.items()}
    losses, qualities = {}, {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = ~np.isnan(y[:, t])
        of_task = z[name][known], y[known, t], w[known]
        losses[name] = _loss(*of_task, heads[name], outputs[name], known)
        qualities[name] = _quality(task, *of_task)
    measured = [
        max(quality.value, _LOWEST)
        for name, quality in qualities.items()
        if quality.value is not None and contract.tasks[name].weight > 0
    ]
    quality = float(np.mean(measured)) if measured else None
    return Validated(losses, qualities, quality, z, y, w)


def teacher_qualities(
    taught: Taught, feed: Feed, contract: Contract, statistics: Statistics
) -> dict[str, float]:
    """The qualities of a teacher's scores on a split, by task that it teaches.

    A task that cannot be measured has none.

    Args:
        taught: its scores of the split's rows are read.
        feed: the split's rows.
        contract: tasks.
        statistics: of the training split.
    """
    y, w = _joined([[_numpy(values) for values in aims] for _, *aims in feed.epoch()])
    found = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        scores = taught.held_out[:, t]
        known = ~np.isnan(y[:, t]) & ~np.isnan(scores)
        z = scaled(task, statistics.tasks[name], scores[known]).astype(np.float64)
        value = _quality(task, z, y[known, t], w[known]).value
        if value is not None:
            found[name] = value
    return found


def _joined(batches: Iterable[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Targets (N, T) of batches, and the rows' weights (N,), 1 where they have none."""
    y, *w = (np.concatenate(parts).astype(np.float64) for parts in zip(*batches, strict=True))
    return y, w[0] if w else np.ones(len(y))


def _quality(task: Task, z: np.ndarray, y: np.ndarray, w: np.ndarray) -> Quality:
    if task.quantile is not None:
        return pinball_skill(z, y, w, task.quantile)
    return (auc if task.type == "binary" else explained_variance)(z, y, w)


def auc(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> Quality:
    """Area under the ROC curve with its standard error (DeLong, DeLong and Clarke-Pearson 1988).

    With v_i the weight of the negatives that positive i beats, as a share of all negatives, the
    area is the weighted mean of v_i, and its variance that of the two means, over positives and
    over negatives.

    Args:
        z: (n,) logits.
        y: (n,) 0 or 1.
        w: (n,) weights of the rows.
    """
    counts = w > 0
    z, positive, w = z[counts], y[counts] > 0.5, w[counts]
    if min(positive.sum(), (~positive).sum()) < FEWEST:
        return Quality(None, None)
    above, below = (z[positive], w[positive]), (z[~positive], w[~positive])
    v = _share_below(above[0], *below)  # (positives,)
    u = 1 - _share_below(below[0], *above)  # (negatives,) the positives that beat each negative
    area = float(np.average(v, weights=above[1]))
    variance = _variance_of_mean(v, above[1]) + _variance_of_mean(u, below[1])
    return Quality(area, math.sqrt(variance))


def explained_variance(z: np.ndarray, y: np.ndarray, w: np.ndarray) -> Quality:
    """1 - Var(y - z) / Var(y), with its standard error by linearisation.

    Args:
        z: (n,) outputs.
        y: (n,) labels on the same scale.
        w: (n,) weights of the rows.
    """
    counts = w > 0
    z, y, w = z[counts], y[counts], w[counts]
    if len(y) < FEWEST or np.ptp(y) == 0:
        return Quality(None, None)
    spread, left = ((x - np.average(x, weights=w)) ** 2 for x in (y, y - z))
    total = float(np.average(spread, weights=w))
    value = 1 - float(np.average(left, weights=w)) / total
    # Its mean is 0: the change of the value by one more row of this kind.
    influence = (left - (1 - value) * spread) / total
    return Quality(value, math.sqrt(_variance_of_mean(influence, w)))


def pinball_skill(z: np.ndarray, y: np.ndarray, w: np.ndarray, q: float) -> Quality:
    """1 - pinball loss / that of the best constant, with its standard error by linearisation.

    Args:
        z: (n,) outputs.
        y: (n,) labels on the same scale.
        w: (n,) weights of the rows.
        q: the quantile that the outputs predict.
    """
    counts = w > 0
    z, y, w = z[counts], y[counts], w[counts]
    if len(y) < FEWEST or np.ptp(y) == 0:
        return Quality(None, None)
    left = pinball.losses(y, z, q)
    most = pinball.losses(y, pinball.best_constant(y, q, w), q)
    total = float(np.average(most, weights=w))
    value = 1 - float(np.average(left, weights=w)) / total
    # As above; at its best, the constant's own error changes nothing in the first order.
    influence = (left - (1 - value) * most) / total
    return Quality(value, math.sqrt(_variance_of_mean(influence, w)))


def _share_below(scores: np.ndarray, others: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Share of the others' weight that lies below each score (n,), ties counting half."""
    order = np.argsort(others, kind="stable")
    running = np.concatenate([[0.0], np.cumsum(weights[order])])
    ends = (np.searchsorted(others[order], scores, side=side) for side in ("left", "right"))
    found: np.ndarray = sum(running[end] for end in ends) / (2 * running[-1])
    return found


def _variance_of_mean(x: np.ndarray, w: np.ndarray) -> float:
    """Variance of the weighted mean of independent values (n,)."""
    share = w / w.sum()
    return float(np.sum((share * (x - np.sum(share * x))) ** 2))


def _loss(
    z: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    head: Head,
    outputs: list[np.ndarray],
    known: np.ndarray,
) -> float:
    """Weighted mean of the head's row losses; 0 without weight.

    Args:
        z: (n,) logits, which are the outputs of heads with one output.
        y: (n,) labels.
        w: (n,) weights.
        head: of the task.
        outputs: parts of (N, K), of all rows.
        known: (N,) the n rows with a label.
    """
    of_rows = np.concatenate(outputs)[known] if len(head.start) > 1 else z[:, None]
    losses = _numpy(head.losses(of_rows.astype(np.float32), y.astype(np.float32)))
    total = w.sum()
    return float(np.sum(losses.astype(np.float64) * w) / total) if total > 0 else 0.0


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
