"""V-MoE gate: the k largest entries of a noisy softmax (MOESART, section 3; Ruiz et al.)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate, noise_generator
from multigate.model.gates.parts.selection import keep_where, softmax, top_k_mask


@keras.saving.register_keras_serializable("multigate")
class VMoE(LinearGate):
    """w = TopK(softmax(xA + b + eps), k), eps ~ N(0, 1/E^2) in training, 0 at inference.

    The weights are not renormalised after TopK, so they sum to at most one.
    """

    has_static = False

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.noise = noise_generator(seed)

    @property
    def properties(self) -> Properties:
        """k-sparse from the first step; sums to at most one."""
        return Properties(False, True, True, normalised=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E)."""
        ops = keras.ops
        logits = self.logits(x)
        if training:
            logits = logits + keras.random.normal(
                ops.shape(logits),
                stddev=1.0 / self.num_experts,
                dtype=logits.dtype,
                seed=self.noise,
            )
        probabilities = softmax(logits)
        return Routing(
            keep_where(top_k_mask(probabilities, self.num_selected), probabilities), {}, {}
        )
