"""Gradient balancing: no task drowns the others in the shared layers.

The mixture's T outputs pass unchanged.  On the way back, with g_t the gradient of the whole loss by
task t's output, n_t its norm over the batch, w_t the contract's weight of the task, and sums over
the tasks with n_t > 0 and w_t > 0,

    g_t  becomes  w_t (sum of n / sum of w) g_t / n_t

so that the norms are in the ratio of the contract's weights, whatever the size of the losses, and
add up to what they were.  Towers and wide weights, which no other task shares, keep their
gradients.  The aim is GradNorm's (Chen et al. 2018) with equal training rates; deviation: it is
computed from each batch's gradients of the shared activations, without learnt weights or a state.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor


def balanced(outputs: Sequence[Tensor], weights: Sequence[float]) -> list[Tensor]:
    """The mixture's outputs, T of (B, U), as they are; their gradients are balanced.

    Args:
        outputs: of the mixture.
        weights: (T,) of the tasks; one with weight 0 keeps its gradient.
    """
    ops = keras.ops
    w = np.asarray(weights, np.float32)

    @ops.custom_gradient
    def identity(stacked: Tensor) -> Any:
        def grad(*arguments: Tensor, upstream: Tensor | None = None) -> Tensor:
            g = arguments[0] if upstream is None else upstream  # (T, B, U)
            wide = ops.cast(g, "float32")
            norms = ops.sqrt(ops.sum(ops.square(wide), axis=(1, 2)))  # (T,)
            # Below this a norm is rounding: dividing by it would make noise large.
            takes_part = (norms > 1e-12) & (w > 0)
            of_task = ops.where(takes_part, norms, 1.0)
            sums = [ops.sum(ops.where(takes_part, values, 0.0)) for values in (norms, w)]
            scale = w * sums[0] / (ops.maximum(sums[1], 1e-12) * of_task)
            scale = ops.where(takes_part, scale, 1.0)
            return ops.cast(wide * scale[:, None, None], g.dtype)

        return stacked, grad

    stacked = identity(ops.stack(list(outputs)))
    return [stacked[t] for t in range(len(outputs))]
