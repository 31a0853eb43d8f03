"""COMET: soft trees over the experts, their hardening and their learnt permutation."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.comet import Comet
from multigate.model.gates.parts.permutation import permutation_matrix, round_permutation

F = np.float32
X = np.random.default_rng(0).normal(size=(6, 3)).astype(F)


def built(E: int, k: int, spread: float = 1.0, **options: Any) -> Comet:
    """A gate with random splits; a large `spread` saturates them."""
    gate = gates.make("comet", E, k, seed=5, **options)
    assert isinstance(gate, Comet)
    gate.build((None, 3))
    rng = np.random.default_rng(1)
    for variable in gate.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) * spread)
    return gate


def smooth_step(t: float, gamma: float) -> float:
    if abs(t) >= gamma / 2:
        return float(t > 0)
    return -2 * t**3 / gamma**3 + 3 * t / (2 * gamma) + 0.5


def path_probabilities(t: np.ndarray, gamma: float, node: int = 0) -> list[tuple[int, float]]:
    """(node, probability) of the leaves below `node` of one tree with splits t (E-1,)."""
    if node >= len(t):
        return [(node, 1.0)]
    s = smooth_step(float(t[node]), gamma)
    left = path_probabilities(t, gamma, 2 * node + 1)
    right = path_probabilities(t, gamma, 2 * node + 2)
    return [(n, s * p) for n, p in left] + [(n, (1 - s) * p) for n, p in right]


def leaves(gate: Comet, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Path probabilities and linear logits, each (B, k, E), by recursion over the trees."""
    k, E = gate.num_selected, gate.num_experts
    t = np.asarray(x @ gate.split_kernel + gate.split_bias, "float64").reshape(-1, k, E - 1)
    logits = np.asarray(x @ gate.kernel + gate.bias, "float64").reshape(-1, k, E)
    p = np.zeros((len(x), k, E))
    for b in range(len(x)):
        for r in range(k):
            for node, value in path_probabilities(t[b, r], gate.gamma):
                p[b, r, node - (E - 1)] = value
    return p, logits


def test_by_hand() -> None:
    # One tree, two leaves, t = gamma / 4: u = 3/4, S = 9/16 * (3 - 3/2) = 27/32.  With equal
    # logits the weights are the path probabilities.
    gate = gates.make("comet", 2, 1, gamma=2.0, entropy_weight=0.5)
    gate.build((None, 1))
    for variable in gate.trainable_variables:
        variable.assign(np.zeros(variable.shape))
    gate.split_bias.assign([0.5])
    routing = gate(np.zeros((1, 1), F), training=True)
    np.testing.assert_allclose(routing.weights, [[27 / 32, 5 / 32]], rtol=1e-6)
    entropy = -(27 / 32 * np.log(27 / 32) + 5 / 32 * np.log(5 / 32))
    assert float(routing.losses["entropy"]) == pytest.approx(0.5 * entropy, rel=1e-6)
    assert float(routing.diagnostics["convergence"]) == 0.0


@pytest.mark.parametrize(("E", "k"), [(2, 1), (3, 2), (4, 4), (5, 2), (7, 3), (8, 2)])
@pytest.mark.parametrize("gamma", [8.0, 1.0])
def test_formula(E: int, k: int, gamma: float) -> None:
    gate = built(E, k, gamma=gamma, entropy_weight=0.3)
    p, logits = leaves(gate, X)
    assert np.allclose(p.sum(-1), 1)  # every leaf is reachable, whatever E
    scores = p * np.exp(logits)
    expected = scores.sum(1) / scores.sum((1, 2))[:, None]
    routing = gate(X, training=True)
    np.testing.assert_allclose(routing.weights, expected, rtol=1e-4, atol=1e-6)
    safe = np.where(p > 0, p, 1)
    loss = 0.3 * -(p * np.log(safe)).sum((1, 2)).mean()
    assert float(routing.losses["entropy"]) == pytest.approx(loss, rel=1e-4, abs=1e-6)


def test_entropy_schedule_multiplies_the_strength_by_training_step() -> None:
    gate = built(4, 2, gamma=8.0, entropy_weight=0.3, entropy_schedule=((0, 0.0), (2, 1.0)))
    found = [float(gate(X, training=True).losses["entropy"]) for _ in range(4)]
    full = float(built(4, 2, gamma=8.0, entropy_weight=0.3)(X, training=True).losses["entropy"])
    np.testing.assert_allclose(found, [0, full / 2, full, full], rtol=1e-5)


def test_saturated_trees_select_at_most_k_experts() -> None:
    gate = built(6, 2, spread=1e3)
    routing = gate(X)
    assert float(routing.diagnostics["convergence"]) == 1.0
    assert (np.count_nonzero(routing.weights, axis=1) <= 2).all()
    np.testing.assert_allclose(np.sum(routing.weights, axis=1), 1, rtol=1e-6)


