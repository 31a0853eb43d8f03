"""A stack of dense experts by `jax.lax.ragged_dot`: for GPUs.

It multiplies all pairs, sorted by expert, by their experts' kernels at once.  On CPU it does E
times the work: there `tiles_jax` is used.
"""

import jax.numpy as jnp
from jax import lax

from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.pairs_jax import Layer, Plan, dropout_mask


def mix_ragged(plan: Plan, x: Tensor, weights: Tensor, layers: list[Layer], keys: Tensor) -> Tensor:
    """`mix_tiles` with ragged products over all pairs at once, and automatic gradients."""
    (B, S), (_, D), E = keys.shape, x.shape, weights.shape[2]
    order = jnp.argsort(keys.reshape(-1))  # (P,)
    place = jnp.zeros_like(order).at[order].set(jnp.arange(B * S), unique_indices=True)
    expert = keys // B  # (B, S); E where the row uses no more experts
    sorted_expert = expert.reshape(-1)[order]
    sizes = jnp.bincount(sorted_expert, length=E).astype(jnp.int32)  # drops E
    h = jnp.broadcast_to(x[:, None], (B, S, D)).reshape(-1, D).astype(plan.dtype)
    h = h.at[order].get(unique_indices=True)  # (P, D)
    for kernel, bias, seed in layers:
        product = lax.ragged_dot(
            h, kernel.astype(plan.dtype), sizes, preferred_element_type=jnp.float32
        )
        of_pairs = bias.astype(plan.dtype).at[sorted_expert].get(mode="clip")
        h = plan.activation(product.astype(plan.dtype) + of_pairs)
        if seed is not None and plan.dropout:
            h = h * dropout_mask(seed[0], plan.dropout, h)
    y = h.at[place].get(unique_indices=True).reshape(B, S, -1)
    y = jnp.where((expert < E)[:, :, None], y, 0).astype(weights.dtype)
    w = jnp.take_along_axis(weights, expert[None], axis=2, mode="fill", fill_value=0)  # (T, B, S)
    return jnp.einsum("tbs,bsu->btu", w, y)
