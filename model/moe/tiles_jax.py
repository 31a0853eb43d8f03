"""A stack of dense experts by loops over the experts and their tiles of pairs: for CPUs.

The pairs are sorted by expert.  A tile is `Plan.tile` pairs of one expert: the loop's body gathers
their rows of x, runs the layers, and adds the weighted results to the result's rows.  The loops end
with the last pair.  So the cost follows the number of pairs, however few of the possible ones the
gates choose, and nothing is compiled per expert.

The gradient is written by hand: JAX cannot differentiate a loop of unknown length, and the
automatic gradient of a slice of the stack is as large as the stack.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.pairs_jax import Layer, Plan, dropout_mask


class Pairs(NamedTuple):
    """The chosen (expert, row) pairs, sorted by expert.

    Attributes:
        row: (P,) int32; B after the last pair.
        start: (E + 1,) int32; expert e has the pairs from start[e] up to start[e + 1].
    """

    row: Tensor
    start: Tensor


class Inputs(NamedTuple):
    """What the results depend on; L layers.

    Attributes:
        x: (B, D).
        weights: (T, B, E).
        kernels: L of (E, D, U).
        biases: L of (E, U).
        seeds: L of (E, ...), of the dropout; None without it.
        pairs: the chosen ones.
    """

    x: Tensor
    weights: Tensor
    kernels: Sequence[Tensor]
    biases: Sequence[Tensor]
    seeds: Sequence[Tensor | None]
    pairs: Pairs


def mix_tiles(plan: Plan, x: Tensor, weights: Tensor, layers: list[Layer], keys: Tensor) -> Tensor:
    """Mixed results (B, T, U), by loops over the experts and their tiles of pairs.

    Args:
        plan: of the computation.
        x: (B, D).
        weights: (T, B, E).
        layers: of the experts.
        keys: (B, S), see `pair_keys`.
    """
    (B, _), E = keys.shape, weights.shape[2]
    ordered = jnp.sort(keys.reshape(-1))  # (P,)
    start = jnp.searchsorted(ordered, jnp.arange(E + 1, dtype=jnp.int32) * B).astype(jnp.int32)
    row = jnp.pad(ordered % B, (0, plan.tile))
    kernels, biases, seeds = zip(*layers, strict=True)
    return _tiles(plan, Inputs(x, weights, kernels, biases, seeds, Pairs(row, start)))


class _Tile:
    """Up to `tile` pairs of one expert.

    Attributes:
        row: (n,) int32; B in the places after the expert's last pair.
        x: (n, D) their inputs.

    Args:
        plan: of the computation.
        own: inputs with the expert's own layers, without E.
        first: place of the tile's first pair.
        end: place after the expert's last pair.
    """

    def __init__(self, plan: Plan, own: Inputs, first: Tensor, end: Tensor) -> None:
        self.plan, self.first = plan, first
        self.kernels, self.biases, self.seeds = own.kernels, own.biases, own.seeds
        row = lax.dynamic_slice(own.pairs.row, (first,), (plan.tile,))
        self.row = jnp.where(first + jnp.arange(plan.tile) < end, row, len(own.x))
        self.x = jnp.take(own.x, self.row, axis=0, mode="clip").astype(plan.dtype)

    def sums(self) -> list[Tensor]:
        """Each layer's result (n, U) before its activation."""
        found: list[Tensor] = []
        h = self.x
        for index, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            found.append(_product(h, kernel, (1, 0)).astype(self.plan.dtype) + bias)
            h = self.result(index, found[-1])
        return found

    def result(self, index: int, z: Tensor) -> Tensor:
        """The result (n, U) of a layer, after activation and dropout."""
        h = self.plan.activation(z)
        return h if not self.plan.dropout else h * self.mask(index, h)

    def mask(self, index: int, like: Tensor) -> Tensor:
        """Dropout's factors (n, U)."""
        return dropout_mask(
            jax.random.fold_in(self.seeds[index], self.first), self.plan.dropout, like
        )

    def gradients(
        self, zs: list[Tensor], upstream: Tensor
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Gradients of the inputs (n, D), of the kernels and of the biases."""
        kernels, biases = [], []
        for index in reversed(range(len(zs))):
            if self.plan.dropout:
                upstream = upstream * self.mask(index, upstream)
            (dz,) = jax.vjp(self.plan.activation, zs[index])[1](upstream)
            below = self.result(index - 1, zs[index - 1]) if index else self.x
            kernels.append(_product(below, dz, (0, 0)))
            biases.append(jnp.sum(dz, axis=0, dtype=jnp.float32))
            upstream = _product(dz, self.kernels[index], (1, 1)).astype(self.plan.dtype)
        return upstream, kernels[::-1], biases[::-1]


def _product(a: Tensor, b: Tensor, axes: tuple[int, int]) -> Tensor:
    """Matrix product along the given axes, in float32."""
    contracted = tuple((axis,) for axis in axes)
    return lax.dot_general(a, b, (contracted, ((), ())), preferred_element_type=jnp.float32)


def _each_tile(
    plan: Plan, inputs: Inputs, body: Callable[[Tensor, _Tile, Any], Any], carry: Any
) -> Any:
    """Run a function on every tile of every expert, in order.

    Args:
        plan: of the computation.
        inputs: of all experts.
        body: (the expert's number, tile, state) -> state.
        carry: the first one.
    """

    def expert(e: Tensor, carry: Any) -> Any:
        def of_expert(stack: Tensor) -> Tensor:
            return lax.dynamic_index_in_dim(stack, e, keepdims=False)

        own = inputs._replace(
            kernels=[of_expert(kernel).astype(plan.dtype) for kernel in inputs.kernels],
            biases=[of_expert(bias).astype(plan.dtype) for bias in inputs.biases],
            seeds=[None if seed is None else of_expert(seed) for seed in inputs.seeds],
        )
        first, end = inputs.pairs.start[e], inputs.pairs.start[e + 1]

        def tile(i: Tensor, state: Any) -> Any:
            return body(e, _Tile(plan, own, first + i * plan.tile, end), state)

        tiles = (end - first + plan.tile - 1) // plan.tile
        return lax.fori_loop(0, tiles, tile, carry)

    return lax.fori_loop(0, len(inputs.kernels[0]), expert, carry)


def _run(plan: Plan, inputs: Inputs) -> tuple[Tensor, list[Tensor]]:
    """Mixed results (B, T, U), and the kept sums of the layers, each (P, U)."""
    T, B, _ = inputs.weights.shape
    by_expert = jnp.transpose(inputs.weights, (2, 0, 1))  # (E, T, B)
    P = len(inputs.pairs.row)
    kept = [jnp.zeros((P, bias.shape[1]), plan.dtype) for bias in inputs.biases]
    kept = kept if plan.keep else []

    def body(e: Tensor, tile: _Tile, state: Any) -> Any:
        mixed, kept = state
        zs = tile.sums()
        w = jnp.take(by_expert[e], tile.row, axis=1, mode="fill", fill_value=0)  # (T, n)
        y = tile.result(len(zs) - 1, zs[-1])
        mixed = mixed.at[tile.row].add(w.T[:, :, None] * y[:, None], mode="drop")
        # Places after the expert's last pair hold what the next expert overwrites.
        kept = [
            lax.dynamic_update_slice(all_z, z, (tile.first, 0))
            for all_z, z in zip(kept, zs, strict=False)
        ]
        return mixed, kept

    mixed = jnp.zeros((B, T, inputs.biases[-1].shape[1]), inputs.weights.dtype)
    return _each_tile(plan, inputs, body, (mixed, kept))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiles(plan: Plan, inputs: Inputs) -> Tensor:
    return _run(plan._replace(keep=False), inputs)[0]


def _forward(plan: Plan, inputs: Inputs) -> tuple[Tensor, Any]:
    mixed, kept = _run(plan, inputs)
    return mixed, (inputs, kept)


def _backward(plan: Plan, residuals: tuple[Inputs, Any], upstream: Tensor) -> tuple[Any]:
    """Gradients of `_tiles`; `upstream` is (B, T, U)."""
    inputs, kept = residuals
    by_expert = jnp.transpose(inputs.weights, (2, 0, 1))  # (E, T, B)
    layers = len(inputs.kernels)

    def body(e: Tensor, tile: _Tile, state: Any) -> Any:
        by_x, by_weights, stacks = state
        if plan.keep:
            zs = [lax.dynamic_slice(z, (tile.first, 0), (plan.tile, z.shape[1])) for z in kept]
        else:
            zs = tile.sums()
        received = jnp.take(upstream, tile.row, axis=0, mode="clip")  # (n, T, U)
        w = jnp.take(by_expert[e], tile.row, axis=1, mode="fill", fill_value=0)  # (T, n)
        y = tile.result(len(zs) - 1, zs[-1])
        by_w = jnp.sum(received * y[:, None], axis=2).T  # (T, n)
        by_weights = by_weights.at[e, :, tile.row].set(by_w.T, mode="drop")
        by_y = jnp.sum(received * w.T[:, :, None], axis=1).astype(plan.dtype)
        by_rows, by_kernels, by_biases = tile.gradients(zs, by_y)
        by_x = by_x.at[tile.row].add(by_rows.astype(by_x.dtype), mode="drop")
        added = zip(stacks, (*by_kernels, *by_biases), strict=True)
        return by_x, by_weights, [stack.at[e].add(own.astype(stack.dtype)) for stack, own in added]

    carry = (
        jnp.zeros_like(inputs.x),
        jnp.zeros_like(by_expert),
        [jnp.zeros_like(stack) for stack in (*inputs.kernels, *inputs.biases)],
    )
    by_x, by_weights, stacks = _each_tile(plan, inputs, body, carry)
    by_weights = jnp.transpose(by_weights, (1, 2, 0))  # (T, B, E)
    by_kernels, by_biases = tuple(stacks[:layers]), tuple(stacks[layers:])
    found: Any = (by_x, by_weights, by_kernels, by_biases, None, None)  # seeds and pairs have none
    return (Inputs(*found),)


_tiles.defvjp(_forward, _backward)