def test_dead_leaves_carry_no_gradient_and_none_is_nan() -> None:
    gate = built(7, 2, spread=2.0, gamma=4.0, entropy_weight=1.0)
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        routing = gate(x, training=True)
        dead = tf.equal(routing.weights, 0)
        of_dead = tf.reduce_sum(tf.where(dead, routing.weights, 0) * 3)
        total = tf.reduce_sum(routing.weights * tf.range(7.0)) + routing.losses["entropy"]
    assert 0 < np.count_nonzero(dead) < 42
    variables = [x, *gate.trainable_variables]
    for gradient in tape.gradient(of_dead, variables):
        assert not np.any(gradient)
    for gradient in tape.gradient(total, variables):
        assert np.isfinite(np.asarray(gradient)).all()
        assert np.any(gradient)


def test_hardening_keeps_the_likeliest_leaf_of_each_tree() -> None:
    gate = built(5, 2, gamma=8.0)
    soft = np.asarray(gate(X, training=True).weights)
    assert not gate.properties.sparse_at_inference
    gate.harden()
    assert gate.properties.sparse_at_inference
    p, logits = leaves(gate, X)
    expected = np.zeros((6, 5))
    for b in range(6):
        chosen = p[b].argmax(-1)  # one leaf for each of the two trees
        score = np.exp(logits[b, [0, 1], chosen])
        for e, value in zip(chosen, score / score.sum(), strict=True):
            expected[b, e] += value
    np.testing.assert_allclose(gate(X).weights, expected, rtol=1e-4)
    np.testing.assert_allclose(gate(X, training=True).weights, soft)  # training stays soft


def test_hardening_a_converged_gate_changes_nothing() -> None:
    gate = built(6, 2, spread=1e3)
    before = np.asarray(gate(X).weights)
    gate.harden()
    np.testing.assert_allclose(gate(X).weights, before)


def test_one_expert() -> None:
    gate = gates.make("comet", 1, 1, seed=0)
    routing = gate(X)
    np.testing.assert_array_equal(routing.weights, np.ones((6, 1)))
    assert float(routing.diagnostics["convergence"]) == 1.0


def test_permutation_matrix_by_hand() -> None:
    # exp(logits) = [[2, 1], [1, 2]] is scaled by 1/3 to rows and columns of sum 1.
    logits = np.log(np.array([[2, 1], [1, 2]], F))
    np.testing.assert_allclose(permutation_matrix(logits, 1.0), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    # At half the temperature the ratio 2 becomes 4.
    np.testing.assert_allclose(permutation_matrix(logits, 0.5)[0], [0.8, 0.2], rtol=1e-6)


def test_permutation_matrix_is_doubly_stochastic() -> None:
    logits = np.random.default_rng(0).normal(size=(6, 6)).astype(F)
    matrix = np.asarray(permutation_matrix(logits, 1.0))
    np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(matrix.sum(0), 1, rtol=1e-3)


def test_round_permutation() -> None:
    # 0.9 first (row 0, column 0); of what is left, 0.6 (row 2, column 1); then row 1, column 2,
    # though row 1 prefers column 0.
    matrix = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.1, 0.6, 0.3]], F)
    expected = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(round_permutation(matrix), expected)
    exact = np.eye(5, dtype=F)[[3, 0, 4, 1, 2]]
    np.testing.assert_array_equal(round_permutation(exact), exact)


def test_permutation_moves_leaf_weights_and_is_learnt() -> None:
    plain = built(4, 2, gamma=8.0)
    gate = gates.make("comet", 4, 2, seed=5, gamma=8.0, permutation=True)
    gate.build((None, 3))
    order = [2, 0, 3, 1]  # leaf e becomes expert order[e]
    gate.permutation_logits.assign(np.eye(4)[order] * 5)  # at temperature 0.1: exp(50) to 1
    for name in ("split_kernel", "split_bias", "kernel", "bias"):
        getattr(gate, name).assign(getattr(plain, name))
    for _ in range(2):
        moved = np.asarray(gate(X).weights)[:, order]
        np.testing.assert_allclose(moved, plain(X).weights, rtol=1e-5)
        gate.harden()
        plain.harden()
    assert (np.count_nonzero(gate(X).weights, axis=1) <= 2).all()
    gate.permutation_logits.assign(np.eye(4)[order])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(gate(X, training=True).weights * tf.range(4.0))
    assert np.any(tape.gradient(loss, gate.permutation_logits.value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, "gamma: Comet expected more than 0, received 0.0"),
        ({"entropy_weight": -1.0}, "entropy_weight: Comet expected at least 0, received -1.0"),
        ({"permutation_temperature": 0}, "permutation_temperature: Comet expected more than 0"),
        ({"entropy_schedule": [(5, 1), (1, 0)]}, "entropy_schedule: expected"),
        ({"static": True}, "static: Comet exists per example only"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("comet", 4, 2, **options)


def test_hardened_gate_in_a_graph() -> None:
    gate = built(5, 2, gamma=8.0, permutation=True)
    gate.harden()
    call = tf.function(lambda x: gate(x).weights, input_signature=[tf.TensorSpec((None, 3))])
    np.testing.assert_allclose(call(X), gate(X).weights, rtol=1e-5)
    assert keras.ops.shape(call(X[:0])) == (0, 5)
