"""X-MoE: cosine scores in a low-dimensional space."""

import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates

F = np.float32


def test_by_hand() -> None:
    # E = 2, H = 2, P = identity.  x = (3, 4) has cosine 3/5 with A_0 = (2, 0) and 4/5 with
    # A_1 = (0, 7).  tau = 0.2 / log 3 makes the scores differ by log 3: weights 1/4 and 3/4.
    gate = gates.make("xmoe", 2, 2, temperature=0.2 / np.log(3))
    gate.build((None, 2))
    gate.projection.assign(np.eye(2))
    gate.embeddings.assign([[2.0, 0.0], [0.0, 7.0]])
    routing = gate(np.array([[3, 4]], F))
    np.testing.assert_allclose(routing.weights, [[0.25, 0.75]], rtol=1e-5)
    assert float(routing.diagnostics["temperature"]) == pytest.approx(0.2 / np.log(3))


@pytest.mark.parametrize(("E", "H"), [(1, 2), (3, 2), (6, 3), (7, 3)])
def test_formula(E: int, H: int) -> None:
    k = min(2, E)
    x = np.random.default_rng(E).normal(size=(5, 4)).astype(F)
    gate = gates.make("xmoe", E, k, seed=3)
    weights = gate(x, training=True).weights
    P, A, log_tau = gate.get_weights()
    assert P.shape == (4, H)
    assert A.shape == (E, H)
    z = x @ P
    norms = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(A, axis=1)
    p = np.exp(z @ A.T / norms / np.exp(log_tau))
    p /= p.sum(1, keepdims=True)
    expected = np.where(p >= np.sort(p, axis=1)[:, [-k]], p, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-4)


def test_zero_row_has_finite_gradients() -> None:
    gate = gates.make("xmoe", 4, 2, seed=3)
    x = tf.zeros((2, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        weights = gate(x).weights
        loss = tf.reduce_sum(weights * [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(weights, np.tile(np.array([[0.25, 0.25, 0, 0]], F), (2, 1)))
    found = tape.gradient(loss, [x, *gate.trainable_variables])
    assert all(np.isfinite(np.asarray(g)).all() for g in found)


def test_bad_temperature() -> None:
    with pytest.raises(ValueError, match="temperature: XMoE expected more than 0, received 0"):
        gates.make("xmoe", 4, 2, temperature=0)
