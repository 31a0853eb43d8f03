"""Heads: what a task's tower outputs mean, its loss, and the one number that it predicts.

A tower has K outputs per row.  A head turns them into the task's logit (B,): of a binary task the
logit of the probability, of a regression task the prediction of the transformed, standardised
label.  Everything after the ranker (scores, metrics, calibration, parity) reads that number only,
so that a loss is chosen in one place.  A head has no weights of its own.

Notation: y a target on the scale of the logit, o_0 .. o_{K-1} a row's outputs.  Constants that no
weight changes are left out of the losses.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections import losses as configs
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker import normal, scores

_LOG_SIGMA = (-5.0, 3.0)
"""Limits of a learnt log deviation: beyond them losses explode."""


class Head(Protocol):
    """One task's loss and prediction.

    Attributes:
        start: initial outputs, K of them, for the tower's bias.
        shifted: (K,) 1 for each output to which the wide and the position term are added, else 0.
    """

    start: tuple[float, ...]
    shifted: tuple[float, ...]

    def logit(self, outputs: Tensor) -> Tensor:
        """The task's logit (B,) from outputs (B, K)."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss (B,) of each row from outputs (B, K) and targets (B,), which are not NaN."""

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """How the outputs change when labels are standardised anew as y' = scale * y + shift.

        Returns:
            a and b, (K,) each: the outputs o' = a * o + b say of y' what o said of y.
        """


class _Location:
    """A head with one output, which is the logit."""

    shifted: tuple[float, ...] = (1.0,)

    def __init__(self, start: float = 0.0) -> None:
        self.start: tuple[float, ...] = (start,)

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        return outputs[:, 0]

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.array([scale]), np.array([shift])


class Logistic(_Location):
    """Binary tasks: cross entropy in nats, from the logit."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        z = outputs[:, 0]
        return keras.ops.softplus(z) - targets * z

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.ones(1), np.zeros(1)


class Squared(_Location):
    """(y - o)^2; predicts the mean."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        return keras.ops.square(targets - outputs[:, 0])


class Huber(_Location):
    """r^2 where |r| = |y - o| <= delta, else 2 delta |r| - delta^2 (Huber 1964, times two).

    Near 0 it is the squared error, so that a task's weight keeps its meaning.
    """

    def __init__(self, delta: float) -> None:
        super().__init__()
        self.delta = delta

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        distance = ops.abs(targets - outputs[:, 0])
        near = ops.minimum(distance, self.delta)
        return near * (2.0 * distance - near)


class Quantile(_Location):
    """Pinball loss max(q r, (q - 1) r) of r = y - o (Koenker and Bassett 1978)."""

    def __init__(self, q: float, start: float = 0.0) -> None:
        super().__init__(start)
        self.q = q

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        residual = targets - outputs[:, 0]
        return keras.ops.maximum(self.q * residual, (self.q - 1.0) * residual)


class Censored:
    """Tobit (Tobin 1958): the label is min(Y, cap), with Y normal of mean o_0, deviation e^o_1.

        loss   = o_1 + (y - o_0)^2 / (2 e^(2 o_1))    below the cap
                 -log P(Y >= cap)                     at the cap
        logit  = E[min(Y, cap)] = cap - sigma (a Phi(a) + phi(a)),  a = (cap - o_0) / sigma

    The prediction is that of the label as it is stored.  It rises with o_0, so rows far beyond the
    cap keep their order up to rounding.

    Args:
        cap: on the scale of the targets.
    """

    start: tuple[float, ...] = (0.0, 0.0)
    shifted: tuple[float, ...] = (1.0, 0.0)

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        mean, _, sigma = self._parts(outputs)
        a = (self.cap - mean) / sigma
        below = sigma * (a * normal.cdf(a) + normal.density(a))  # E[max(cap - Y, 0)]
        return self.cap - keras.ops.maximum(below, 0.0)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        mean, log_sigma, sigma = self._parts(outputs)
        seen = log_sigma + 0.5 * ops.square((targets - mean) / sigma)
        beyond = -normal.log_cdf((mean - self.cap) / sigma)
        # Targets were rounded to float32 as the cap was.
        return ops.where(targets >= np.float32(self.cap), beyond, seen)

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.array([scale, 1.0]), np.array([shift, math.log(scale)])

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_sigma = keras.ops.clip(outputs[:, 1], *_LOG_SIGMA)
        return outputs[:, 0], log_sigma, keras.ops.exp(log_sigma)


