"""Dispatch on TensorFlow: row counts are dynamic, so every expert gets exactly its rows."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from model.gates.base import Tensor


def mix(
    experts: Sequence[Callable[[Tensor], Tensor]], x: Tensor, weights: Tensor
) -> tuple[list[Tensor], Tensor]:
    """See `dispatch.mix`."""
    B = tf.shape(x)[0]
    used = tf.reduce_any(weights != 0, axis=0)  # (B, E)
    pairs = tf.where(tf.transpose(used))  # (P, 2): expert, row; sorted by expert
    rows = tf.cast(pairs[:, 1], tf.int32)  # (P,)
    counts = tf.reduce_sum(tf.cast(used, tf.int32), axis=0)  # (E,)
    pair_weights = tf.gather_nd(tf.transpose(weights, (2, 1, 0)), pairs)  # (P, T)

    inputs = tf.split(tf.gather(x, rows), counts, num=len(experts))
    for slice_ in inputs:
        slice_.set_shape([None, *x.shape[1:]])
    results = tf.concat([run(rows) for run, rows in zip(experts, inputs, strict=True)], axis=0)

    shape = tf.concat([[B], tf.shape(results)[1:]], 0)
    flat = tf.reshape(results, [tf.shape(rows)[0], -1])
    outputs = []
    for w in tf.unstack(pair_weights, axis=1):
        out = tf.reshape(tf.math.unsorted_segment_sum(w[:, None] * flat, rows, B), shape)
        out.set_shape([x.shape[0], *results.shape[1:]])
        outputs.append(out)
    P = tf.cast(tf.shape(rows)[0], weights.dtype)
    return outputs, P / tf.cast(tf.maximum(B, 1), weights.dtype)
