"""Dense experts as one stack on JAX: kernels (E, D, U), one sort, grouped matrix products.

Pairs of expert and row are sorted by expert and run through the layers in groups.  All shapes are
static, no row is dropped, whatever the routing, and nothing is compiled per expert.  How the groups
run depends on the device, see `_way`.

Experts of a `Mixture` share stacked variables (`stack.ExpertStack`).  Other experts, such as those
that were built before, keep their own, and each step stacks them: at E = 64 and D = U = 256 that
copies 16 MB.

If several devices share a batch (`model.backend.devices`), each sorts and runs its own rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multigate.model import backend
from multigate.model.backend.devices import shard_rows
from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.blocks_jax import mix_blocks
from multigate.model.moe.dense_jax import mix_dense
from multigate.model.moe.experts import Expert, ExpertDense
from multigate.model.moe.pairs_jax import Layer, Plan, pair_keys
from multigate.model.moe.stack import StackSlice
from multigate.model.moe.tiles_jax import mix_tiles

_KEEP_BYTES = 2**25
"""On a CPU, layers' results up to this size are kept for the gradient, larger ones made again."""
_SORT = 2**15
"""Pairs of expert and row whose products cost a GPU as much as sorting does."""


def mix(
    experts: Sequence[Expert],
    x: Tensor,
    weights: Tensor,
    training: bool,
    dense: bool,
    max_per_row: int,
) -> tuple[list[Tensor], Tensor]:
    """See `dispatch.mix`.  The experts differ in their variables alone."""
    T, B, E = weights.shape
    layers = _layers(experts, training)
    units = [layer.bias.shape[1] for layer in layers]
    used = jnp.any((weights != 0) | dense, axis=0)  # (B, E)
    if not dense:  # no gradient for one task's zero where another task chose the pair
        weights = jnp.where(weights != 0, weights, 0)
    experts_per_row = jnp.sum(used, dtype=weights.dtype) / max(B, 1)
    max_per_row = E if dense else max_per_row
    if B == 0:
        return [jnp.zeros((0, units[-1]), weights.dtype)] * T, experts_per_row
    first = experts[0]

    def compute(
        x: Tensor, weights: Tensor, used: Tensor, number: Tensor, layers: list[Layer]
    ) -> tuple[Tensor]:
        # Each device draws dropout masks of its own.
        layers = [
            layer._replace(seed=None if layer.seed is None else _fold(layer.seed, number[0]))
            for layer in layers
        ]
        rows = len(x)
        size = rows * max_per_row * sum(units) * jnp.dtype(first.compute_dtype).itemsize
        plan = Plan(
            first.stack[0].activation,
            first.dropout if training else 0.0,
            first.compute_dtype,
            _tile(rows * max_per_row // E),
            size <= _KEEP_BYTES,
        )
        keys = pair_keys(used, max_per_row)  # (B, S)
        mixed = _way(rows, E, max_per_row)(plan, x, weights, layers, keys)  # (B, T, U)
        # Pairs beyond those that the gates promised are dropped: the guard on the loss must see it.
        dropped = jnp.any(jnp.sum(used, axis=1) > max_per_row)
        return (jnp.where(dropped, jnp.nan, mixed),)

    divided = shard_rows(compute, B, inputs=(0, 1, 0, 0, None), outputs=(0,))
    (mixed,) = divided(x, weights, used, jnp.arange(B), layers)  # (B, T, U)
    return [mixed[:, t] for t in range(T)], experts_per_row


def _way(rows: int, E: int, max_per_row: int) -> Callable[..., Tensor]:
    """How E experts run on so many rows, of which one uses at most `max_per_row`.

    A CPU takes loops over tiles.  A GPU would wait for the start of each of their operations: there
    all tiles are one product (`blocks_jax`).  Where the experts that a row does not use are few, or
    the rows are, all experts run on all rows (`dense_jax`), which needs no sorting: a pair in a
    block costs as much as three there.
    docs/results/train_step.md has the figures; `jax.lax.ragged_dot` does E times the work on both.
    """
    if not backend.has_accelerator():
        return mix_tiles
    return mix_dense if rows * (E - 3 * max_per_row) < _SORT else mix_blocks


def _layers(experts: Sequence[Expert], training: bool) -> list[Layer]:
    """The experts' layers, each as one stack."""
    found: list[Layer] = []
    for layers in zip(*(expert.stack for expert in experts), strict=True):
        if isinstance(layers[0], ExpertDense):
            kernel = _stacked([dense.kernel for dense in layers])
            found.append(Layer(kernel, _stacked([dense.bias for dense in layers]), None))
        elif training:
            seeds = jnp.stack([dropout.seed_generator.next() for dropout in layers])
            found[-1] = found[-1]._replace(seed=seeds)
    return found


def _stacked(variables: Sequence[Any]) -> Tensor:
    """The values of E variables as one array (E, ...), without a copy if they are slices of one."""
    if isinstance(variables[0], StackSlice):
        whole = variables[0].whole
        slices = [v.index if v.whole is whole else None for v in variables]
        if slices == list(range(whole.shape[0])):
            return whole.value
    return jnp.stack([variable.value for variable in variables])


def _fold(seeds: Tensor, number: Tensor) -> Tensor:
    """Keys (E, 2) that differ from number to number."""
    return jax.vmap(lambda seed: jax.random.fold_in(seed, number))(seeds)


def _tile(mean: int) -> int:
    """Size of the tiles, a power of two, for experts with so many pairs on average."""
    return int(min(256, max(32, 2 ** (mean // 2).bit_length())))