class Ordinal:
    """Cumulative logits: o_k is the logit of P(y > threshold_k) (Frank and Hall 2001).

        loss   = mean over k of the cross entropy of [y > threshold_k]
        logit  = level_0 + sum over k of P(y > threshold_k) (level_{k+1} - level_k)

    which is the expected level: level_k stands for the labels between two thresholds.

    Args:
        thresholds: (K,) ascending, on the scale of the targets.
        levels: (K + 1,) ascending, the mean label of each range.
        rates: (K,) share of the training labels above each threshold.
    """

    def __init__(self, thresholds: np.ndarray, levels: np.ndarray, rates: np.ndarray) -> None:
        self.thresholds = thresholds.astype(np.float32)
        self.lowest, self.steps = float(levels[0]), np.diff(levels).astype(np.float32)
        rates = np.clip(rates, 1e-4, 1 - 1e-4)
        self.start: tuple[float, ...] = tuple(float(z) for z in np.log(rates / (1 - rates)))
        self.shifted: tuple[float, ...] = (1.0,) * len(self.start)

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        return self.lowest + keras.ops.sum(keras.ops.sigmoid(outputs) * self.steps, axis=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        above = ops.cast(targets[:, None] > self.thresholds, outputs.dtype)  # (B, K)
        return ops.mean(ops.softplus(outputs) - above * outputs, axis=1)

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        # Thresholds and levels belong to the labels, so that the scale does not matter.
        return np.ones(len(self.start)), np.zeros(len(self.start))


class ZeroInflated:
    """ZILN (Wang, Liu and Miao 2019): zero, or a log-normal amount.

        p = sigmoid(o_0), log Y of mean o_1 and deviation e^o_2
        loss   = cross entropy of [Y > 0], + o_2 + (log Y - o_1)^2 / (2 e^(2 o_2)) where Y > 0
        logit  = (p e^(o_1 + sigma^2 / 2) - mean) / std, the expected label, standardised

    The expected amount is at most the largest training label: a squared deviation in the exponent
    would let one row exceed every label by orders of magnitude.

    Args:
        mean, std: of the label.
        zero: the target of a label of 0.
        largest: training label.
        rate: share of the labels above 0.
        log_mean, log_std: of the logarithm of the labels above 0.
    """

    shifted: tuple[float, ...] = (1.0, 1.0, 0.0)

    def __init__(
        self,
        mean: float,
        std: float,
        zero: float,
        largest: float,
        rate: float,
        log_mean: float,
        log_std: float,
    ) -> None:
        self.mean, self.std, self.zero = mean, std, zero
        self.limit = math.log(largest)
        rate = min(max(rate, 1e-4), 1 - 1e-4)
        self.start: tuple[float, ...] = (math.log(rate / (1 - rate)), log_mean, math.log(log_std))

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        _, sigma = self._deviation(outputs)
        amount = ops.exp(ops.minimum(outputs[:, 1] + 0.5 * ops.square(sigma), self.limit))
        return (ops.sigmoid(outputs[:, 0]) * amount - self.mean) / self.std

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        log_sigma, sigma = self._deviation(outputs)
        above = targets > np.float32(self.zero)
        # The smallest amount only guards the logarithm of the rows that are 0.
        amount = ops.where(above, targets * self.std + self.mean, 1.0)
        amount = ops.maximum(amount, 1e-6 * self.std)
        of_amount = log_sigma + 0.5 * ops.square((ops.log(amount) - outputs[:, 1]) / sigma)
        known = ops.cast(above, outputs.dtype)
        return ops.softplus(outputs[:, 0]) - known * outputs[:, 0] + known * of_amount

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.ones(3), np.zeros(3)  # the outputs are in the label's own units

    def _deviation(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        log_sigma = keras.ops.clip(outputs[:, 2], *_LOG_SIGMA)
        return log_sigma, keras.ops.exp(log_sigma)


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


def _ordinal(task: Task, statistics: TaskStatistics) -> Head:
    """Thresholds at quantiles; each level is the mean of the quantiles in its range."""
    assert isinstance(task.loss, configs.Ordinal)
    known = np.asarray(statistics.quantiles, np.float64)
    if len(known) < 2 or known[0] == known[-1]:
        known = np.array([statistics.mean, statistics.mean + 1.0])  # labels that are all alike
    count = task.loss.thresholds
    # A threshold is a label itself, and "above" means beyond it: stars 1 to 5 give 1, 2, 3, 4.
    chosen = np.quantile(known, np.arange(1, count + 1) / (count + 1), method="lower")
    thresholds = np.unique(chosen[chosen < known[-1]])
    if not len(thresholds):  # most labels are the largest one
        thresholds = known[known < known[-1]][-1:]
    place = np.searchsorted(thresholds, known, side="left")  # (Q,) number of the range
    levels = np.array([known[place == k].mean() for k in range(len(thresholds) + 1)])
    rates = np.array([(known > threshold).mean() for threshold in thresholds])
    return Ordinal(_standardised(statistics, thresholds), _standardised(statistics, levels), rates)


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
