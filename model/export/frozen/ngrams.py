"""The n-grams of `model.data.ngrams` as a TensorFlow graph."""

from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import TextFeature
from multigate.model.data.ngrams import BLANK, characters

Tensor = Any


def ngram_lists(feature: TextFeature, texts: Tensor) -> tuple[Tensor, Tensor]:
    """The n-grams of texts (N,), UTF-8.

    Returns:
        (N, .), padded with empty texts, and their numbers (N,) int64.
    """
    with tf.name_scope("ngrams"):
        first = tf.strings.split(_folded(texts))[:, : feature.max_length]
        found = tf.strings.ngrams(first, tuple(range(1, feature.ngrams + 1)))
        return found.to_tensor(), found.row_lengths()


def _folded(texts: Tensor) -> Tensor:
    """Texts with words in lower case between blanks."""
    starts, shifts, alone = _runs()
    points = tf.strings.unicode_decode(texts, "UTF-8")  # (N, .); invalid bytes become U+FFFD
    flat = points.flat_values
    # Not `tf.searchsorted`, which fails where there is no character.
    run = tf.raw_ops.UpperBound(sorted_inputs=tf.constant(starts[None]), values=flat[None])[0] - 1
    shift = tf.gather(tf.constant(shifts), run)
    flat = tf.where(shift == _SEPARATES, BLANK, flat + shift)
    # A word of its own gets a blank on either side: it takes three places.
    width = tf.where(tf.gather(tf.constant(alone), run), 3, 1)
    place = tf.range(tf.reduce_sum(width)) - tf.repeat(tf.cumsum(width, exclusive=True), width)
    middle = (place == 1) | (tf.repeat(width, width) == 1)
    flat = tf.where(middle, tf.repeat(flat, width), BLANK)
    lengths = tf.reduce_sum(points.with_flat_values(width), axis=1)
    return tf.strings.unicode_encode(tf.RaggedTensor.from_row_lengths(flat, lengths), "UTF-8")


_SEPARATES = np.int32(1 << 30)


def _runs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of code points that are treated alike, R in all.

    Returns:
        (R,) int32 first code point; (R,) int32 what to add to it in lower case, or `_SEPARATES`;
        (R,) bool whether each is a word of its own.
    """
    folded, alone = characters()
    points = np.arange(len(folded), dtype=np.int32)
    shifts = np.where((folded == BLANK), _SEPARATES, folded - points)
    changes = (np.diff(shifts) != 0) | (np.diff(alone.astype(np.int8)) != 0)
    starts = np.concatenate([[0], 1 + np.flatnonzero(changes)]).astype(np.int32)
    return starts, shifts[starts], alone[starts]
