"""The towers of all tasks as an exported graph computes them."""

from typing import Any

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen.experts import LaterLayers
from multigate.model.export.frozen.trained import DenseLayer, tower_layers
from multigate.model.export.frozen.weights import constant
from multigate.model.ranker.ranker import Ranker

Tensor = Any


class FrozenTowers:
    """The towers of a trained ranker.

    Hidden layers run one by one, because one large product of matrices is faster than its part of a
    batched one; what gives the outputs is small and batched.

    Axes: T tasks, G gates, N rows, K outputs, the largest number that a tower has.

    Args:
        ranker: the trained one.
    """

    def __init__(self, ranker: Ranker) -> None:
        self._gate_of = list(ranker.gate_of.values())
        self._gates = len(ranker.gate_names)
        layers = tower_layers(ranker)
        self._hidden = [
            [(constant(layer.kernel), constant(layer.bias), layer.activation) for layer in hidden]
            for *hidden, _ in layers
        ]
        most = max(len(last.bias) for *_, last in layers)
        self._last = LaterLayers([[_padded(last, most)] for *_, last in layers])

    def __call__(self, mixed: Tensor) -> Tensor:
        """Outputs (T, N, K) of a mixture's (G, N, U); those beyond a tower's own are 0."""
        with tf.name_scope("towers"):
            if any(self._hidden):
                of_gates = tf.unstack(mixed, self._gates)
                each = [of_gates[number] for number in self._gate_of]
                for t, hidden in enumerate(self._hidden):
                    for kernel, bias, activation in hidden:
                        each[t] = activation(tf.nn.bias_add(tf.matmul(each[t], kernel), bias))
                mixed = tf.stack(each)
            elif self._gate_of != list(range(self._gates)):
                mixed = tf.gather(mixed, self._gate_of)
            return self._last(mixed)


def _padded(layer: DenseLayer, outputs: int) -> DenseLayer:
    """The layer with outputs of 0 added."""
    more = outputs - len(layer.bias)
    return layer._replace(
        kernel=np.pad(layer.kernel, [(0, 0), (0, more)]), bias=np.pad(layer.bias, (0, more))
    )
