"""Draw one expert per row under a capacity, with importance weights for the way it was drawn.

Kool, Maddison and Mnih, "Unbiased gradient estimation with balanced assignments", section 2.  All
functions accept leading axes, so that many routers can be trained side by side.
"""

from typing import Any, NamedTuple

import keras

from multigate.model.gates.parts.base import Tensor
from multigate.model.gates.parts.noise import gumbel
from multigate.model.gates.sampled.matching import gumbel_matching

STRATEGIES = (
    "none",
    "skip",
    "skip_iw",
    "gumbel_matching",
    "gumbel_matching_iw",
    "gumbel_matching_sinkhorn",
)
_SINKHORN_TOLERANCE = 1e-2  # relative error of the column sums
_SINKHORN_ROUNDS = 25  # maximum on each level
_SINKHORN_LEVELS = 5  # log p is divided by 4^4, 4^3, ..., 1


class Assignment(NamedTuple):
    """One drawn expert per row.

    Attributes:
        expert: (..., B) int32.
        log_prob: (..., B) log p(z_b | x_b), with gradient.
        importance: (..., B) weight of the row's loss, without gradient; see `assign`.
        kept: (..., B) 1.0 if the row found room, else 0.0.
    """

    expert: Tensor
    log_prob: Tensor
    importance: Tensor
    kept: Tensor


def assign(
    logits: Tensor, temperature: Any, strategy: str, sinkhorn_proposal: bool, seed: Any
) -> Assignment:
    """Draw experts z from a proposal q, with importance weights for p = softmax(logits).

    q = softmax(logits / temperature), optionally Sinkhorn-balanced.  With capacity c = ceil(B / E)
    and n_j the number of rows that drew expert j:

        strategy                  draws                           importance
        none                      without capacity                p/q
        skip                      keeps c random rows of each j   p/q * B / (rows kept); biased
        skip_iw                   the same                        p/q * n_z / min(n_z, c)
        gumbel_matching           best assignment under noise     p/q; biased
        gumbel_matching_iw        the same                        p / its conditionals
        gumbel_matching_sinkhorn  the same                        p / Sinkhorn-balanced q; biased

    The estimate is always the mean of kept * importance * loss over all B rows.  Biased skip takes
    the mean over the kept rows instead, hence its factor B / (rows kept).

    Args:
        logits: (..., B, E).
        temperature: of the proposal; a float, or a tensor that broadcasts against `logits`.
        strategy: one of `STRATEGIES`.
        sinkhorn_proposal: balance q first; not for Gumbel-Matching, where it has no effect.
        seed: a `keras.random.SeedGenerator`.
    """
    ops = keras.ops
    E = logits.shape[-1]
    shape = ops.shape(logits)
    log_p = ops.log_softmax(logits)
    tempered = ops.stop_gradient(logits) / temperature
    log_q = ops.log_softmax(tempered)  # (..., B, E)
    if sinkhorn_proposal or strategy == "gumbel_matching_sinkhorn":
        log_q = sinkhorn(log_q)
    noise = gumbel(shape, seed, logits.dtype)
    if strategy.startswith("gumbel_matching"):
        expert, log_conditional = gumbel_matching(tempered, noise)
    else:
        expert = ops.cast(ops.argmax(log_q + noise, axis=-1), "int32")
    drawn = ops.one_hot(expert, E, dtype=logits.dtype)  # (..., B, E)
    log_prob = ops.sum(drawn * log_p, axis=-1)
    proposed = ops.sum(drawn * log_q, axis=-1)
    if strategy == "gumbel_matching_iw":
        proposed = log_conditional
    importance = ops.exp(ops.stop_gradient(log_prob) - proposed)
    kept = ops.ones_like(importance)
    if strategy in ("skip", "skip_iw"):
        kept = keep_up_to_capacity(drawn, seed)
        counts = ops.sum(drawn, axis=-2, keepdims=True)  # (..., 1, E)
        taken = ops.sum(drawn * kept[..., None], axis=-2, keepdims=True)  # min(n_j, c)
        if strategy == "skip_iw":
            ratio = counts / ops.maximum(taken, 1.0)
            importance = importance * ops.sum(drawn * ratio, axis=-1)
        else:
            total = ops.sum(kept, axis=-1, keepdims=True)
            importance = importance * (ops.cast(shape[-2], kept.dtype) / ops.maximum(total, 1.0))
    return Assignment(expert, log_prob, importance, kept)


