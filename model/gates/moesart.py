"""MOESART: k sampled experts while training, the k likeliest at inference (MOESART, section 3)."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate, noise_generator
from multigate.model.gates.parts.noise import gumbel
from multigate.model.gates.parts.selection import (
    batch_mean,
    masked_softmax,
    softmax,
    switch_balance_loss,
    top_k_mask,
)

ADJUSTMENTS = ("randomised", "none", "counts", "expected_counts")


@keras.saving.register_keras_serializable("multigate")
class Moesart(LinearGate):
    """Softmax router g = softmax(o), o = (xA + b) / tau, approximated by k sampled experts.

    Training: draw k experts from g; r_e is how often expert e was drawn, s the set with r_e > 0.
    `adjusted_weights` turns the draw into weights on s.  The draw passes no gradient; the weights
    do, through g.  A static gate has o = b / tau.  In training it still draws for every row, so its
    weights are (B, E) there, and (E,) at inference.

    Inference: the k largest g with equal weights 1/k (section 3.1.1).

    Losses in training:
        trimmed_lasso: lambda * mean over the batch of the sum of g beyond its k largest entries
            (section 3.2).
        balance: the Switch Transformer's balance loss on g times its strength.

    Args:
        temperature: tau.
        replacement: draw with replacement, which is worse according to the paper.
        adjustment: one of `ADJUSTMENTS`, see `adjusted_weights`.
        trimmed_lasso_weight: lambda.
        balance_weight: strength of the balance loss.
    """

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 2,
        static: bool = False,
        seed: int | None = None,
        *,
        temperature: float = 1.0,
        replacement: bool = False,
        adjustment: str = "randomised",
        trimmed_lasso_weight: float = 0.0,
        balance_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option(
            "num_selected",
            num_selected,
            num_selected >= 2,
            "at least 2 (a single sampled expert has weight 1 for any logit, so the router would "
            "get no gradient)",
        )
        self.check_option("temperature", temperature, temperature > 0, "more than 0")
        self.check_option(
            "adjustment", adjustment, adjustment in ADJUSTMENTS, f"one of {', '.join(ADJUSTMENTS)}"
        )
        self.check_option(
            "trimmed_lasso_weight", trimmed_lasso_weight, trimmed_lasso_weight >= 0, "at least 0"
        )
        self.check_option("balance_weight", balance_weight, balance_weight >= 0, "at least 0")
        self.temperature = temperature
        self.replacement = replacement
        self.adjustment = adjustment
        self.trimmed_lasso_weight = trimmed_lasso_weight
        self.balance_weight = balance_weight
        self.noise = noise_generator(self.seed)

    @property
    def properties(self) -> Properties:
        """At most k experts in training, exactly k at inference."""
        return Properties(self.static, sparse_in_training=True, sparse_at_inference=True)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); (E,) from a static gate at inference."""
        ops = keras.ops
        k, E = self.num_selected, self.num_experts
        logits = self.logits(x) / self.temperature
        if not training:
            return Routing(ops.cast(top_k_mask(logits, k), logits.dtype) / k, {}, {})
        g = softmax(logits)
        losses = {}
        if self.trimmed_lasso_weight:
            beyond = ops.where(top_k_mask(logits, k), ops.zeros_like(g), g)
            tail = ops.reshape(ops.sum(beyond, axis=-1), (-1,))  # (B,); B = 1 where static
            losses["trimmed_lasso"] = self.trimmed_lasso_weight * batch_mean(tail)
        if self.balance_weight:
            losses["balance"] = self.balance_weight * switch_balance_loss(g)
        rows = ops.broadcast_to(logits, (ops.shape(x)[0], E))  # (B, E)
        counts = draw_counts(rows, k, self.replacement, self.noise)
        chosen = draw_uniform(counts, self.noise)
        return Routing(adjusted_weights(rows, counts, chosen, self.adjustment, k), losses, {})

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "temperature": self.temperature,
            "replacement": self.replacement,
            "adjustment": self.adjustment,
            "trimmed_lasso_weight": self.trimmed_lasso_weight,
            "balance_weight": self.balance_weight,
        }


def draw_counts(logits: Tensor, k: int, replacement: bool, seed: Any) -> Tensor:
    """Draw k experts per row from softmax(logits); r (B, E) float counts, without gradient.

    Without replacement these are the k largest logits with Gumbel noise; with replacement, k
    independent draws.
    """
    ops = keras.ops
    logits = ops.stop_gradient(logits)
    if not replacement:
        noisy = logits + gumbel(ops.shape(logits), seed, logits.dtype)
        return ops.cast(top_k_mask(noisy, k), logits.dtype)
    B, E = ops.shape(logits)[0], logits.shape[-1]
    noisy = logits[:, None] + gumbel((B, k, E), seed, logits.dtype)  # (B, k, E)
    return ops.sum(ops.one_hot(ops.argmax(noisy, axis=-1), E, dtype=logits.dtype), axis=1)


def draw_uniform(counts: Tensor, seed: Any) -> Tensor:
    """Draw z uniformly from the experts with a positive count; (B, E) bool, one True per row."""
    ops = keras.ops
    u = keras.random.uniform(ops.shape(counts), seed=seed, dtype=counts.dtype)
    z = ops.argmax(ops.where(counts > 0, u, ops.full_like(u, -1.0)), axis=-1)
    return ops.one_hot(z, counts.shape[-1], dtype="bool")


def adjusted_weights(
    logits: Tensor, counts: Tensor, chosen: Tensor, adjustment: str, k: int
) -> Tensor:
    """Weights of the drawn experts s (MOESART, section 3.1.1).

    With g = softmax(logits), r the counts and z the chosen expert in s:

        randomised (eq. 3)     w_z = g_z r_z / Q, w_e = r_e / ((k-1) Q) for the others of s,
                               Q = g_z r_z + sum over s without z of r_e / (k-1)
        none (i)               w_e = g_e / sum over s of g
        counts (ii)            w_e = g_e r_e / sum over s of g r
        expected_counts (iii)  w_e = r_e / k: unbiased with replacement, but without gradient

    Eq. 3 adds log r_e - log((k-1) g_e) to o_e.  Within a row o - log g is the same for all experts,
    so all logits here leave it out, and no logarithm of an underflowed g occurs.

    Args:
        logits: (B, E).
        counts: (B, E) float.
        chosen: (B, E) bool, one True per row, within s.
        adjustment: one of `ADJUSTMENTS`.
        k: experts drawn.

    Returns:
        (B, E), rows sum to one.
    """
    ops = keras.ops
    if adjustment == "expected_counts":
        return counts / k
    drawn = counts > 0
    log_r = ops.log(ops.where(drawn, counts, ops.ones_like(counts)))
    log_g = ops.log_softmax(logits)
    if adjustment == "none":
        return masked_softmax(log_g, drawn)
    if adjustment == "counts":
        return masked_softmax(log_g + log_r, drawn)
    others = log_r - ops.log(ops.cast(k - 1, log_r.dtype))
    return masked_softmax(ops.where(chosen, log_g + log_r, others), drawn)
