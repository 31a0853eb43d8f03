"""Dispatch on TensorFlow: row counts are dynamic, so every expert gets exactly its rows.

A *choice* is a non-zero weight (expert, row, task).  A *pair* is an (expert, row) that some task
chose; it is evaluated once.  Choices and pairs are sorted by expert, so an expert's rows are a
slice that TensorFlow cuts without copying.

Moving rows costs as much as a small expert, so both moves have hand-written gradients.  The
automatic ones scatter row by row on one core and mask out indices that cannot occur.

Each expert has variables of its own.  One stacked variable that each step unstacks costs the same,
and batched products over experts padded to the fullest one twice as much; the figures are in
docs/results/train_step.md.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.experts import Expert, call_expert


def mix(
    experts: Sequence[keras.layers.Layer],
    x: Tensor,
    weights: Tensor,
    training: bool,
    dense: bool,
) -> tuple[list[Tensor], Tensor]:
    """See `dispatch.mix`."""
    T, E = weights.shape[0], len(experts)
    B = tf.shape(x)[0]
    by_expert = tf.transpose(weights, (2, 1, 0))  # (E, B, T)
    mask = tf.ones_like(by_expert, tf.bool) if dense else by_expert != 0
    chosen = tf.where(mask)  # (N, 3): expert, row, task
    values = tf.gather_nd(by_expert, chosen)  # (N,)
    expert, row, task = tf.unstack(tf.cast(chosen, tf.int32), axis=1)
    pairs, pair_of = tf.unique(expert * B + row)  # (P,), and (N,) each choice's pair
    counts = tf.math.bincount(pairs // tf.maximum(B, 1), minlength=E, maxlength=E)

    inputs = tf.split(_take(x, pairs % tf.maximum(B, 1)), counts, num=E)
    results = [
        _run(expert, rows, x.shape, training) for expert, rows in zip(experts, inputs, strict=True)
    ]
    results = tf.concat(results, axis=0)
    results = tf.cast(results, weights.dtype)
    flat = tf.reshape(results, [tf.shape(pairs)[0], tf.reduce_prod(tf.shape(results)[1:])])
    mixed = _combine(flat, values, pair_of, task * B + row, T * B)  # (T * B, U)
    mixed = tf.reshape(mixed, tf.concat([[T, B], tf.shape(results)[1:]], 0))
    mixed.set_shape([T, x.shape[0], *results.shape[1:]])
    evaluated = tf.cast(tf.shape(pairs)[0], weights.dtype)
    return tf.unstack(mixed), evaluated / tf.cast(tf.maximum(B, 1), weights.dtype)


def _run(expert: keras.layers.Layer, rows: Tensor, shape: Any, training: bool) -> Tensor:
    """Run an expert on its rows, unless there are none.

    Dense layers accept an empty batch, and a branch would cost them some 5 % of a step.  Other
    layers get a branch: TensorFlow's convolution (oneDNN) returns a wrong shape for an empty batch.
    """
    rows.set_shape([None, *shape[1:]])
    if isinstance(expert, Expert):
        return call_expert(expert, rows, training)
    empty = [0, *expert.compute_output_shape(rows.shape)[1:]]
    result = tf.cond(
        tf.shape(rows)[0] > 0,
        lambda: call_expert(expert, rows, training),
        lambda: tf.zeros(empty, expert.compute_dtype),
    )
    result.set_shape([None, *empty[1:]])
    return result


def _take(x: Tensor, rows: Tensor) -> Tensor:
    """Rows (P, ...) of x (B, ...)."""

    @tf.custom_gradient
    def take(x: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> Tensor:
            flat = tf.reshape(upstream, [tf.size(rows), tf.reduce_prod(tf.shape(x)[1:])])
            return tf.reshape(_sum_rows(flat, rows, tf.shape(x)[0]), tf.shape(x))

        return tf.gather(x, rows), gradient

    return take(x)


def _combine(y: Tensor, values: Tensor, pair_of: Tensor, target: Tensor, size: Tensor) -> Tensor:
    """Sum values[n] * y[pair_of[n]] into row target[n] of the result (size, U).

    Args:
        y: (P, U) results of the pairs.
        values: (N,) weights of the choices.
        pair_of: (N,) the choices' pairs, ascending; every pair occurs.
        target: (N,) in [0, size).
        size: rows of the result.
    """

    @tf.custom_gradient
    def combine(y: Tensor, values: Tensor) -> tuple[Tensor, Any]:
        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            received = tf.gather(upstream, target)  # (N, U)
            by_values = tf.reduce_sum(received * tf.gather(y, pair_of), axis=1)
            by_y = tf.math.segment_sum(received * values[:, None], pair_of)
            return by_y, by_values

        return _sum_rows(tf.gather(y, pair_of) * values[:, None], target, size), gradient

    return combine(y, values)


def _sum_rows(rows: Tensor, target: Tensor, size: Tensor) -> Tensor:
    """Add rows (N, U) into the rows `target` (N,) of zeros (size, U)."""
    order = tf.argsort(target, stable=True)
    return tf.raw_ops.SparseSegmentSumWithNumSegments(
        data=rows, indices=order, segment_ids=tf.gather(target, order), num_segments=size
    )
