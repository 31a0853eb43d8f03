"""The training loss: masked per task, weighted over tasks.

    L = sum over tasks t of weight_t * L_t  +  the gates' regularisation terms
    L_t = mean of loss_t over the rows of the batch with an unmasked label of t; 0 without any

loss_t is the loss of the task's head (`model.ranker.heads`): the binary cross entropy in nats, or,
for a regression task, by default the squared error of the *standardised* transformed label:
((transform(y) - mean) / std - output)^2, with mean and std of the training split.  So tasks of any
unit have comparable losses.  A mean squared error
in the label's own units is std^2 times as large; the MovieLens tables of the papers on DSelect-k
and MOESART use that.  To minimise the papers' 0.9 * cross entropy + 0.1 * MSE, set the weights here
to 0.9 and 0.1 * std^2 (std^2 = 1.25 for the stars); `model.evaluation.evaluate` reports the papers'
sum as `loss`.

The weights are the contract's.  By default each is multiplied by the task's number of labels in the
training split, divided by the largest such number (`task_weights`).  L_t is a mean over labelled
rows alone: without the factor, a row of a task that labels a tenth of the rows moves the shared
layers ten times as far as a row of another task, and they learn those few rows by heart.

Rows may have weights w: means over rows are then sum(w loss) / sum(w).  Task weights may be learnt,
see `Uncertainty`.
"""

from typing import Any

import keras

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.gates.parts.base import Routing, Tensor
from multigate.model.ranker.heads.head import Head


def task_weights(contract: Contract, statistics: Statistics, weighting: str) -> dict[str, float]:
    """What each task's mean loss is multiplied by.

    Args:
        contract: tasks, with their weights.
        statistics: of the training split.
        weighting: see `ModelConfig.task_weighting`.
    """
    weights = {name: task.weight for name, task in contract.tasks.items()}
    if weighting != "labels":
        return weights
    labels = {name: statistics.tasks[name].count for name in weights}
    most = max([1, *(count for name, count in labels.items() if weights[name] > 0)])
    return {name: weight * labels[name] / most for name, weight in weights.items()}


def row_losses(head: Head, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row of one task.

    Args:
        head: of the task.
        outputs: (B, K).
        targets: (B,); NaN where masked, 0 or 1 for binary, standardised for regression.

    Returns:
        Losses (B,), 0 where masked, and the mask (B,): 1 where there is a label.
    """
    ops = keras.ops
    known = ops.logical_not(ops.isnan(targets))
    # NaN must go before the loss: NaN times zero is NaN, also in the gradient.
    safe = ops.where(known, targets, ops.zeros_like(targets))
    losses = head.losses(outputs, safe)
    mask = ops.cast(known, losses.dtype)
    return losses * mask, mask


def masked_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """Mean of losses (B,) weighted by `mask` (B,), a weight or 1 per label; 0 if all are 0."""
    ops = keras.ops
    return ops.sum(losses * mask) / _total(mask)


def _total(mask: Tensor) -> Tensor:
    """Sum of a mask or of weights (B,), or 1 if that is 0."""
    total = keras.ops.sum(mask)
    return keras.ops.where(total > 0, total, keras.ops.ones_like(total))


@keras.saving.register_keras_serializable("multigate")
class Uncertainty(keras.layers.Layer):
    """Learnt task weights (Kendall, Gal and Cipolla 2018, eqs. 7 and 10).

    With s_t = log sigma_t^2, one number per task that starts at 0:

        exp(-s_t) L_t + s_t / 2

    If a task's loss stays high, its sigma_t grows and the task gets less weight; s_t / 2 limits
    that growth.  The contract's weights multiply the whole term, so they still set priorities.
    Deviation: the regression loss has no factor 1/2, because our squared error is of a
    standardised label and starts near 1, like a binary loss.
    """

    def __init__(self, tasks: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.log_variance = self.add_weight(
            shape=(tasks,), initializer="zeros", name="log_variance"
        )
        self.built = True

    def call(self, loss: Tensor, task: int) -> Tensor:
        """The weighted loss of task number `task`, a scalar, from its loss, a scalar."""
        s = self.log_variance[task]
        return keras.ops.exp(-s) * loss + s / 2


def task_loss(losses: Tensor, mask: Tensor, routing: Routing, estimator: Any = None) -> Tensor:
    """Loss of one task over a batch, a scalar.

    Args:
        losses: (B,), 0 where masked.
        mask: (B,), the row's weight (1 without weights) where there is a label, else 0.
        routing: of the task's gate.
        estimator: a `gates.sampled.estimators.SampledLoss`, for gates that sample their experts:
            the gradient of its loss also trains the router.
    """
    ops = keras.ops
    if estimator is None or routing.importance is None:
        return masked_mean(losses, mask)
    value = estimator(losses, routing.importance, routing.kept * mask, routing.log_prob)
    # The estimator's mean is over all B rows, ours over the rows that have a label.
    rows = ops.cast(ops.shape(losses)[0], losses.dtype)
    return value * rows / _total(mask)


def regularisation(routings: list[Routing]) -> Tensor:
    """Sum of the gates' regularisation terms, a scalar; each includes its strength."""
    total = keras.ops.zeros(())
    for routing in routings:
        for term in routing.losses.values():
            total = total + term
    return total
