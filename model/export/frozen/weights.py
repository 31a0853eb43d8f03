"""Weight matrices as an exported file holds them: float32, bfloat16 or int8 with scales.

Experts' kernels, embedding tables and factors make up nearly all of a file.  Only these are stored
in fewer bits: gates, towers and biases stay float32, so that a row's experts are chosen as in
training.

    bfloat16   the upper 16 bits of a float32, rounded to the nearest
    int8       round(w / scale), scale = max |w| / 127 of each output channel: a column of a kernel,
               a row of an embedding table

The ranker's own weights are rounded first (`round_weights`), so that the graph and the Keras model
have the same weights and must give the same scores.
"""

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from multigate.model.checkpoints.weights import to_numpy
from multigate.model.ranker.ranker import Ranker

Tensor = Any
StoredAs = Literal["float32", "bfloat16", "int8"]

_LARGEST = 127


def constant(value: np.ndarray) -> tf.Variable:
    """A value that the file stores beside the graph."""
    return tf.Variable(value, trainable=False)


class StoredMatrix:
    """A matrix as the file stores it; reading it gives float32.

    Args:
        value: (R, C), or several kernels (S, R, C); float32, already rounded by `rounded`.
        stored_as: how it is stored.
        axis: along which the entries share a scale: 0 for a kernel, where a channel is a column
            (1 for several); 1 for an embedding table, where it is a row.
        whole: what `value` is a part of along `axis`, if its scales are those of the whole.
    """

    def __init__(
        self, value: np.ndarray, stored_as: StoredAs, axis: int, whole: np.ndarray | None = None
    ) -> None:
        self.shape = value.shape
        self._axis = axis
        self._scale: tf.Variable | None = None
        stored = value
        if stored_as == "bfloat16":
            stored = value.astype(tf.bfloat16.as_numpy_dtype)
        elif stored_as == "int8":
            stored, scale = _quantise(value, axis, whole)
            self._scale = constant(scale)
        self._variable = constant(stored)

    def read(self) -> Tensor:
        """The matrix (R, C), or the kernels (S, R, C)."""
        value = tf.convert_to_tensor(self._variable)
        if value.dtype != tf.float32:
            value = tf.cast(value, tf.float32)
        return value if self._scale is None else value * self._scale

    def slice(self, start: int | None, stop: int | None) -> Tensor:
        """Rows from `start` to `stop` of a kernel."""
        value = self._variable[start:stop]
        if value.dtype != tf.float32:
            value = tf.cast(value, tf.float32)
        return value if self._scale is None else value * self._scale

    def take(self, rows: Tensor) -> Tensor:
        """Some rows (..., C) of an embedding table."""
        # Read, then gather: TensorFlow cannot turn a gather from the variable itself
        # (ResourceGather) into constants inside a function, and the server needs constants.
        value = tf.gather(self._variable.read_value(), rows)
        if value.dtype != tf.float32:
            value = tf.cast(value, tf.float32)
        return value if self._scale is None else value * tf.gather(self._scale.read_value(), rows)


def rounded(value: np.ndarray, stored_as: StoredAs, axis: int) -> np.ndarray:
    """The float32 matrix that a `StoredMatrix` of `value` gives back."""
    if stored_as == "bfloat16":
        return value.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
    if stored_as == "int8":
        stored, scale = _quantise(value, axis)
        return stored.astype(np.float32) * scale
    return value


def round_weights(ranker: Ranker, stored_as: StoredAs) -> None:
    """Round expert kernels, embedding tables and factors in place, as the file stores them."""
    for expert in ranker.mixture.experts:
        for layer in expert.dense_layers:
            layer.kernel.assign(rounded(to_numpy(layer.kernel), stored_as, 0))
    for table in ranker.embedder.tables.values():
        table.embeddings.assign(rounded(to_numpy(table.embeddings), stored_as, 1))
    if ranker.factors is not None:
        for pair in ranker.factors.pairs.values():
            tables: list[Any] = [pair.first, pair.second]
            for table in tables:
                table.assign(rounded(to_numpy(table), stored_as, 1))


def _quantise(
    value: np.ndarray, axis: int, whole: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Integers of the shape of `value`, and scales that broadcast with them."""
    largest = np.abs(value if whole is None else whole).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / _LARGEST, 1.0).astype(np.float32)
    return np.clip(np.rint(value / scale), -_LARGEST, _LARGEST).astype(np.int8), scale
