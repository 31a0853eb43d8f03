"""Noisy Top-k gate with its two balancing losses (sparsely-gated MoE, section 2.1)."""

import math
from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Properties, Routing, Tensor
from multigate.model.gates.parts.linear import noise_generator, product
from multigate.model.gates.parts.selection import cv_squared, softmax_of_some, top_k_mask

# In float32 softplus is 0 below about -104, and the load loss divides by it.
_SMALLEST_SCALE = 1e-6


@keras.saving.register_keras_serializable("multigate")
class NoisyTopK(Gate):
    """w = softmax(KeepTopK(h, k)), h = xW_g + N(0, 1) * softplus(xW_noise) in training.

    At inference h = xW_g.  Both matrices start with zeros, so at first only noise decides and the
    load is balanced.  Losses, with CV = std / mean over the experts:

        importance: lambda_imp * CV(sum_b w[b, e])^2
        load: lambda_load * CV(sum_b P[b, e])^2, with P[b, e] the probability that e is among the k
            largest if only its own noise is drawn again
            = Phi(((xW_g)_e - kth_excluding_e(h)) / softplus((xW_noise)_e)); k = E: P = 1

    Args:
        importance_weight: lambda_imp.
        load_weight: lambda_load.
    """

    has_static = False
    reads_products = True
    input_weights = (("kernel", None), ("noise_kernel", None))

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        importance_weight: float = 0.1,
        load_weight: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        for name, value in (
            ("importance_weight", importance_weight),
            ("load_weight", load_weight),
        ):
            self.check_option(name, value, value >= 0, "at least 0")
        self.importance_weight = importance_weight
        self.load_weight = load_weight
        self.noise = noise_generator(seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create W_g and W_noise, each (D, E)."""
        shape = (input_shape[-1], self.num_experts)
        self.kernel = self.add_weight(shape=shape, initializer="zeros", name="kernel")
        self.noise_kernel = self.add_weight(shape=shape, initializer="zeros", name="noise_kernel")

    @property
    def properties(self) -> Properties:
        """k-sparse from the first step."""
        return Properties(False, sparse_in_training=True, sparse_at_inference=True)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); losses `importance` and `load` in training."""
        ops = keras.ops
        clean = self.check_logits(product(x, self.kernel))  # (B, E)
        if not training:
            return Routing(softmax_of_some(clean, top_k_mask(clean, self.num_selected)), {}, {})
        scale = ops.softplus(self.check_logits(ops.matmul(x, self.noise_kernel)))  # (B, E)
        scale = ops.maximum(scale, _SMALLEST_SCALE)
        draw = keras.random.normal(ops.shape(clean), dtype=clean.dtype, seed=self.noise)
        noisy = clean + draw * scale
        weights = softmax_of_some(noisy, top_k_mask(noisy, self.num_selected))
        stays = stay_probability(clean, noisy, scale, self.num_selected)
        losses = {
            "importance": self.importance_weight * cv_squared(ops.sum(weights, axis=0)),
            "load": self.load_weight * cv_squared(ops.sum(stays, axis=0)),
        }
        return Routing(weights, losses, {"expected_load": ops.stop_gradient(ops.sum(stays, 0))})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "importance_weight": self.importance_weight,
            "load_weight": self.load_weight,
        }


def stay_probability(clean: Tensor, noisy: Tensor, scale: Tensor, k: int) -> Tensor:
    """P(e is in the top k if only its own noise is drawn again), (B, E) (appendix A).

    Args:
        clean: (B, E) logits without noise.
        noisy: (B, E) logits with the noise of this step.
        scale: (B, E) > 0 standard deviation of that noise.
        k: experts kept.
    """
    ops = keras.ops
    if k == clean.shape[-1]:
        return ops.ones_like(clean)
    largest, _ = ops.top_k(noisy, k + 1)  # (B, k + 1), descending
    # The k-th largest of the others: for an entry in the top k that is the (k+1)-th of all.
    inside = top_k_mask(noisy, k)
    threshold = ops.where(inside, largest[:, k:], largest[:, k - 1 : k])  # (B, E)
    return 0.5 * (1.0 + ops.erf((clean - threshold) / (scale * math.sqrt(2.0))))
