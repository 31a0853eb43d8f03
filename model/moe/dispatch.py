"""Sparse dispatch: run each expert on the rows that give it weight, and mix the results per task.

One function, one implementation per backend: TensorFlow has dynamic row counts, JAX static shapes.
On JAX, alike dense experts run as one stack, and experts of other layers one by one.
"""

from collections.abc import Sequence

import keras

from multigate.model import backend
from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.experts import are_alike


def mix(
    experts: Sequence[keras.layers.Layer],
    x: Tensor,
    weights: Tensor,
    training: bool = False,
    dense: bool = False,
    max_per_row: int | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Sum over e of weights[t, b, e] * experts[e](x)[b], for every task t and row b.

    Exact: no row is dropped.  Gradients of x, of the non-zero weights and of the experts' variables
    equal those of the dense computation.  Zero weights get no gradient, unless `dense`.

    Args:
        experts: E row-wise Keras layers of equal output shape.
        x: (B, ...) the experts' input.
        weights: (T, B, E); an expert runs on row b if some task's weight for it is not zero.
        training: passed on to the experts.
        dense: run every expert on every row, for gates with gradient at zero weights.
        max_per_row: the largest number of experts that a row uses; None for E.  JAX needs it for
            its static shapes, and makes the outputs NaN if a row uses more.

    Returns:
        T tensors (B, ...) of the weights' dtype, and the mean number of experts evaluated per row,
        a scalar.
    """
    if backend.name() == "tensorflow":
        from multigate.model.moe import dispatch_tensorflow

        return dispatch_tensorflow.mix(experts, x, weights, training, dense)
    if len(x.shape) == 2 and are_alike(experts):
        from multigate.model.moe import stack_jax

        return stack_jax.mix(experts, x, weights, training, dense, max_per_row or len(experts))
    from multigate.model.moe import dispatch_jax

    return dispatch_jax.mix(experts, x, weights, training, dense)
