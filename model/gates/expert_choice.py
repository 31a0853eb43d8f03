"""Expert choice: each expert takes its best examples (MOESART, section 3; Zhou et al.)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate
from multigate.model.gates.parts.selection import keep_where, softmax, top_k_mask


@keras.saving.register_keras_serializable("multigate")
class ExpertChoice(LinearGate):
    """S = softmax(xA + b); in training each expert takes the k' examples with its largest S.

    k' = max(1, ceil(B k / E)), so that an example is taken by k experts on average.  w = S if the
    expert took the example, else 0, without renormalising: weights sum to at most one, and an
    example that no expert took has zeros only.  Of equal scores the earlier row wins.

    With that rule a row's weights depend on its batch.  At inference a request must get the same
    score in any batch, so there w is the k largest S of each row.
    """

    has_static = False

    @property
    def properties(self) -> Properties:
        """Sparse on average in training, k-sparse per example at inference."""
        return Properties(False, False, True, batch_dependent=True, normalised=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E)."""
        ops = keras.ops
        scores = softmax(self.logits(x))  # (B, E)
        if not training:
            return Routing(keep_where(top_k_mask(scores, self.num_selected), scores), {}, {})
        # Ranks, not top_k: B, and so k', may be unknown until the graph runs.
        order = ops.argsort(-scores, axis=0)  # (B, E), row numbers, largest score first
        rank = ops.argsort(order, axis=0)  # (B, E), 0 is the expert's best example
        B = ops.shape(scores)[0]
        taken = (B * self.num_selected + self.num_experts - 1) // self.num_experts  # k'
        return Routing(keep_where(rank < ops.maximum(taken, 1), scores), {}, {})
