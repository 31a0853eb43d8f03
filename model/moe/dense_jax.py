"""A stack of dense experts by one product of every expert with every row: for GPUs, few experts.

A GPU multiplies by a few experts in vain faster than it sorts pairs, see `stack_jax._way`.
"""

import jax.numpy as jnp

from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.pairs_jax import Layer, Plan, dropout_mask


def mix_dense(plan: Plan, x: Tensor, weights: Tensor, layers: list[Layer], keys: Tensor) -> Tensor:
    """`mix_tiles` with every expert on every row, and automatic gradients."""
    B, E = len(x), weights.shape[2]
    h = x.astype(plan.dtype)[None]  # (1, B, D), then (E, B, U)
    # An expert that overflows must not spoil rows that have no use for it, nor gradients: 0 times
    # infinity is NaN.
    used = jnp.any((keys // B)[:, :, None] == jnp.arange(E), axis=1).T[:, :, None]  # (E, B, 1)
    for kernel, bias, seed in layers:
        product = jnp.matmul(h, kernel.astype(plan.dtype), preferred_element_type=jnp.float32)
        z = product.astype(plan.dtype) + bias.astype(plan.dtype)[:, None]
        h = plan.activation(jnp.where(used, z, 0))
        if seed is not None and plan.dropout:
            h = h * dropout_mask(seed[0], plan.dropout, h)
    y = jnp.where(used, h, 0).astype(weights.dtype)
    return jnp.einsum("tbe,ebu->btu", weights, y)
