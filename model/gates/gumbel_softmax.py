"""Gumbel-softmax gate: a coin for every expert switches it on or off (DSelect-k, appendix D)."""

import math
from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Properties, Routing, Tensor
from multigate.model.gates.parts.linear import noise_generator
from multigate.model.gates.parts.selection import softmax


@keras.saving.register_keras_serializable("multigate")
class GumbelSoftmax(Gate):
    """w_e = softmax(alpha)_e U_e, with U_e a relaxed Bernoulli(pi_e); static only.

    In training, U_e = sigmoid((logit(pi_e) + L_e) / temperature) with logistic noise L_e (the
    binary concrete distribution), drawn once per call; at inference U_e = [pi_e > 1/2].
    `num_selected` exists for the common signature and has no effect: only the penalty decides how
    many experts stay.

    The hard form rounds U_e in training and passes the gradient of the relaxed form.  So experts
    with weight zero carry gradient and must run: it saves nothing in training.

    Losses in training:
        sparsity: mu * sum_e log pi_e.  It falls without limit as the pi go to zero; mu balances it
            against the task's loss.

    Args:
        temperature: of the relaxed Bernoulli.
        sparsity_weight: mu.
        hard: use the straight-through form.
        initial_probability: pi_e before training, the same for all experts.
    """

    has_per_example = False

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        temperature: float = 1.0,
        sparsity_weight: float = 0.0,
        hard: bool = False,
        initial_probability: float = 0.9,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option("temperature", temperature, temperature > 0, "more than 0")
        self.check_option("sparsity_weight", sparsity_weight, sparsity_weight >= 0, "at least 0")
        self.check_option(
            "initial_probability",
            initial_probability,
            0 < initial_probability < 1,
            "0 < initial_probability < 1",
        )
        self.temperature = temperature
        self.sparsity_weight = sparsity_weight
        self.hard = hard
        self.initial_probability = initial_probability
        self.noise = noise_generator(self.seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create alpha (E,) and logit(pi) (E,)."""
        pi = self.initial_probability
        self.mix = self.add_weight(shape=(self.num_experts,), initializer="zeros", name="mix")
        self.switch = self.add_weight(
            shape=(self.num_experts,),
            initializer=keras.initializers.Constant(math.log(pi / (1 - pi))),
            name="switch",
        )

    @property
    def properties(self) -> Properties:
        """Dense in training; at inference k does not limit the number of experts."""
        return Properties(
            self.static,
            sparse_in_training=False,
            sparse_at_inference=False,
            normalised=False,
            straight_through=self.hard,
        )

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (E,)."""
        ops = keras.ops
        alpha = softmax(self.check_logits(ops.convert_to_tensor(self.mix)))
        logit = self.check_logits(ops.convert_to_tensor(self.switch))  # (E,)
        if not training:
            return Routing(alpha * ops.cast(logit > 0, alpha.dtype), {}, {})
        # Away from 0 and 1 by more than float32's spacing, so that the noise is finite.
        u = keras.random.uniform(
            (self.num_experts,), 1e-6, 1 - 1e-6, dtype="float32", seed=self.noise
        )
        logistic = ops.cast(ops.log(u) - ops.log(1.0 - u), logit.dtype)
        switch = ops.sigmoid((logit + logistic) / self.temperature)
        if self.hard:
            rounded = ops.cast(switch > 0.5, switch.dtype)
            # The bracket is exactly zero, with the gradient of the relaxed form.
            switch = rounded + (switch - ops.stop_gradient(switch))
        losses = {}
        if self.sparsity_weight:
            losses["sparsity"] = self.sparsity_weight * ops.sum(ops.log_sigmoid(logit))
        return Routing(alpha * switch, losses, {})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "temperature": self.temperature,
            "sparsity_weight": self.sparsity_weight,
            "hard": self.hard,
            "initial_probability": self.initial_probability,
        }
