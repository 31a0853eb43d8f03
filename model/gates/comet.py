"""COMET gate: k soft trees with the experts as leaves (MOESART, appendix S4; Ibrahim et al.)."""

from typing import Any

import keras
import numpy as np

from multigate.model.gates.parts.base import Properties, Routing, Tensor, derive_seed, entropy
from multigate.model.gates.parts.linear import product
from multigate.model.gates.parts.permutation import permutation_matrix, round_permutation
from multigate.model.gates.parts.schedule import (
    Points,
    ScheduledGate,
    check_points,
    piecewise_linear,
)
from multigate.model.gates.parts.selection import batch_mean, softmax_of_some
from multigate.model.gates.parts.smooth_step import saturated, smooth_step

DEAD = -1e30
"""Stands for the logarithm of zero: finite, and below any sum of a tree's logarithms."""


@keras.saving.register_keras_serializable("multigate")
class Comet(ScheduledGate):
    """k binary trees with E leaves each; one softmax over the scores of all their leaves.

    Split i of tree r decides by t = (xV + c)_{r,i}: the share S(t) goes left and 1 - S(t) right,
    with S the smooth-step of width gamma.  Leaf e of tree r has path probability p[r, e], the
    product along its path, and score xA[r, e] + b[r, e] + log p[r, e].  A leaf with p = 0 is dead
    (score -inf).

        w_e = sum_r softmax(all k * E scores)[r, e]

    When every decision is 0 or 1, each tree has one live leaf, so at most k experts have weight.
    The trees are heaps: split i has children 2i + 1 and 2i + 2, and node E - 1 + e is leaf e.  So
    every E works without unreachable leaves; if E is not a power of two, depths differ by one.

    Loss in training:
        entropy: lambda(step) * mean over the batch of sum_r H(p[r, :]), in nats.

    With `permutation`, a learnt doubly stochastic matrix P (E, E), shared by the trees, maps leaf
    weights to expert weights: w' = w P (`permutation_matrix`).  P is dense until it converges, so
    with it only `harden` makes the gate sparse.

    Args:
        gamma: width of the smooth-step, > 0.
        entropy_weight: lambda.
        entropy_schedule: (training step, factor) pairs; lambda is multiplied by the factor, which
            is linear between the pairs and constant outside.
        permutation: learn which expert sits at which leaf.
        permutation_temperature: temperature of P, > 0; lower is closer to a permutation.
    """

    has_static = False
    reads_products = True
    input_weights = (("kernel", "bias"), ("split_kernel", "split_bias"))

    def __init__(
        self,
        num_experts: int,
        num_selected: int = 1,
        static: bool = False,
        seed: int | None = None,
        *,
        gamma: float = 1.0,
        entropy_weight: float = 0.0,
        entropy_schedule: Points | None = None,
        permutation: bool = False,
        permutation_temperature: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_experts, num_selected, static, seed, **kwargs)
        self.check_option("gamma", gamma, gamma > 0, "more than 0")
        self.check_option("entropy_weight", entropy_weight, entropy_weight >= 0, "at least 0")
        self.check_option(
            "permutation_temperature",
            permutation_temperature,
            permutation_temperature > 0,
            "more than 0",
        )
        self.gamma = gamma
        self.entropy_weight = entropy_weight
        self.entropy_schedule = check_points(entropy_schedule, "entropy_schedule")
        self.permutation = permutation
        self.permutation_temperature = permutation_temperature
        self.paths = heap_paths(num_experts)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create V (D, k(E-1)), c (k(E-1),), A (D, kE), b (kE,) and the permutation's logits."""
        super().build(input_shape)
        D, k, E = input_shape[-1], self.num_selected, self.num_experts
        near_half = self.gamma / 100  # decisions start near 1/2, where they have gradients

        def uniform(label: str) -> Any:
            return keras.initializers.RandomUniform(
                -near_half, near_half, seed=derive_seed(self.seed, label)
            )

        if E > 1:
            self.split_kernel = self.add_weight(
                shape=(D, k * (E - 1)), initializer=uniform("split_kernel"), name="split_kernel"
            )
            self.split_bias = self.add_weight(
                shape=(k * (E - 1),), initializer=uniform("split_bias"), name="split_bias"
            )
        self.kernel = self.add_weight(
            shape=(D, k * E),
            initializer=keras.initializers.GlorotUniform(seed=self.seed),
            name="kernel",
        )
        self.bias = self.add_weight(shape=(k * E,), initializer="zeros", name="bias")
        if self.permutation:
            self.permutation_logits = self.add_weight(
                shape=(E, E),
                initializer=keras.initializers.RandomUniform(
                    -0.01, 0.01, seed=derive_seed(self.seed, "permutation")
                ),
                name="permutation_logits",
            )

    @property
    def properties(self) -> Properties:
        """Dense at first, sparse as decisions saturate; k-sparse at inference once hardened."""
        return Properties(False, sparse_in_training=False, sparse_at_inference=self.hardened)

    def route(self, x: Tensor, training: bool, ids: Any) -> Routing:
        """Weights (B, E); loss `entropy` in training; diagnostics `convergence`, `path_entropy`.

        `convergence` is the share of decisions with |t| >= gamma / 2.
        """
        ops = keras.ops
        k, E = self.num_selected, self.num_experts
        step = self.read_step(training)
        scores = self.check_logits(product(x, self.kernel) + self.bias)  # (B, kE)
        scores = ops.reshape(scores, (-1, k, E))  # (B, k, E)
        alive, log_p, convergence = self._paths(x) if E > 1 else _one_leaf(scores)
        hard = self.hardened and not training
        if hard:
            # The likeliest leaf of each tree gets the whole probability of the tree: log p = 0.
            live = ops.one_hot(ops.argmax(log_p, axis=-1), E, dtype="bool")
        else:
            live, scores = alive, scores + log_p
        flat = (-1, k * E)
        weights = softmax_of_some(ops.reshape(scores, flat), ops.reshape(live, flat))  # (B, kE)
        weights = ops.sum(ops.reshape(weights, (-1, k, E)), axis=1)  # (B, E)
        if self.permutation:
            permutation = self.check_logits(ops.convert_to_tensor(self.permutation_logits))
            matrix = permutation_matrix(permutation, self.permutation_temperature)
            weights = ops.matmul(weights, round_permutation(matrix) if hard else matrix)
        path = ops.where(alive, ops.exp(log_p), ops.zeros_like(log_p))  # (B, k, E)
        path_entropy = batch_mean(ops.sum(entropy(path), axis=-1))
        diagnostics = {
            "convergence": ops.stop_gradient(convergence),
            "path_entropy": ops.stop_gradient(path_entropy),
        }
        losses = {}
        if training and self.entropy_weight:
            strength = self.entropy_weight * piecewise_linear(self.entropy_schedule, step)
            losses["entropy"] = strength * path_entropy
        return Routing(weights, losses, diagnostics)

    def _paths(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Follow the decisions of x (B, D) to the leaves.

        It adds logarithms instead of multiplying factors: near 0 a factor moves in steps of about
        1e-15, so no single factor underflows, but a product of several would.

        Returns:
            Which leaves are alive, (B, k, E) bool; their log path probabilities, (B, k, E), finite,
            and at most `DEAD` for dead ones; and the share of saturated decisions, a scalar.
        """
        ops = keras.ops
        k, E = self.num_selected, self.num_experts
        t = self.check_logits(product(x, self.split_kernel) + self.split_bias)
        t = ops.reshape(t, (-1, E - 1))  # (Bk, E-1)
        shares = ops.concatenate(smooth_step(t, self.gamma), axis=-1)  # (Bk, 2(E-1))
        positive = shares > 0
        # A share of zero counts as a logarithm so low that no path recovers from it: one product
        # with the paths says both how likely a leaf is and whether it is alive.
        lowest = ops.full_like(shares, DEAD)
        logs = ops.where(
            positive, ops.log(ops.where(positive, shares, ops.ones_like(shares))), lowest
        )
        log_p = ops.reshape(ops.matmul(logs, ops.cast(self.paths, t.dtype)), (-1, k, E))
        alive = log_p > DEAD / 2
        convergence = batch_mean(ops.mean(ops.cast(saturated(t, self.gamma), t.dtype), axis=-1))
        return alive, log_p, convergence

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same gate."""
        return super().get_config() | {
            "gamma": self.gamma,
            "entropy_weight": self.entropy_weight,
            "entropy_schedule": self.entropy_schedule,
            "permutation": self.permutation,
            "permutation_temperature": self.permutation_temperature,
        }


def _one_leaf(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `_paths` returns for trees that have no split, of their scores (B, k, 1)."""
    ops = keras.ops
    return (
        ops.ones_like(scores, dtype="bool"),
        ops.zeros_like(scores),
        ops.ones((), dtype=scores.dtype),
    )


def heap_paths(num_leaves: int) -> np.ndarray:
    """Paths from the root of a heap-shaped tree to its leaves.

    Returns:
        (2(E-1), E) float32: 1 where a decision's share, of those that go left (E-1) and then those
        that go right (E-1), is on the path to leaf e; the product of these shares is its path
        probability.
    """
    E = num_leaves
    paths = np.zeros((2 * (E - 1), E), "float32")
    for leaf in range(E):
        node = E - 1 + leaf
        while node > 0:
            parent = (node - 1) // 2
            goes_right = node == 2 * parent + 2
            paths[parent + goes_right * (E - 1), leaf] = 1
            node = parent
    return paths
