"""Softmax gate: every expert has a weight (Jordan and Jacobs; gates.md, "Dense")."""

from typing import Any

import keras

from model.gates.base import Gate, Properties, Routing, Tensor


@keras.saving.register_keras_serializable("multigate")
class Softmax(Gate):
    """w = softmax(xA + b); static: w = softmax(b).

    `num_selected` is accepted for the common signature and has no effect: the gate is dense in
    training and at inference.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create A (D, E) and b (E,)."""
        if not self.static:
            self.kernel = self.add_weight(
                shape=(input_shape[-1], self.num_experts),
                initializer=keras.initializers.GlorotUniform(seed=self.seed),
                name="kernel",
            )
        self.bias = self.add_weight(shape=(self.num_experts,), initializer="zeros", name="bias")

    @property
    def properties(self) -> Properties:
        """Dense throughout."""
        return Properties(self.static, sparse_in_training=False, sparse_at_inference=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E), or (E,)."""
        ops = keras.ops
        logits = ops.convert_to_tensor(self.bias)
        if not self.static:
            logits = ops.matmul(x, self.kernel) + logits
        return Routing(ops.softmax(self.check_logits(logits)), {}, {})
