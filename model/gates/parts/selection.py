"""Selection of k experts by index, softmax over a selection, and losses that balance the load.

Selection is always by index, never by comparing values with a threshold or with zero: with ties it
would select more than k experts, and it would drop a logit that happens to be zero.
"""

import functools

import keras

from multigate.model import backend
from multigate.model.gates.parts.base import Tensor

_FEW = 2
"""So many maxima, one after the other, take a third of the time of a top-k on TensorFlow."""
_LOWEST = -3e38  # above the lowest float32, with which the search for a maximum begins


def top_k_mask(values: Tensor, k: int) -> Tensor:
    """Mark the k largest entries of each row.

    Args:
        values: (..., E) float.
        k: 1 <= k <= E.

    Returns:
        (..., E) bool with exactly k True per row; of equal entries the lower index wins.
    """
    ops = keras.ops
    E = values.shape[-1]
    if k <= _FEW and keras.backend.standardize_dtype(values.dtype) == "float32":
        first = ops.one_hot(backend.argmax(values), E, dtype="bool")
        if k == 1:
            return first
        # What is chosen must be below all others, even below -inf.
        others = ops.maximum(values, _LOWEST)
        others = ops.where(first, ops.full_like(values, -float("inf")), others)
        return ops.logical_or(first, ops.one_hot(backend.argmax(others), E, dtype="bool"))
    _, indices = ops.top_k(values, k)  # (..., k)
    chosen = ops.one_hot(indices, E, dtype="bool")  # (..., k, E)
    # A loop of k steps over all rows: a reduction over this axis takes five times as long.
    return functools.reduce(ops.logical_or, ops.unstack(chosen, k, axis=-2))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits (..., E) to -inf (sparsely-gated MoE, section 2.1).

    For weights, prefer `masked_softmax`: no infinities on the path of the gradient.
    """
    return keras.ops.where(top_k_mask(logits, k), logits, -float("inf"))


def softmax(logits: Tensor) -> Tensor:
    """Softmax over the last axis; 1 for a single entry, about which Keras would warn."""
    if logits.shape[-1] == 1:
        return 1 + (logits - logits)  # a zero gradient: without any, optimisers would warn
    return keras.ops.softmax(logits)


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the entries that `mask` selects.

    Args:
        logits: (..., E) float; outside the mask any values, also -inf and NaN.
        mask: (..., E) bool.

    Returns:
        (..., E) float.  Entries outside the mask are exactly zero, with exactly zero gradient.
        A row without any True is all zeros.
    """
    return keep_where(mask, softmax_of_some(logits, mask))


def softmax_of_some(logits: Tensor, mask: Tensor) -> Tensor:
    """`masked_softmax` of rows that all have a True, in two thirds of its time at inference.

    The largest selected logit of a row is finite and above -1e29.
    """
    # So low that its exponential is exactly zero, yet finite: an infinity on the path of the
    # gradient would make it NaN.
    lowest = keras.ops.full_like(logits, -1e30)
    return softmax(keras.ops.where(mask, logits, lowest))


def keep_where(mask: Tensor, weights: Tensor) -> Tensor:
    """Set `weights` (..., E) to exact zeros outside `mask`, without renormalising."""
    return keras.ops.where(mask, weights, keras.ops.zeros_like(weights))


def keep_largest(weights: Tensor, k: int) -> Tensor:
    """Give the sum of all weights (..., E) to the k largest, in their proportions.

    Of all choices of k experts, this one keeps the most weight.  Rows with at most k weights stay
    as they are; the others get exact zeros.
    """
    ops = keras.ops
    if k == weights.shape[-1]:
        return weights
    kept = keep_where(top_k_mask(weights, k), weights)
    total, of_kept = (ops.sum(w, axis=-1, keepdims=True) for w in (weights, kept))
    return kept * (total / ops.where(of_kept == 0, ops.ones_like(of_kept), of_kept))


def batch_mean(values: Tensor) -> Tensor:
    """Mean over the first axis; zero, not NaN, for an empty batch.

    Regularisers use means, not sums, so that their strength does not depend on the batch size.
    """
    ops = keras.ops
    return ops.sum(values, axis=0) / ops.maximum(ops.cast(ops.shape(values)[0], values.dtype), 1)


def cv_squared(v: Tensor) -> Tensor:
    """Squared coefficient of variation, (std / mean)^2, of v (E,); zero if the mean is zero."""
    ops = keras.ops
    mean = ops.mean(v)
    safe = ops.where(mean == 0, ops.ones_like(mean), mean)
    return ops.where(mean == 0, ops.zeros_like(mean), ops.var(v) / ops.square(safe))


def switch_balance_loss(probabilities: Tensor) -> Tensor:
    """Switch Transformer's balance loss, without its strength.

    E * sum_e (share of examples with first choice e) * (mean probability of e): 1 if both are
    uniform, E if one expert takes all.  The shares pass no gradient.

    Args:
        probabilities: (B, E) softmax probabilities before any cut; or (E,), one row.

    Returns:
        A scalar; zero where B = 0.
    """
    ops = keras.ops
    E = probabilities.shape[-1]
    rows = ops.reshape(probabilities, (-1, E))  # (B, E)
    first = ops.one_hot(ops.argmax(rows, axis=-1), E, dtype=rows.dtype)  # (B, E)
    return E * ops.sum(batch_mean(first) * batch_mean(rows))
