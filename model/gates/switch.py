"""Switch gate: multiplicative noise, the k largest probabilities, a balance loss (Fedus et al.)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate, noise_generator, product
from multigate.model.gates.parts.selection import (
    keep_where,
    softmax,
    switch_balance_loss,
    top_k_mask,
)


@keras.saving.register_keras_serializable("multigate")
class Switch(LinearGate):
    """w = TopK(softmax((x * eps)A + b), k), eps ~ U(1 - jitter, 1 + jitter) in training.

    The weights are not renormalised after TopK, so they sum to at most one.  As in the Switch
    Transformer, the noise multiplies each input of the router.  In MOESART (section 3) it
    multiplies the logits, w = TopK(softmax((xA) * eps + b), k): `noise="logits"`.

    Loss in training, with p the softmax before TopK:

        balance: lambda * E * sum_e (share of examples with first choice e) * mean_b p[b, e]

    Args:
        noise: what it multiplies, "inputs" (B, D) or "logits" (B, E).
        jitter: half-width of the noise's interval, 0 <= jitter < 1.
        balance_weight: lambda.
    """

    has_static = False

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        noise: str = "inputs",
        jitter: float = 0.02,
        balance_weight: float = 0.01,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option("noise", noise, noise in ("inputs", "logits"), "'inputs' or 'logits'")
        self.check_option("jitter", jitter, 0 <= jitter < 1, "0 <= jitter < 1")
        self.check_option("balance_weight", balance_weight, balance_weight >= 0, "at least 0")
        self.noise = noise
        self.jitter = jitter
        self.balance_weight = balance_weight
        self.generator = noise_generator(seed)

    @property
    def properties(self) -> Properties:
        """k-sparse from the first step; sums to at most one."""
        return Properties(False, True, True, normalised=False)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); loss `balance` in training."""
        if training and self.noise == "inputs":
            x = x * self._draw(x)
        projected = product(x, self.kernel)  # (B, E)
        if training and self.noise == "logits":
            projected = projected * self._draw(projected)
        probabilities = softmax(self.check_logits(projected + self.bias))
        weights = keep_where(top_k_mask(probabilities, self.num_selected), probabilities)
        if not training:
            return Routing(weights, {}, {})
        loss = self.balance_weight * switch_balance_loss(probabilities)
        return Routing(weights, {"balance": loss}, {})

    def _draw(self, like: Tensor) -> Tensor:
        """Noise of the shape of `like`."""
        return keras.random.uniform(
            keras.ops.shape(like),
            1.0 - self.jitter,
            1.0 + self.jitter,
            dtype=like.dtype,
            seed=self.generator,
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "noise": self.noise,
            "jitter": self.jitter,
            "balance_weight": self.balance_weight,
        }
