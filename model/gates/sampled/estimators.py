"""The loss that trains a sampled router: the task's value, with an unbiased gradient.

Kool, Maddison and Mnih, "Unbiased gradient estimation with balanced assignments", eqs. 2, 3 and 6.
"""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor


def sampled_loss(
    losses: Tensor,
    importance: Tensor,
    kept: Tensor,
    log_prob: Tensor | None = None,
    baseline: Any = 0.0,
) -> Tensor:
    """Mean over all B rows of kept * [importance * loss + sg(importance * (loss - b)) * log_prob].

    The first term trains the experts, the second (REINFORCE) the router; sg stops the gradient.
    Without `log_prob`, as in differentiable gating, the first term trains both.

    The second term must not change the value of the loss.  So it uses log_prob - sg(log_prob),
    which is zero and has the gradient of log_prob.

    Args:
        losses: (..., B) the task's loss of each row.
        importance: (..., B) without gradient.
        kept: (..., B) 1.0 or 0.0.
        log_prob: (..., B) log probability of the drawn expert, or None.
        baseline: b, without gradient, broadcast against `losses`.

    Returns:
        (...), zero where B = 0.
    """
    ops = keras.ops
    weight = kept * importance
    terms = weight * losses
    if log_prob is not None:
        surprise = log_prob - ops.stop_gradient(log_prob)
        terms = terms + ops.stop_gradient(weight * (losses - baseline)) * surprise
    count = ops.maximum(ops.cast(ops.shape(terms)[-1], terms.dtype), 1.0)
    return ops.sum(terms, axis=-1) / count


def expected_loss(losses: Tensor, importance: Tensor, kept: Tensor) -> Tensor:
    """Mean loss (...) with weights kept * importance, for the baseline; no gradient.

    Dividing by the sum of the weights limits the effect of one large weight.
    """
    ops = keras.ops
    weight = kept * importance
    total = ops.sum(weight, axis=-1)
    mean = ops.sum(weight * losses, axis=-1) / ops.where(total > 0, total, 1.0)
    return ops.stop_gradient(mean)


@keras.saving.register_keras_serializable("multigate")
class SampledLoss(keras.layers.Layer):
    """`sampled_loss` with a moving average of the loss as its baseline.

    b <- decay * b + (1 - decay) * mean loss, after b was used, so that b does not depend on the
    rows it is subtracted from.  A batch without kept rows does not change b.

    Args:
        decay: 0 <= decay < 1.
    """

    def __init__(self, decay: float = 0.99, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        if not 0 <= decay < 1:
            raise ValueError(f"decay: expected 0 <= decay < 1, received {decay}")
        self.decay = decay
        self.baseline = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="baseline"
        )

    def call(
        self, losses: Tensor, importance: Tensor, kept: Tensor, log_prob: Tensor | None = None
    ) -> Tensor:
        """Loss of one task, a scalar; arguments (B,) as in `sampled_loss`."""
        ops = keras.ops
        before = ops.convert_to_tensor(self.baseline) * 1.0
        value = sampled_loss(losses, importance, kept, log_prob, before)
        mean = expected_loss(losses, importance, kept)
        after = self.decay * before + (1 - self.decay) * mean
        self.baseline.assign(ops.where(ops.sum(kept * importance) > 0, after, before))
        return value

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same layer."""
        return super().get_config() | {"decay": self.decay}
