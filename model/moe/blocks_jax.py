"""A stack of dense experts by one batched product over blocks of pairs: for GPUs.

The pairs are sorted by expert, and each expert's pairs fill whole blocks of `Plan.tile` places; the
last block of an expert is padded.  A block has one expert, so a layer is one batched product of the
blocks with their experts' kernels: at most E blocks more than the pairs need.
"""

import jax.numpy as jnp

from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.pairs_jax import Layer, Plan, dropout_mask


def mix_blocks(plan: Plan, x: Tensor, weights: Tensor, layers: list[Layer], keys: Tensor) -> Tensor:
    """`mix_tiles` with one batched product over all blocks, and automatic gradients."""
    (B, S), (_, D), E = keys.shape, x.shape, weights.shape[2]
    P, size = B * S, plan.tile
    N = -(-P // size) + E
    order = jnp.argsort(keys.reshape(-1))  # (P,)
    expert = keys // B  # (B, S); E where the row uses no more experts
    sizes = jnp.bincount(expert.reshape(-1), length=E)  # drops E
    blocks = -(-sizes // size)
    last = jnp.cumsum(blocks)  # block after each expert's last one
    of_block = jnp.minimum(jnp.searchsorted(last, jnp.arange(N), side="right"), E - 1)
    # Places of the sorted pairs; after the last block for pairs of no expert.
    shift = jnp.append((last - blocks) * size - (jnp.cumsum(sizes) - sizes), N * size)
    place = jnp.arange(P) + shift[expert.reshape(-1)[order]]  # (P,)
    # Indices beyond the end differ too, so that no gradient has to add up.
    pair = (P + jnp.arange(N * size)).at[place].set(order, mode="drop", unique_indices=True)
    back = jnp.zeros_like(order).at[order].set(place, unique_indices=True)
    h = jnp.broadcast_to(x[:, None], (B, S, D)).reshape(P, D).astype(plan.dtype)
    h = h.at[pair].get(mode="fill", fill_value=0, unique_indices=True).reshape(N, size, D)
    for kernel, bias, seed in layers:
        product = jnp.einsum(
            "nbd,ndu->nbu",
            h,
            kernel.astype(plan.dtype)[of_block],
            preferred_element_type=jnp.float32,
        )
        h = plan.activation(product.astype(plan.dtype) + bias.astype(plan.dtype)[of_block][:, None])
        if seed is not None and plan.dropout:
            h = h * dropout_mask(seed[0], plan.dropout, h)
    y = h.reshape(N * size, -1).at[back].get(mode="fill", fill_value=0, unique_indices=True)
    y = y.reshape(B, S, -1).astype(weights.dtype)
    w = jnp.take_along_axis(weights, expert[None], axis=2, mode="fill", fill_value=0)  # (T, B, S)
    return jnp.einsum("tbs,bsu->btu", w, y)
