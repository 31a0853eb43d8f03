"""Top-k gate: softmax over the k largest logits (sparsely-gated MoE, section 2.1)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate
from multigate.model.gates.parts.selection import softmax_of_some, top_k_mask


@keras.saving.register_keras_serializable("multigate")
class TopK(LinearGate):
    """w = softmax(KeepTopK(xA + b, k)); static: the logits are the vector b.

    KeepTopK sets all but the k largest logits to -inf.  Of equal logits the lower index wins, so
    exactly k experts are kept.
    """

    def bias_initializer(self) -> Any:
        """Small random numbers if static: with zeros every gate would keep experts 0..k-1."""
        if self.static:
            return keras.initializers.RandomNormal(stddev=0.01, seed=self.seed)
        return "zeros"

    @property
    def properties(self) -> Properties:
        """k-sparse from the first step."""
        return Properties(self.static, sparse_in_training=True, sparse_at_inference=True)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E), or (E,), with exactly k selected."""
        logits = self.logits(x)
        return Routing(softmax_of_some(logits, top_k_mask(logits, self.num_selected)), {}, {})
