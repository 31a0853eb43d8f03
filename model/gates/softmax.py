"""Softmax gate: every expert has a weight (Jordan and Jacobs; sparsely-gated MoE, section 2.1)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate
from multigate.model.gates.parts.selection import softmax


@keras.saving.register_keras_serializable("multigate")
class Softmax(LinearGate):
    """w = softmax(xA + b); static: w = softmax(b).

    `num_selected` exists for the common signature and has no effect: the gate is dense in training
    and at inference.
    """

    @property
    def properties(self) -> Properties:
        """Dense throughout."""
        return Properties(self.static, sparse_in_training=False, sparse_at_inference=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E), or (E,)."""
        return Routing(softmax(self.logits(x)), {}, {})