def keep_up_to_capacity(drawn: Tensor, seed: Any) -> Tensor:
    """Keep at most c = ceil(B / E) rows of every expert, chosen at random.

    Args:
        drawn: (..., B, E) one-hot.
        seed: a `keras.random.SeedGenerator`.

    Returns:
        (..., B) 1.0 where kept, else 0.0.
    """
    ops = keras.ops
    shape = ops.shape(drawn)
    B, E = shape[-2], drawn.shape[-1]
    c = (B + E - 1) // E
    order = ops.argsort(keras.random.uniform(shape[:-1], seed=seed), axis=-1)  # (..., B)
    shuffled = ops.take_along_axis(drawn, order[..., None], axis=-2)
    place = ops.sum(shuffled * ops.cumsum(shuffled, axis=-2), axis=-1)  # 1 for an expert's first
    fits = ops.cast(place <= ops.cast(c, place.dtype), drawn.dtype)
    return ops.take_along_axis(fits, ops.argsort(order, axis=-1), axis=-1)


def sinkhorn(log_p: Tensor) -> Tensor:
    """Normalise columns to B/E and rows to 1 in turn until both hold (section 2.3).

    The result is log p plus a term v_e per expert plus a term per row.  Plain alternation needs a
    number of rounds in proportion to the spread of log p: more than 1,000 for nearly one-hot rows.
    So it solves flatter problems first: v for log p / 256, then from 4 v for log p / 64, and so on
    up to log p itself.

    A level ends when every column is within 1% of B/E, or after 25 rounds.  Rows always sum to 1,
    so even an unbalanced proposal is a distribution, and importance weights with it are exact.  If
    the spread of log p is in the thousands, columns stay up to some 5% off (measured for E = 2 to
    64; 1,000 rounds of plain alternation: up to 270%).

    Args:
        log_p: (..., B, E) log probabilities; gets no gradient.

    Returns:
        (..., B, E) log probabilities.
    """
    ops = keras.ops
    log_p = ops.stop_gradient(log_p)
    if log_p.shape[-2] == 0:  # JAX refuses the maximum of an empty array
        return log_p
    rows, E = ops.cast(ops.shape(log_p)[-2], log_p.dtype), log_p.shape[-1]
    target = ops.log(ops.maximum(rows, 1.0) / E)

    def unbalanced(i: Tensor, v: Tensor, flat: Tensor, error: Tensor) -> Tensor:
        return ops.logical_and(i < _SINKHORN_ROUNDS, error > _SINKHORN_TOLERANCE)

    def balance(i: Tensor, v: Tensor, flat: Tensor, error: Tensor) -> tuple[Tensor, ...]:
        log_q = ops.log_softmax(flat + v)  # rows
        excess = ops.logsumexp(log_q, axis=-2, keepdims=True) - target  # columns, (..., 1, E)
        return i + 1, v - excess, flat, ops.max(ops.abs(excess))

    v = ops.zeros_like(log_p[..., :1, :])  # (..., 1, E), the term of each expert
    for level in reversed(range(_SINKHORN_LEVELS)):
        i = ops.convert_to_tensor(0, dtype="int32")
        error = ops.convert_to_tensor(float("inf"), dtype=log_p.dtype)
        start = (i, 4.0 * v, log_p / 4.0**level, error)
        _, v, _, _ = ops.while_loop(unbalanced, balance, start)
    return ops.log_softmax(log_p + v)
