"""Dispatch on JAX: shapes are static under jit, so an expert gets the smallest bucket that fits.

Each expert is compiled for a few row counts: none, B, and B halved as long as that saves rows
worth compiling for.  The number of rows that chose it picks one while the program runs.  The last
bucket holds the whole batch, so no row is ever dropped, whatever the routing; a bucket's spare
places run on a row of the batch with weight zero.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras

from model.experts import run
from model.gates.base import Tensor

# More buckets waste fewer rows, and take longer to compile.
SMALLEST_BUCKET = 32
HALVINGS = 6


def mix(
    experts: Sequence[keras.layers.Layer],
    x: Tensor,
    weights: Tensor,
    training: bool,
    dense: bool,
) -> tuple[list[Tensor], Tensor]:
    """See `dispatch.mix`."""
    T, B, E = weights.shape
    used = jnp.any((weights != 0) | dense, axis=0)  # (B, E)
    shape = experts[0].compute_output_shape(x.shape)
    mixed = jnp.zeros((T, *shape), weights.dtype)
    for index in range(E):
        mixed = _add(experts[index], x, weights[:, :, index], used[:, index], training, mixed)
    return list(mixed), jnp.sum(used, dtype=weights.dtype) / max(B, 1)


def _add(
    expert: keras.layers.Layer,
    x: Tensor,
    weights: Tensor,
    used: Tensor,
    training: bool,
    mixed: Tensor,
) -> Tensor:
    """Add an expert's weighted results to `mixed`.

    Args:
        expert: the layer.
        x: (B, ...).
        weights: (T, B).
        used: (B,) boolean; the rows to run on.
        training: passed on to the expert.
        mixed: (T, B, ...) the sum so far.
    """
    B = x.shape[0]
    halved = {-(-B // 2**halving) for halving in range(1, HALVINGS + 1)}
    capacities = sorted({0, B} | {rows for rows in halved if rows >= SMALLEST_BUCKET})
    # A branch is traced on its own: it may change no variable, so state goes in and comes out.
    variables = expert.variables
    bucket = jnp.searchsorted(jnp.asarray(capacities), jnp.sum(used))
    branches = [_branch(expert, variables, capacity, training) for capacity in capacities]
    state = [variable.value for variable in variables]
    mixed, state = jax.lax.switch(bucket, branches, mixed, state, x, weights, used)
    for variable, value in zip(variables, state, strict=True):
        if not variable.trainable:
            variable.assign(value)
    return mixed


def _branch(
    expert: keras.layers.Layer, variables: list[keras.Variable], capacity: int, training: bool
) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    """The computation of `_add` for up to `capacity` rows, as a pure function."""

    def branch(
        mixed: Tensor, state: list[Tensor], x: Tensor, weights: Tensor, used: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        if capacity == 0:
            return mixed, state
        rows = jnp.nonzero(used, size=capacity, fill_value=x.shape[0])[0]  # spare: out of range
        scope = keras.StatelessScope(list(zip(variables, state, strict=True)))
        with scope:
            y = run(expert, jnp.take(x, rows, axis=0, mode="clip"), training)
        w = jnp.take(weights, rows, axis=1, mode="fill", fill_value=0)  # (T, capacity)
        w = jnp.reshape(w, w.shape + (1,) * (y.ndim - 1))
        mixed = mixed.at[:, rows].add((w * y[None]).astype(mixed.dtype), mode="drop")
        return mixed, [scope.get_current_value(variable) for variable in variables]

    return branch
