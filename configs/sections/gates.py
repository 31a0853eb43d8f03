"""Typed options of every gate, one class each; `docs/gates.md` has the formulas.

`options()` gives the keyword arguments of `model.gates.make`, except for E and the seed, which the
ranker gives. Symbols in the descriptions are those of the papers.
"""

import math
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction

Points = tuple[tuple[int, float], ...]


def _check_points(points: Points) -> Points:
    steps = [step for step, _ in points]
    rising = all(a < b for a, b in pairwise(steps))
    if not points or not rising or steps[0] < 0 or any(factor < 0 for _, factor in points):
        raise ValueError(
            "expected (step, factor) pairs with increasing steps of at least 0 and factors of at "
            "least 0"
        )
    return points


Strength = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Schedule = Annotated[Points, AfterValidator(_check_points)]


class _Gate(Frozen):
    """Base class of all gates' options."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `model.gates.make`."""
        return self.model_dump()


class _SparseGate(_Gate):
    """A gate that selects k experts."""

    num_selected: int = Field(default=2, ge=1)
    """k, experts selected per example and task."""


class Softmax(_Gate):
    """Every expert has a weight."""

    name: Literal["softmax"] = "softmax"
    """This gate."""
    static: bool = False
    """One weight vector for all examples, softmax(b), instead of softmax(xA + b)."""


class TopK(_SparseGate):
    """Softmax over the k largest logits."""

    name: Literal["topk"] = "topk"
    """This gate."""
    static: bool = False
    """One weight vector for all examples: the logits are b instead of xA + b."""


class NoisyTopK(_SparseGate):
    """Top-k of logits with learnt noise, and two balancing losses."""

    name: Literal["noisy_topk"] = "noisy_topk"
    """This gate."""
    importance_weight: Strength = 0.1
    """lambda_imp, strength of CV(importance)^2."""
    load_weight: Strength = 0.1
    """lambda_load, strength of CV(load)^2."""


class VMoE(_SparseGate):
    """The k largest entries of a softmax with noise N(0, 1/E^2) on its logits."""

    name: Literal["vmoe"] = "vmoe"
    """This gate."""


class Switch(_SparseGate):
    """The k largest entries of a softmax under multiplicative noise."""

    name: Literal["switch"] = "switch"
    """This gate."""
    noise: Literal["inputs", "logits"] = "inputs"
    """What eps multiplies: the router's inputs x, or the logits xA."""
    jitter: float = Field(default=0.02, ge=0, lt=1)
    """Half-width of the noise: eps ~ U(1 - jitter, 1 + jitter)."""
    balance_weight: Strength = 0.01
    """lambda, strength of the balance loss."""


class XMoE(_SparseGate):
    """The k largest entries of a softmax over cosine scores."""

    name: Literal["xmoe"] = "xmoe"
    """This gate."""
    temperature: Positive = 0.3
    """tau before training; it is learnt."""


class ExpertChoice(_SparseGate):
    """Each expert takes its k' = ceil(B k / E) best examples; per-example top k at inference."""

    name: Literal["expert_choice"] = "expert_choice"
    """This gate."""


class Hash(_Gate):
    """A fixed expert for each id, k = 1; a control."""

    name: Literal["hash"] = "hash"
    """This gate."""
    salt: int = Field(default=0, ge=0, lt=2**32)
    """Changes the assignment."""


class DSelectK(_SparseGate):
    """At most k experts, selected by binary codes of smooth-step bits."""

    name: Literal["dselect_k"] = "dselect_k"
    """This gate."""
    static: bool = False
    """One weight vector for all examples: z and alpha are variables instead of linear in x."""
    gamma: Positive = 1.0
    """gamma, width of the smooth-step S."""
    gamma_end: Positive | None = None
    """gamma at the end of its annealing; null keeps it constant."""
    gamma_steps: int = Field(default=10_000, ge=1)
    """Training steps that the annealing of gamma takes."""
    entropy_weight: Strength = 0.0
    """lambda, strength of the entropy regulariser (mean over the batch)."""
    entropy_schedule: Schedule | None = None
    """(training step, factor) pairs by which lambda is multiplied, linear in between."""
    reachability_weight: Strength | None = Field(default=None, examples=[1.0])
    """xi, strength of the penalty on codes that lead to no expert (E not a power of two).

    null: 1, or a tenth of lambda, as scheduled, where that is more.
    """
    reachability_mass: Annotated[float, Field(ge=0.5, le=1)] | None = Field(
        default=None, examples=[1.0]
    )
    """A selector with this mass on codes that lead to an expert pays no such penalty; paper: 1.

    null: the middle of 1/2 and E / 2^m, the mass at the start.
    """


class SoftmaxSelector(_SparseGate):
    """DSelect-k's ablations: k softmax selectors instead of binary codes."""

    name: Literal["softmax_selector"] = "softmax_selector"
    """This gate."""
    static: bool = False
    """One weight vector for all examples: psi and alpha are variables instead of linear in x."""
    temperature: Positive = 1.0
    """Temperature of softmax(psi_r)."""
    temperature_end: Positive | None = None
    """The temperature at the end of its annealing; null keeps it constant."""
    temperature_steps: int = Field(default=10_000, ge=1)
    """Training steps that the annealing takes."""
    entropy_weight: Strength = 0.0
    """lambda, strength of the entropy regulariser (mean over the batch)."""
    entropy_schedule: Schedule | None = None
    """(training step, factor) pairs by which lambda is multiplied, linear in between."""


