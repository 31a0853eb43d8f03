"""Inputs of a stack of dense experts on JAX: the plan, the layers, and keys to sort the pairs by.

A *pair* is an (expert, row) that some task chose; it is evaluated once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from multigate.model.gates.parts.base import Tensor


class Layer(NamedTuple):
    """One layer of all experts.

    Attributes:
        kernel: (E, D, U).
        bias: (E, U).
        seed: (E, 2) of the dropout after it; None without dropout.
    """

    kernel: Tensor
    bias: Tensor
    seed: Tensor | None


class Plan(NamedTuple):
    """What is fixed when a computation is compiled.

    Attributes:
        activation: of every layer.
        dropout: rate; 0 outside training.
        dtype: in which the experts compute.
        tile: number of pairs of one expert that run together.
        keep: whether the layers' results are kept for the gradient.
    """

    activation: Callable[[Tensor], Tensor]
    dropout: float
    dtype: str
    tile: int
    keep: bool


def pair_keys(used: Tensor, max_per_row: int) -> Tensor:
    """Each row's experts as numbers (B, S) to sort the pairs by: expert * B + row.

    Where a row uses fewer than S experts, the others are E * B + row.

    Args:
        used: (B, E) bool.
        max_per_row: S, the largest number of experts that a row uses.
    """
    B, E = used.shape
    if max_per_row < E:
        # (B, E) how many experts up to this one the row uses; `cumsum` is slower than this product.
        count = used.astype(jnp.float32) @ jnp.triu(jnp.ones((E, E), jnp.float32))
        place = jnp.arange(max_per_row, dtype=jnp.float32)
        expert = jnp.sum(count[:, :, None] <= place, axis=1, dtype=jnp.int32)  # (B, S)
    else:
        expert = jnp.where(used, jnp.arange(E, dtype=jnp.int32), E)
    return expert * B + jnp.arange(B, dtype=jnp.int32)[:, None]


def dropout_mask(key: Tensor, rate: float, like: Tensor) -> Tensor:
    """Dropout's factors, of the shape of `like`."""
    kept = jax.random.bernoulli(key, 1 - rate, like.shape)
    return kept.astype(like.dtype) / (1 - rate)
