"""Dispatch on JAX for experts of any layers: each runs at the smallest capacity with enough rows.

Alike dense experts run as a stack instead, see `stack_jax`.

Shapes are static under jit.  So each expert is compiled for a few capacities (row counts): 0, B,
and B halved several times, down to 32 rows.  While the program runs, the number of rows that chose
the expert picks the capacity.  The largest one holds the whole batch, so no row is dropped.  Spare
places run on some row of the batch with weight zero.

If several devices share a batch (`model.backend.devices`), each does this for its own rows: B is
then the number of its rows, and each picks its own capacities.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import keras

from multigate.model.backend.devices import shard_rows
from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.experts import call_expert

# More capacities waste fewer rows, and take longer to compile.
SMALLEST_CAPACITY = 32
HALVINGS = 6


def mix(
    experts: Sequence[keras.layers.Layer],
    x: Tensor,
    weights: Tensor,
    training: bool,
    dense: bool,
) -> tuple[list[Tensor], Tensor]:
    """See `dispatch.mix`."""
    T, B, _ = weights.shape
    used = jnp.any((weights != 0) | dense, axis=0)  # (B, E)
    if not dense:  # no gradient for one task's zero where another task chose the pair
        weights = jnp.where(weights != 0, weights, 0)
    state = [[variable.value for variable in expert.variables] for expert in experts]

    def compute(
        x: Tensor, weights: Tensor, used: Tensor, state: list[list[Tensor]]
    ) -> tuple[Tensor, list[list[Tensor]]]:
        shape = experts[0].compute_output_shape(x.shape)
        mixed = jnp.zeros((T, *shape), weights.dtype)
        after = []
        for e, expert in enumerate(experts):
            mixed, own = _add(expert, state[e], x, weights[:, :, e], used[:, e], training, mixed)
            after.append([own[index][None] for index in _changing(expert)])
        return mixed, after

    divided = shard_rows(compute, B, inputs=(0, 1, 0, None), outputs=(1, 0))
    mixed, after = divided(x, weights, used, state)
    for expert, own in zip(experts, after, strict=True):
        for index, values in zip(_changing(expert), own, strict=True):
            # One value per device: a random generator's counter moved only where there were rows.
            expert.variables[index].assign(jnp.max(values, axis=0))
    return list(mixed), jnp.sum(used, dtype=weights.dtype) / max(B, 1)


def _changing(expert: keras.layers.Layer) -> list[int]:
    """Indices of the variables that a call may change."""
    return [index for index, variable in enumerate(expert.variables) if not variable.trainable]


def _add(
    expert: keras.layers.Layer,
    state: list[Tensor],
    x: Tensor,
    weights: Tensor,
    used: Tensor,
    training: bool,
    mixed: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Add an expert's weighted results to `mixed`.

    Args:
        expert: the layer.
        state: values of its variables.
        x: (B, ...).
        weights: (T, B).
        used: (B,) bool; the rows to run on.
        training: passed on to the expert.
        mixed: (T, B, ...) the sum so far.

    Returns:
        The new sum, and the variables' new values.
    """
    B = x.shape[0]
    halved = {-(-B // 2**halving) for halving in range(1, HALVINGS + 1)}
    capacities = sorted({0, B} | {rows for rows in halved if rows >= SMALLEST_CAPACITY})
    # A branch is traced on its own and may change no variable: state goes in and comes out.
    chosen = jnp.searchsorted(jnp.asarray(capacities), jnp.sum(used))
    branches = [_branch(expert, capacity, training) for capacity in capacities]
    return jax.lax.switch(chosen, branches, mixed, state, x, weights, used)


def _branch(
    expert: keras.layers.Layer, capacity: int, training: bool
) -> Callable[..., tuple[Tensor, list[Tensor]]]:
    """The computation of `_add` for up to `capacity` rows, as a pure function."""
    variables = expert.variables

    def branch(
        mixed: Tensor, state: list[Tensor], x: Tensor, weights: Tensor, used: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        if capacity == 0:
            return mixed, state
        rows = jnp.nonzero(used, size=capacity, fill_value=x.shape[0])[0]  # spare: out of range
        scope = keras.StatelessScope(list(zip(variables, state, strict=True)))
        with scope:
            y = call_expert(expert, jnp.take(x, rows, axis=0, mode="clip"), training)
        w = jnp.take(weights, rows, axis=1, mode="fill", fill_value=0)  # (T, capacity)
        w = jnp.reshape(w, w.shape + (1,) * (y.ndim - 1))
        mixed = mixed.at[:, rows].add((w * y[None]).astype(mixed.dtype), mode="drop")
        return mixed, [scope.get_current_value(variable) for variable in variables]

    return branch
