"""X-MoE gate: cosine scores in a low-dimensional space (MOESART, section 3; Chi et al.)."""

import math
from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Properties, Routing, Tensor, derive_seed
from multigate.model.gates.parts.linear import product
from multigate.model.gates.parts.selection import keep_where, softmax, top_k_mask

_SMALLEST_SQUARED_NORM = 1e-12


@keras.saving.register_keras_serializable("multigate")
class XMoE(Gate):
    """w = TopK(softmax(cosine(A_e, xP) / tau), k), with P (D, H), A (E, H) and tau > 0 learnt.

    The weights are not renormalised after TopK, so they sum to at most one.  H = max(2, E // 2),
    because a cosine in one dimension is +-1 and has no gradient.  MOESART prints the division by
    tau outside the softmax, where it would only scale the weights; here, as in X-MoE, it is inside.
    tau stays positive because its logarithm is learnt.  A row with xP = 0 has cosine 0 with every
    expert.

    Args:
        temperature: tau before training, > 0.
    """

    has_static = False
    reads_products = True
    input_weights = (("projection", None),)

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        temperature: float = 0.3,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option("temperature", temperature, temperature > 0, "more than 0")
        self.temperature = temperature

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create P (D, H), A (E, H) and log tau ()."""
        H = max(2, self.num_experts // 2)
        self.projection = self.add_weight(
            shape=(input_shape[-1], H),
            initializer=keras.initializers.GlorotUniform(seed=self.seed),
            name="projection",
        )
        self.embeddings = self.add_weight(
            shape=(self.num_experts, H),
            initializer=keras.initializers.GlorotUniform(derive_seed(self.seed, "embeddings")),
            name="embeddings",
        )
        self.log_temperature = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(math.log(self.temperature)),
            name="log_temperature",
        )

    @property
    def properties(self) -> Properties:
        """k-sparse from the first step; sums to at most one."""
        return Properties(False, True, True, normalised=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); the diagnostic `temperature` is tau."""
        ops = keras.ops
        projected = _unit(product(x, self.projection))  # (B, H)
        cosine = ops.matmul(projected, ops.transpose(_unit(self.embeddings)))  # (B, E)
        temperature = ops.exp(self.log_temperature)
        probabilities = softmax(self.check_logits(cosine / temperature))
        weights = keep_where(top_k_mask(probabilities, self.num_selected), probabilities)
        return Routing(weights, {}, {"temperature": ops.stop_gradient(temperature)})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {"temperature": self.temperature}


def _unit(vectors: Tensor) -> Tensor:
    """Rows of `vectors` (N, H) scaled to length one; a zero row stays zero, its gradient finite."""
    ops = keras.ops
    squared = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squared, _SMALLEST_SQUARED_NORM))
