"""DSelect-k: differentiable selection of at most k experts by binary codes (section 3)."""

import math
from typing import Any

import keras

from multigate.model import backend
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
from multigate.model.gates.parts.smooth_step import (
    code_probabilities,
    rounded_codes,
    saturated,
    smooth_step,
)

_SMALLEST_MASS = 1e-6  # clamp of the reachable mass, which is 0 if all is on unreachable codes


@keras.saving.register_keras_serializable("multigate")
class DSelectK(ScheduledGate):
    """w_e = sum_r softmax(a)_r p[r, e], with p[r, e] the product of selector r's bits on code e.

    Each of the k selectors r has m = ceil(log2 E) bits z_r and a weight logit a_r.  Bit j has the
    value S(z_rj), with S the smooth-step of width gamma.  Static: z and a are variables.  Per
    example: z = x W_z + c_z, a = x W_a + c_a (section 3.2 of the paper has no biases; they cost
    nothing and make the static gate a special case).  Once every bit is 0 or 1, each selector
    picks one expert, so at most k weights are non-zero; two selectors may pick the same expert.

    If E is not a power of two, codes E to 2^m - 1 have no expert: w is divided by its sum over the
    reachable experts (clamped at 1e-6), and a selector pays a penalty while too little of its mass
    is on reachable codes.  Ours is the paper's (B.2) with M and xi as below:

    - M = 1 in the paper, whose penalty pulls all selectors to the codes whose top bit is 0 from the
      first step on, before the experts differ.  With M at or below the mass at the start, E / 2^m
      with all bits at 1/2, the loss alone chooses.
    - A selector whose mass m is the only thing left to settle is pushed away from m = 1/2 by the
      entropy.  With M < 1/2 it would stay at M, where entropy and penalty are in balance, and with
      M = 1/2 for thousands of steps.
    - The penalty is the stronger one at every m < 1/2 if xi / m^2 > lambda log((1 - m) / m), that
      is, if xi > 0.077 lambda.  Else the entropy settles selectors on codes without an expert.

    Losses in training:
        entropy: lambda(step) * mean over the batch of sum_r H(p[r, :]), nats, over all 2^m codes.
            (The paper sums over the batch, so its lambda is ours divided by B.)
        reachability: xi * mean over the batch of sum_r max(0, 1 / sum_{e < E} p[r, e] - 1 / M),
            with M the mass that is enough.
    Diagnostics: convergence, the share of bits that are exactly 0 or 1.

    After `harden()`, inference of a static gate keeps the k largest w_e (`keep_largest`), so that
    nothing changes where at most k experts have weight.  Per example, each selector takes its
    reachable expert with the largest p[r, e]: nearly all rows have settled there, and a served row
    does without p.

    Args:
        gamma: width of the smooth-step.
        gamma_end: if given, gamma goes to it geometrically over `gamma_steps` training steps; near
            zero, every bit saturates for every example.
        gamma_steps: see `gamma_end`.
        entropy_weight: lambda.
        entropy_schedule: (training step, factor) pairs; lambda is multiplied by the factor, which
            is linear between the pairs and constant outside.
        reachability_weight: xi; None for 1, or a tenth of the step's lambda where that is more.
        reachability_mass: M; None for the middle of 1/2 and E / 2^m.
    """

    reads_products = True
    input_weights = (("bit_kernel", "bit_bias"), ("mix_kernel", "mix_bias"))

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        gamma: float = 1.0,
        gamma_end: float | None = None,
        gamma_steps: int = 10_000,
        entropy_weight: float = 0.0,
        entropy_schedule: Points | None = None,
        reachability_weight: float | None = None,
        reachability_mass: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_annealing("gamma", gamma, gamma_end, gamma_steps)
        self.check_option("entropy_weight", entropy_weight, entropy_weight >= 0, "at least 0")
        self.check_option(
            "reachability_weight",
            reachability_weight,
            reachability_weight is None or 0 <= reachability_weight < math.inf,
            "a finite number, at least 0, or None",
        )
        self.check_option(
            "reachability_mass",
            reachability_mass,
            reachability_mass is None or 0.5 <= reachability_mass <= 1,
            "at least 0.5, at most 1, or None",
        )
        self.gamma = gamma
        self.gamma_end = gamma_end
        self.gamma_steps = gamma_steps
        self.entropy_weight = entropy_weight
        self.entropy_schedule = check_points(entropy_schedule, "entropy_schedule")
        self.reachability_weight = reachability_weight
        self.reachability_mass = reachability_mass
        self.num_bits = (num_experts - 1).bit_length()  # m = ceil(log2 E); 0 where E = 1

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create c_z (k, m), c_a (k,) and, per example, W_z (D, k*m) and W_a (D, k).

        z starts within gamma/100 of 0, so the bits start near 1/2, where gradients are largest.
        """
        super().build(input_shape)
        k, bits = self.num_selected, self.num_selected * self.num_bits

        def near_half(label: str) -> Any:
            return keras.initializers.RandomUniform(
                -self.gamma / 100, self.gamma / 100, seed=derive_seed(self.seed, label)
            )

        if bits:
            self.bit_bias = self.add_weight(
                shape=(bits,), initializer=near_half("bit_bias"), name="bit_bias"
            )
        self.mix_bias = self.add_weight(shape=(k,), initializer="zeros", name="mix_bias")
        if not self.static:
            D = input_shape[-1]
            if bits:
                self.bit_kernel = self.add_weight(
                    shape=(D, bits), initializer=near_half("bit_kernel"), name="bit_kernel"
                )
            self.mix_kernel = self.add_weight(
                shape=(D, k),
                initializer=keras.initializers.GlorotUniform(
                    seed=derive_seed(self.seed, "mix_kernel")
                ),
                name="mix_kernel",
            )

    @property
    def properties(self) -> Properties:
        """Dense at first; k-sparse at inference once it is hardened, or where it has converged.

        Weights sum to one unless every selector is on an unreachable code.
        """
        return Properties(self.static, sparse_in_training=False, sparse_at_inference=self.hardened)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E), or (E,)."""
        ops = keras.ops
        k, E = self.num_selected, self.num_experts
        step = self.read_step(training)
        gamma = geometric(self.gamma, self.gamma_end, self.gamma_steps, step)
        bits, mix = self._logits(x)  # (B, k, m), (B, k); B = 1 where static
        alpha = softmax(mix)  # (B, k)
        diagnostics = {"convergence": _share(saturated(ops.stop_gradient(bits), gamma))}
        hard = self.hardened and not training
        if hard and not self.static:
            chosen = ops.one_hot(self._chosen(bits, gamma), E, dtype=alpha.dtype)  # (B, k, E)
            weights = ops.sum(alpha[..., None] * chosen, axis=1)  # (B, E)
            return Routing(weights, {}, diagnostics)
        on, off = smooth_step(bits, gamma)
        p = code_probabilities(on, off)  # (B, k, 2^m)
        reachable = p[..., :E]
        mass = ops.sum(reachable, axis=-1)  # (B, k)
        weights = ops.sum(alpha[..., None] * reachable, axis=1)  # (B, E)
        total = ops.sum(weights, axis=-1, keepdims=True)
        weights = weights / ops.maximum(total, _SMALLEST_MASS)
        if hard:
            weights = keep_largest(weights, k)
        losses = {}
        strength: float | Tensor = 0.0
        if training and self.entropy_weight:
            strength = self.entropy_weight * piecewise_linear(self.entropy_schedule, step)
            losses["entropy"] = strength * batch_mean(ops.sum(entropy(p), axis=-1))
        if training and self.reachability_weight != 0 and 2**self.num_bits > E:
            excess = 1.0 / ops.maximum(mass, _SMALLEST_MASS) - 1.0 / self._mass_enough()
            paid = ops.sum(ops.maximum(excess, 0.0), axis=-1)  # (B,)
            xi = self.reachability_weight
            xi = ops.maximum(1.0, 0.1 * strength) if xi is None else xi
            losses["reachability"] = xi * batch_mean(paid)
        return Routing(weights[0] if self.static else weights, losses, diagnostics)

    def _mass_enough(self) -> float:
        """M, the reachable mass with which a selector pays nothing."""
        if self.reachability_mass is not None:
            return self.reachability_mass
        return (0.5 + self.num_experts / 2**self.num_bits) / 2

    def _chosen(self, bits: Tensor, gamma: float | Tensor) -> Tensor:
        """Each selector's reachable expert with the largest p, (B, k), int32; per example."""
        if 2**self.num_bits == self.num_experts:  # then it is that of the rounded bits
            return rounded_codes(bits)
        # Rounding bit by bit could land on an unreachable code; the largest p cannot.
        p = code_probabilities(*smooth_step(bits, gamma))
        return backend.argmax(p[..., : self.num_experts])

    def _logits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bits (B, k, m) before the smooth-step, and weight logits (B, k); B = 1 where static."""
        ops = keras.ops
        k, m = self.num_selected, self.num_bits
        mix = ops.convert_to_tensor(self.mix_bias)[None]
        if not self.static:
            mix = product(x, self.mix_kernel) + mix
        self.check_logits(mix)
        if not m:
            return ops.zeros_like(mix)[..., None][..., :0], mix
        bits = ops.convert_to_tensor(self.bit_bias)[None]
        if not self.static:
            bits = product(x, self.bit_kernel) + bits
        return ops.reshape(self.check_logits(bits), (-1, k, m)), mix  # (B, k, m)

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "gamma": self.gamma,
            "gamma_end": self.gamma_end,
            "gamma_steps": self.gamma_steps,
            "entropy_weight": self.entropy_weight,
            "entropy_schedule": self.entropy_schedule,
            "reachability_weight": self.reachability_weight,
            "reachability_mass": self.reachability_mass,
        }


def _share(marks: Tensor) -> Tensor:
    """Share of True in `marks`; 1.0 if it is empty (E = 1 has no bits, B = 0 no rows)."""
    ops = keras.ops
    missing = 1.0 - ops.cast(marks, "float32")
    count = ops.cast(ops.size(marks), "float32")
    return 1.0 - ops.sum(missing) / ops.maximum(count, 1.0)
