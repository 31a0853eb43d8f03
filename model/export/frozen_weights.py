"""Weight matrices as an exported file holds them: float32, bfloat16 or int8 with scales.

Experts' kernels and embedding tables make up nearly all of a file.  They alone are stored small:
gates, towers and biases stay float32, so that a row's experts are chosen as they were in training.

    bfloat16   the upper 16 bits of a float32, rounded to the nearest
    int8       round(w / scale), scale = max |w| / 127 of each output channel: a column of a kernel,
               a row of an embedding table

The ranker's own weights are rounded first (`round_weights`), so that the graph and the Keras model
have the same weights and can be held to the same scores.
"""

from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from multigate.model.ranker.ranker import Ranker

Tensor = Any
Kind = Literal["float32", "bfloat16", "int8"]

_LARGEST = 127


class Stored:
    """A matrix in a file, float32 where it is read.

    Args:
        value: (R, C) float32, rounded by `rounded` before.
        kind: how it is stored.
        axis: along which the entries share a scale: 0 in a kernel, whose columns are channels; 1
            in an embedding table.
    """

    def __init__(self, value: np.ndarray, kind: Kind, axis: int) -> None:
        self.shape = value.shape
        self._axis = axis
        self._scale: tf.Variable | None = None
        stored = value
        if kind == "bfloat16":
            stored = value.astype(tf.bfloat16.as_numpy_dtype)
        elif kind == "int8":
            stored, scale = _quantise(value, axis)
            self._scale = tf.Variable(scale, trainable=False)
        self._variable = tf.Variable(stored, trainable=False)

    def read(self) -> Tensor:
        """The matrix (R, C)."""
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
        # Read, then gathered: a gather from the variable itself (ResourceGather) is one that
        # TensorFlow cannot turn into constants inside a function, as the server does with a file.
        value = tf.gather(self._variable.read_value(), rows)
        if value.dtype != tf.float32:
            value = tf.cast(value, tf.float32)
        return value if self._scale is None else value * tf.gather(self._scale.read_value(), rows)


def rounded(value: np.ndarray, kind: Kind, axis: int) -> np.ndarray:
    """The float32 matrix that `Stored` gives back for `value`."""
    if kind == "bfloat16":
        return value.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
    if kind == "int8":
        stored, scale = _quantise(value, axis)
        return stored.astype(np.float32) * scale
    return value


def round_weights(ranker: Ranker, kind: Kind) -> None:
    """Round a ranker's expert kernels and embedding tables in place, as they will be stored."""
    for expert in ranker.mixture.experts:
        for layer in expert.stack:
            if isinstance(layer, keras.layers.Dense):
                layer.kernel.assign(rounded(_numpy(layer.kernel), kind, 0))
    for table in ranker.embedder.tables.values():
        table.embeddings.assign(rounded(_numpy(table.embeddings), kind, 1))


def _quantise(value: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Integers of value's shape, and scales that broadcast with them."""
    largest = np.abs(value).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / _LARGEST, 1.0).astype(np.float32)
    return np.clip(np.rint(value / scale), -_LARGEST, _LARGEST).astype(np.int8), scale


def _numpy(variable: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(variable.value))
