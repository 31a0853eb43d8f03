"""Noisy Top-k and its balancing losses."""

import math

import keras
import numpy as np
import pytest

from multigate.model import gates
from multigate.model.gates.noisy_topk import NoisyTopK, stay_probability

F = np.float32


def phi(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def trained(E: int = 5, k: int = 2, **options: float) -> NoisyTopK:
    """A gate whose matrices have left zero."""
    gate = gates.make("noisy_topk", E, k, seed=4, **options)
    assert isinstance(gate, NoisyTopK)
    gate.build((None, 3))
    rng = np.random.default_rng(2)
    gate.kernel.assign(rng.normal(size=(3, E)))
    gate.noise_kernel.assign(rng.normal(size=(3, E)))
    return gate


def cv_squared(v: np.ndarray) -> float:
    return float((v.std() / v.mean()) ** 2)


def test_stay_probability_by_hand() -> None:
    # k = 1, noise of width 1.  Expert 0 (noisy 1.5) must beat the best other, 1.0:
    # Phi(1 - 1) = 0.5.  Experts 1 and 2 must beat 1.5: Phi(0 - 1.5) = 0.0668.
    clean = np.array([[1.0, 0.0, 0.0]], F)
    noisy = np.array([[1.5, 1.0, -1.0]], F)
    stays = stay_probability(clean, noisy, np.ones_like(clean), 1)
    np.testing.assert_allclose(stays, [[0.5, 0.0668072, 0.0668072]], rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_stay_probability_formula(k: int) -> None:
    rng = np.random.default_rng(k)
    clean, noisy = rng.normal(size=(2, 6, 5)).astype(F)
    scale = rng.uniform(0.5, 2, size=(6, 5)).astype(F)
    expected = np.empty((6, 5))
    for b in range(6):
        for e in range(5):
            kth = np.sort(np.delete(noisy[b], e))[-k]
            expected[b, e] = phi((clean[b, e] - kth) / scale[b, e])
    stays = stay_probability(clean, noisy, scale, k)
    np.testing.assert_allclose(stays, expected, rtol=1e-4, atol=1e-6)


def test_stay_probability_is_one_where_all_stay() -> None:
    values = np.zeros((2, 3), F)
    np.testing.assert_array_equal(stay_probability(values, values, values + 1, 3), np.ones((2, 3)))


def test_stay_probability_is_that_of_drawing_again() -> None:
    rng = np.random.default_rng(0)
    clean = np.array([[0.3, -0.2, 0.1, 0.0]], F)
    scale = np.array([[1.0, 0.5, 2.0, 1.5]], F)
    noisy = clean + scale * rng.normal(size=(1, 4)).astype(F)
    draws = 40_000
    expected = np.empty(4)
    for e in range(4):
        tried = np.repeat(noisy, draws, axis=0)
        tried[:, e] = clean[0, e] + scale[0, e] * rng.normal(size=draws)
        expected[e] = np.mean((tried > tried[:, [e]]).sum(axis=1) < 2)
    # Standard error at most 0.5 / sqrt(draws) = 0.0025.
    np.testing.assert_allclose(stay_probability(clean, noisy, scale, 2)[0], expected, atol=0.0125)


def test_training_formula_and_losses() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(F)
    gate = trained(importance_weight=0.3, load_weight=0.7)
    routing = gate(x, training=True)
    # A gate with the same seed draws the same noise.
    noise = np.asarray(keras.random.normal((6, 5), seed=trained().noise))
    W, W_noise = gate.get_weights()
    clean, scale = x @ W, np.log1p(np.exp(x @ W_noise))
    h = clean + noise * scale
    expected = np.zeros((6, 5))
    stays = np.empty((6, 5))
    for b in range(6):
        top = np.argsort(-h[b])[:2]
        expected[b, top] = np.exp(h[b, top]) / np.exp(h[b, top]).sum()
        for e in range(5):
            stays[b, e] = phi((clean[b, e] - np.sort(np.delete(h[b], e))[-2]) / scale[b, e])
    np.testing.assert_allclose(routing.weights, expected, rtol=1e-4)
    importance = 0.3 * cv_squared(expected.sum(0))
    assert float(routing.losses["importance"]) == pytest.approx(importance, rel=1e-4)
    assert float(routing.losses["load"]) == pytest.approx(0.7 * cv_squared(stays.sum(0)), rel=1e-3)


def test_inference_is_top_k_without_noise_or_losses() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(F)
    gate, plain = trained(), gates.make("topk", 5, 2)
    plain.build((None, 3))
    plain.kernel.assign(gate.kernel)
    np.testing.assert_allclose(gate(x).weights, plain(x).weights)
    assert gate(x).losses == {}


def test_load_starts_balanced() -> None:
    routing = gates.make("noisy_topk", 4, 1, seed=0)(np.ones((4000, 3), F), training=True)
    # Each expert's share is 1/4 with standard error sqrt(3/16/4000) = 0.007.
    np.testing.assert_allclose(routing.diagnostics["load"], np.full(4, 0.25), atol=0.035)


def test_losses_vanish_where_all_experts_are_kept_or_there_is_no_example() -> None:
    x = np.ones((3, 3), F)
    assert float(trained(k=5)(x, training=True).losses["load"]) == 0.0  # every load is B
    for loss in trained()(x[:0], training=True).losses.values():  # mean 0
        assert float(loss) == 0.0


@pytest.mark.parametrize("option", ["importance_weight", "load_weight"])
def test_bad_strength(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: NoisyTopK expected at least 0, received -1"):
        gates.make("noisy_topk", 4, 2, **{option: -1})
