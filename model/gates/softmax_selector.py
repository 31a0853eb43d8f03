"""DSelect-k's ablations: a softmax instead of binary codes in each selector (appendix C.1)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor, derive_seed, entropy
from multigate.model.gates.parts.linear import product
from multigate.model.gates.parts.schedule import (
    Points,
    ScheduledGate,
    check_points,
    geometric,
    piecewise_linear,
)
from multigate.model.gates.parts.selection import batch_mean, keep_largest, softmax


@keras.saving.register_keras_serializable("multigate")
class SoftmaxSelector(ScheduledGate):
    """w_e = sum_r softmax(a)_r softmax(psi_r / temperature)_e, with k selectors r.

    Static: psi (k, E) and a (k,) are variables; per example both are linear in x.  A softmax is
    never exactly one-hot, so inference keeps the k largest w_e (`keep_largest`), at the temperature
    that training ended with.  Two selectors may take the same expert.  The paper's
    two variants are settings: "annealing" sets `temperature_end`, "entropy" sets `entropy_weight`;
    both together are allowed.

    Losses in training:
        entropy: lambda(step) * mean over the batch of sum_r H(softmax(psi_r / temperature)), nats.

    Args:
        temperature: of the selectors' softmax.
        temperature_end: if given, the temperature goes to it geometrically over
            `temperature_steps` training steps (the paper ends at 1e-16).
        temperature_steps: see `temperature_end`.
        entropy_weight: lambda.
        entropy_schedule: (training step, factor) pairs; lambda is multiplied by the factor, which
            is linear between the pairs and constant outside.
    """

    reads_products = True
    input_weights = (("selector_kernel", "selector_bias"), ("mix_kernel", "mix_bias"))

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        temperature: float = 1.0,
        temperature_end: float | None = None,
        temperature_steps: int = 10_000,
        entropy_weight: float = 0.0,
        entropy_schedule: Points | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_annealing("temperature", temperature, temperature_end, temperature_steps)
        self.check_option("entropy_weight", entropy_weight, entropy_weight >= 0, "at least 0")
        self.temperature = temperature
        self.temperature_end = temperature_end
        self.temperature_steps = temperature_steps
        self.entropy_weight = entropy_weight
        self.entropy_schedule = check_points(entropy_schedule, "entropy_schedule")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the biases of psi (k*E,) and a (k,), and per example their kernels.

        psi's bias starts in U(-0.05, 0.05), because equal selectors would stay equal for ever.
        """
        super().build(input_shape)
        k, E = self.num_selected, self.num_experts
        self.selector_bias = self.add_weight(
            shape=(k * E,),
            initializer=keras.initializers.RandomUniform(
                seed=derive_seed(self.seed, "selector_bias")
            ),
            name="selector_bias",
        )
        self.mix_bias = self.add_weight(shape=(k,), initializer="zeros", name="mix_bias")
        if not self.static:
            for name, width in (("selector_kernel", k * E), ("mix_kernel", k)):
                kernel = self.add_weight(
                    shape=(input_shape[-1], width),
                    initializer=keras.initializers.GlorotUniform(seed=derive_seed(self.seed, name)),
                    name=name,
                )
                setattr(self, name, kernel)

    @property
    def properties(self) -> Properties:
        """Dense in training, k-sparse at inference."""
        return Properties(self.static, sparse_in_training=False, sparse_at_inference=True)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E), or (E,)."""
        ops = keras.ops
        k, E = self.num_selected, self.num_experts
        step = self.read_step(training)
        psi = ops.convert_to_tensor(self.selector_bias)[None]
        mix = ops.convert_to_tensor(self.mix_bias)[None]
        if not self.static:
            psi = product(x, self.selector_kernel) + psi
            mix = product(x, self.mix_kernel) + mix
        psi = ops.reshape(self.check_logits(psi), (-1, k, E))  # (B, k, E); B = 1 where static
        alpha = softmax(self.check_logits(mix))  # (B, k)
        temperature = geometric(
            self.temperature, self.temperature_end, self.temperature_steps, step
        )
        selectors = softmax(psi / temperature)  # (B, k, E)
        weights = ops.sum(alpha[..., None] * selectors, axis=1)  # (B, E)
        losses = {}
        if training and self.entropy_weight:
            strength = self.entropy_weight * piecewise_linear(self.entropy_schedule, step)
            losses["entropy"] = strength * batch_mean(ops.sum(entropy(selectors), axis=-1))
        if not training:
            weights = keep_largest(weights, k)
        return Routing(weights[0] if self.static else weights, losses, {})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "temperature": self.temperature,
            "temperature_end": self.temperature_end,
            "temperature_steps": self.temperature_steps,
            "entropy_weight": self.entropy_weight,
            "entropy_schedule": self.entropy_schedule,
        }
