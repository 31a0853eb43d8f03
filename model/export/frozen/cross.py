"""Cross layers as an exported graph computes them: x_0 V_0 is split into user and item halves."""

from typing import Any

import numpy as np
import tensorflow as tf

from multigate.model.checkpoints.weights import to_numpy
from multigate.model.export.frozen.user_half import Halves, SplitKernel
from multigate.model.export.frozen.weights import constant
from multigate.model.ranker.cross import Cross

Tensor = Any


class FrozenCross:
    """Trained cross layers, for inference only.

    Args:
        cross: the layers.
        columns: (D,) the column of the layers' input for each column of `Halves`.
        user_width: Du.
    """

    def __init__(self, cross: Cross, columns: np.ndarray, user_width: int) -> None:
        (first, *_), *_ = cross.kernels
        self._first = SplitKernel(to_numpy(first)[columns], user_width)
        self._layers = [
            tuple(
                constant(value)
                for value in (
                    to_numpy(down)[columns],
                    to_numpy(up)[:, columns],
                    to_numpy(bias)[columns],
                )
            )
            for down, up, bias in cross.kernels
        ]

    def __call__(self, halves: Halves) -> Tensor:
        """The crossed input (N, D), columns in the order of `halves`."""
        user, low = halves.user, self._first.user(halves.user)  # (M, Du), (M, r)
        if halves.user_index is not None:
            user, low = tf.gather(user, halves.user_index), halves.of_rows(low)
        low = low + self._first.item(halves.item, None)  # (N, r)
        x = first = tf.concat([user, halves.item], axis=1)  # (N, D)
        for layer, (down, up, bias) in enumerate(self._layers):
            if layer:
                low = tf.matmul(x, down)
            x = first * tf.nn.bias_add(tf.matmul(low, up), bias) + x
        return x
