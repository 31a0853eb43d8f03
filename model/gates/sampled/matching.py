"""Gumbel-Matching: the best assignment under a capacity, and each row's conditional probabilities.

Kool, Maddison and Mnih, "Unbiased gradient estimation with balanced assignments", section 2.2 and
appendices D.2 to D.4.  Runs in NumPy on the host, because the solver loops until no expert is over
its capacity.  SciPy's `linear_sum_assignment` was considered and is slower, see `solve`.
"""

from itertools import pairwise
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from multigate.model import backend
from multigate.model.gates.parts.base import Tensor

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def capacity(B: int, E: int) -> int:
    """Rows that one expert may take: c = ceil(B / E)."""
    return -(-B // E)


def solve(scores: Array) -> tuple[Indices, Array]:
    """Assignment that maximises sum_b scores[b, z_b] with at most c = ceil(B / E) rows per expert.

    Every row starts at its best expert, which is optimal for the resulting counts.  While an expert
    holds more than c rows, one row moves along each step of a cheapest path from an over-full
    expert to one with room; cheapest paths keep the assignment optimal for its counts.  If E does
    not divide B, E*c - B dummy rows of score 0 fill the free slots: the conditionals need full
    experts.  (The paper instead cancels negative cycles from a heuristic start.  At B = 2048 and
    E = 8 to 64 this took 30 to 70 ms; a general assignment solver took 1 s, because it sees the c
    slots of an expert as c equal columns.)

    Args:
        scores: (B, E) finite.

    Returns:
        z (B,), the expert of each row, and d* (E, E), the cheapest costs of making room: d*[j, i]
        is the cost of moving one row out of j into i, over any number of experts.
    """
    B, E = scores.shape
    c = capacity(B, E)
    s = np.concatenate([scores, np.zeros((E * c - B, E))])  # (E*c, E)
    z = np.argmax(s, axis=1)
    least_loaded = np.argsort(np.bincount(z[:B], minlength=E), kind="stable")
    z[B:] = least_loaded[: E * c - B]  # dummies fit anywhere, and are fewer than the experts
    counts = np.bincount(z, minlength=E)
    moves = np.full((E, E), np.inf)  # cost of the cheapest direct move of one row from j to i
    movers = np.zeros((E, E), np.int64)  # the row of that move
    for j in range(E):
        _refresh(j, s, z, moves, movers)
    while (counts > c).any():
        path = _cheapest_path(moves, counts > c, counts < c)
        for j, i in pairwise(path):
            z[movers[j, i]] = i
        counts[path[0]] -= 1
        counts[path[-1]] += 1
        for j in path:
            _refresh(j, s, z, moves, movers)
    return z[:B], _all_pairs(moves)


def _refresh(j: int, s: Array, z: Indices, moves: Array, movers: Indices) -> None:
    """Recompute row j of `moves` and `movers` after expert j's rows have changed."""
    rows = np.flatnonzero(z == j)
    if not rows.size:
        moves[j] = np.inf
    else:
        costs = s[rows, j, None] - s[rows]  # (rows, E)
        best = np.argmin(costs, axis=0)
        moves[j] = costs[best, np.arange(len(moves))]
        movers[j] = rows[best]
    moves[j, j] = 0.0


def _cheapest_path(moves: Array, full: NDArray[np.bool_], free: NDArray[np.bool_]) -> list[int]:
    """Experts on the cheapest path from any in `full` to any in `free` (Bellman and Ford)."""
    E = len(moves)
    cost = np.where(full, 0.0, np.inf)
    previous = np.full(E, -1)
    for _ in range(E):
        through = cost[:, None] + moves
        best = np.argmin(through, axis=0)
        reached = through[best, np.arange(E)]
        # Rounding must not make a path loop, so tiny improvements do not count.
        better = reached < cost - 1e-12
        if not better.any():
            break
        cost = np.where(better, reached, cost)
        previous = np.where(better, best, previous)
    path = [int(np.argmin(np.where(free, cost, np.inf)))]
    while previous[path[-1]] >= 0:
        path.append(int(previous[path[-1]]))
    return path[::-1]


def _all_pairs(moves: Array) -> Array:
    """Cheapest path costs between all pairs (Floyd and Warshall); zero on the diagonal."""
    d = moves.copy()
    for via in range(len(d)):
        d = np.minimum(d, d[:, via, None] + d[None, via])
    np.fill_diagonal(d, 0.0)
    return d


def _solve_two(scores: Array) -> tuple[Indices, Array]:
    """`solve` for E = 2 with any leading axes: the c largest differences take expert 0.

    Args:
        scores: (..., B, 2).

    Returns:
        z (..., B) and d* (..., 2, 2).
    """
    B = scores.shape[-2]
    c = capacity(B, 2)
    gain = scores[..., 0] - scores[..., 1]  # (..., B)
    gain = np.concatenate([gain, np.zeros((*gain.shape[:-1], 2 * c - B))], axis=-1)  # (..., 2c)
    order = np.argsort(-gain, axis=-1, kind="stable")
    z = np.ones(gain.shape, np.int64)
    np.put_along_axis(z, order[..., :c], 0, axis=-1)
    ranked = np.take_along_axis(gain, order, axis=-1)
    d = np.zeros((*gain.shape[:-1], 2, 2))
    d[..., 0, 1] = ranked[..., c - 1]  # the row of expert 0 that gains least from it
    d[..., 1, 0] = -ranked[..., c]
    return z[..., :B], d


def match(logits: NDArray[Any], noise: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Draw from the Gumbel-Matching distribution.

    The best assignment with z_b = j has the value v|z_b=j = v* - s[b, z_b] + s[b, j] - d*[j, z_b]
    (eq. 7).  Row b's conditional, given the noise of the other rows, is
    q(z_b = j) = softmax_j(v|z_b=j - noise[b, j]) (eq. 9).  Terms without j cancel, which leaves
    softmax_j(logits[b, j] - d*[j, z_b]).

    Args:
        logits: (..., B, E) unnormalised log probabilities, divided by the temperature.
        noise: (..., B, E) standard Gumbel.

    Returns:
        z (..., B) and log q(z_b) (..., B).
    """
    a = logits.astype(np.float64)
    s = a + noise
    *lead, B, E = a.shape
    if not B:
        return np.zeros(a.shape[:-1], np.int32), np.zeros(a.shape[:-1], logits.dtype)
    if E == 2:
        z, d = _solve_two(s)
    else:
        solved = [solve(one) for one in s.reshape(-1, B, E)]
        z = np.array([pair[0] for pair in solved], np.int64).reshape(*lead, B)
        d = np.array([pair[1] for pair in solved]).reshape(*lead, E, E)
    back = np.take_along_axis(np.swapaxes(d, -1, -2), z[..., None], axis=-2)  # (..., B, E)
    v = a - back
    v -= v.max(axis=-1, keepdims=True)
    log_q = v - np.log(np.exp(v).sum(axis=-1, keepdims=True))
    drawn = np.take_along_axis(log_q, z[..., None], axis=-1)[..., 0]
    return z.astype(np.int32), drawn.astype(logits.dtype)


def gumbel_matching(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """`match` for tensors, as a callback on the host; works in a tf.function and under jax.jit.

    Args:
        logits: (..., B, E), divided by the temperature; gets no gradient.
        noise: (..., B, E) standard Gumbel.

    Returns:
        z (..., B) int32 and log q(z_b) (..., B), without gradient.
    """
    logits = keras.ops.stop_gradient(logits)
    if backend.name() == "tensorflow":
        import tensorflow as tf

        z, log_q = tf.numpy_function(match, [logits, noise], [tf.int32, logits.dtype])
        z.set_shape(logits.shape[:-1])
        log_q.set_shape(logits.shape[:-1])
        return z, log_q
    import jax

    rows = logits.shape[:-1]
    outcome = (
        jax.ShapeDtypeStruct(rows, "int32"),
        jax.ShapeDtypeStruct(rows, logits.dtype),
    )

    def host(a: Any, g: Any) -> tuple[NDArray[np.int32], NDArray[Any]]:
        return match(np.asarray(a), np.asarray(g))

    return jax.pure_callback(host, outcome, logits, noise)
