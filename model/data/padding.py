"""Batches padded to a few sizes, so that XLA compiles one graph per size."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


class Padding:
    """Pads batches to a few sizes.

    Args:
        sizes: ascending; a batch larger than the last is padded to a multiple of the last.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tf.constant(list(sizes), tf.int32)

    def size(self, rows: Tensor) -> Tensor:
        """Number of rows () after padding."""
        largest = self._sizes[-1]
        beyond = (rows + largest - 1) // largest * largest
        fits = tf.where(self._sizes >= rows, self._sizes, beyond)
        return tf.reduce_min(tf.where(self._sizes >= rows, fits, tf.maximum(beyond, largest)))

    def pad(self, x: Tensor) -> Tensor:
        """Add rows of zeros to x (n, ...)."""
        rows = tf.shape(x)[0]
        padding = [[0, self.size(rows) - rows], *([0, 0] for _ in x.shape[1:])]
        return tf.pad(x, padding)