class GumbelSoftmax(_Gate):
    """Static: softmax(alpha)_e times a relaxed Bernoulli(pi_e)."""

    name: Literal["gumbel_softmax"] = "gumbel_softmax"
    """This gate."""
    temperature: Positive = 1.0
    """Temperature of the binary concrete distribution."""
    sparsity_weight: Strength = 0.0
    """mu, strength of sum_e log pi_e."""
    hard: bool = False
    """Straight-through samples while training, which then evaluates every expert."""
    initial_probability: float = Field(default=0.9, gt=0, lt=1)
    """pi_e before training."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `model.gates.make`; the gate exists in static form only."""
        return super().options() | {"static": True}


class Moesart(_SparseGate):
    """k experts sampled from a softmax, with adjusted weights; the k largest at inference."""

    name: Literal["moesart"] = "moesart"
    """This gate."""
    num_selected: int = Field(default=2, ge=2)
    """k, experts sampled per example and task; with one, the router would get no gradient."""
    static: bool = False
    """o = b / tau instead of (xA + b) / tau; still drawn anew for each example."""
    temperature: Positive = 1.0
    """tau, by which the logits are divided."""
    replacement: bool = False
    """Draw the k experts with replacement."""
    adjustment: Literal["randomised", "none", "counts", "expected_counts"] = "randomised"
    """Weights of the drawn experts: eq. (3), or the study's (i), (ii), (iii)."""
    trimmed_lasso_weight: Strength = 0.0
    """lambda, strength of the Trimmed Lasso: the sum of g beyond its k largest entries."""
    balance_weight: Strength = 0.0
    """Strength of the Switch balance loss on g."""


class Comet(_SparseGate):
    """k soft binary trees whose leaves are the experts."""

    name: Literal["comet"] = "comet"
    """This gate."""
    gamma: Positive = 1.0
    """gamma, width of the splits' smooth-step S."""
    entropy_weight: Strength = 0.0
    """lambda, strength of the entropy regulariser (mean over the batch)."""
    entropy_schedule: Schedule | None = None
    """(training step, factor) pairs by which lambda is multiplied, linear in between."""
    permutation: bool = False
    """Learn which expert sits at which leaf: a doubly stochastic P (E, E)."""
    permutation_temperature: Positive = 0.1
    """Temperature of P; lower is closer to a permutation."""


class Sampled(_Gate):
    """One expert sampled per example, k = 1, trained by an estimator of the expected loss."""

    name: Literal["sampled"] = "sampled"
    """This gate."""
    estimator: Literal["reinforce", "gating"] = "reinforce"
    """How the router learns: from log p(z|x), or through the weight p(z|x) of its expert."""
    strategy: Literal[
        "none",
        "skip",
        "skip_iw",
        "gumbel_matching",
        "gumbel_matching_iw",
        "gumbel_matching_sinkhorn",
    ] = "skip_iw"
    """How z is drawn under the capacity c = ceil(B / E)."""
    temperature: Positive = 1.0
    """tau, temperature of the proposal q."""
    sinkhorn_proposal: bool = False
    """Balance q over the experts by Sinkhorn's iteration before drawing."""
    balance_weight: Strength = 0.0
    """Strength of the Switch balance loss on p; about 0.01 for gating."""

    @model_validator(mode="after")
    def _check(self) -> "Sampled":
        if self.sinkhorn_proposal and self.strategy.startswith("gumbel_matching"):
            raise contradiction(
                f"sinkhorn_proposal: expected false with strategy {self.strategy}, whose "
                "assignment it does not change; gumbel_matching_sinkhorn weighs by balanced "
                "probabilities"
            )
        return self


class Hierarchical(_Gate):
    """A gate over groups of experts and one within each; the weight is the product."""

    name: Literal["hierarchical"] = "hierarchical"
    """This gate. Its k is the product of its levels' k; it is static if both levels are."""
    primary: "Level"
    """The gate over the G groups."""
    secondary: "Level"
    """The gates over the M = E / G experts of a group; one for each group."""
    num_groups: int = Field(ge=1)
    """G, a divisor of E."""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `model.gates.make`."""
        levels = [self.primary.options(), self.secondary.options()]
        return {
            "name": self.name,
            "num_selected": math.prod(level.get("num_selected", 1) for level in levels),
            "static": all(level.get("static", False) for level in levels),
            "primary": {"static": False} | levels[0],
            "secondary": {"static": False} | levels[1],
            "num_groups": self.num_groups,
        }


_Differentiable = (
    Softmax
    | TopK
    | NoisyTopK
    | VMoE
    | Switch
    | XMoE
    | ExpertChoice
    | Hash
    | DSelectK
    | SoftmaxSelector
    | GumbelSoftmax
    | Moesart
    | Comet
    | Hierarchical
)

Level = Annotated[_Differentiable, Field(discriminator="name")]
"""A gate that can be a level of a hierarchy: any whose training goes through its weights."""

GateConfig = Annotated[_Differentiable | Sampled, Field(discriminator="name")]
"""Options of any gate, told apart by `name`."""

Hierarchical.model_rebuild()
