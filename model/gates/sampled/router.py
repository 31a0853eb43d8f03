"""A router trained by sampling one expert per example, with or without an expert capacity."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Properties, Routing, Tensor
from multigate.model.gates.parts.linear import LinearGate, noise_generator
from multigate.model.gates.parts.selection import batch_mean, softmax, switch_balance_loss
from multigate.model.gates.sampled.assignment import STRATEGIES, assign

ESTIMATORS = ("reinforce", "gating")


@keras.saving.register_keras_serializable("multigate")
class Sampled(LinearGate):
    """One expert z ~ q per example in training, argmax p at inference; p = softmax(xA + b).

    Kool, Maddison and Mnih, "Unbiased gradient estimation with balanced assignments".  The
    objective is E_{z ~ p}[loss(x, z)]; from `Routing` and each row's loss,
    `estimators.sampled_loss` estimates its gradient.  An example that found no room at its expert
    (`kept` = 0) has zero weights only.

    Estimators:
        reinforce: weight 1 on the drawn expert; the router learns from log_prob.
        gating: weight p(z|x) on the drawn expert, also at inference; the router learns through it,
            and log_prob is None.  It needs a balance loss of about 0.01 (section 3.1).

    Losses in training:
        balance: the Switch Transformer's balance loss on p times its strength.
    Diagnostics in training: kept, the share of the examples that found room.

    Args:
        estimator: one of `ESTIMATORS`.
        strategy: how experts are drawn under capacity c = ceil(B / E), see `assignment.assign`.
        temperature: tau of the proposal.
        sinkhorn_proposal: balance the proposal in expectation before drawing.
        balance_weight: strength of the balance loss.
    """

    has_static = False

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        estimator: str = "reinforce",
        strategy: str = "skip_iw",
        temperature: float = 1.0,
        sinkhorn_proposal: bool = False,
        balance_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        matching = strategy.startswith("gumbel_matching")
        self.check_option("num_selected", num_selected, num_selected == 1, "1")
        self.check_option(
            "estimator", estimator, estimator in ESTIMATORS, f"one of {', '.join(ESTIMATORS)}"
        )
        self.check_option(
            "strategy", strategy, strategy in STRATEGIES, f"one of {', '.join(STRATEGIES)}"
        )
        self.check_option("temperature", temperature, temperature > 0, "more than 0")
        self.check_option(
            "sinkhorn_proposal",
            sinkhorn_proposal,
            not (sinkhorn_proposal and matching),
            "False with Gumbel-Matching, where it does not change the assignment "
            "('gumbel_matching_sinkhorn' uses the balanced marginals as weights)",
        )
        self.check_option("balance_weight", balance_weight, balance_weight >= 0, "at least 0")
        self.estimator = estimator
        self.strategy = strategy
        self.temperature = temperature
        self.sinkhorn_proposal = sinkhorn_proposal
        self.balance_weight = balance_weight
        self.noise = noise_generator(self.seed)
        if matching:
            self.supports_jit = False  # XLA on TensorFlow has no callbacks to the host

    @property
    def properties(self) -> Properties:
        """One expert per example; with a capacity, the batch decides which rows find room."""
        skips = self.strategy in ("skip", "skip_iw")
        return Properties(
            static=False,
            sparse_in_training=True,
            sparse_at_inference=True,
            batch_dependent=self.strategy != "none" or self.sinkhorn_proposal,
            normalised=self.estimator == "reinforce" and not skips,
        )

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); in training also log_prob, importance and kept, each (B,)."""
        ops = keras.ops
        E = self.num_experts
        logits = self.logits(x)  # (B, E)
        gating = self.estimator == "gating"
        p = softmax(logits)
        if not training:
            weights = ops.one_hot(ops.argmax(logits, axis=-1), E, dtype=p.dtype)
            return Routing(weights * p if gating else weights, {}, {})
        draw = assign(logits, self.temperature, self.strategy, self.sinkhorn_proposal, self.noise)
        weights = ops.one_hot(draw.expert, E, dtype=p.dtype) * draw.kept[:, None]
        losses = {}
        if self.balance_weight:
            losses["balance"] = self.balance_weight * switch_balance_loss(p)
        return Routing(
            weights * p if gating else weights,
            losses,
            {"kept": batch_mean(draw.kept)},
            log_prob=None if gating else draw.log_prob,
            importance=draw.importance,
            kept=draw.kept,
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "estimator": self.estimator,
            "strategy": self.strategy,
            "temperature": self.temperature,
            "sinkhorn_proposal": self.sinkhorn_proposal,
            "balance_weight": self.balance_weight,
        }
