"""V-MoE and Switch: the k largest probabilities under noise, without renormalising."""

from typing import Any

import keras
import numpy as np
import pytest

from multigate.model import gates
from multigate.model.gates.parts.linear import noise_generator

F = np.float32
X = np.random.default_rng(0).normal(size=(6, 3)).astype(F)


def softmax(logits: np.ndarray) -> np.ndarray:
    terms = np.exp(logits - logits.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def cut(p: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros_like(p)
    for row, chosen in enumerate(np.argsort(-p, kind="stable")[:, :k]):
        kept[row, chosen] = p[row, chosen]
    return kept


def built(name: str, k: int = 2, **options: Any) -> tuple[gates.Gate, np.ndarray, np.ndarray]:
    gate = gates.make(name, 5, k, seed=9, **options)
    gate.build((None, 3))
    gate.bias.assign([0.1, -0.3, 0.2, 0.0, 0.4])
    A, b = gate.get_weights()
    return gate, A, b


@pytest.mark.parametrize("name", ["vmoe", "switch"])
def test_by_hand(name: str) -> None:
    # Probabilities (1, 3, 4, 2) / 10; the two largest stay as they are and sum to 0.7.
    gate = gates.make(name, 4, 2)
    gate.build((None, 1))
    gate.kernel.assign(np.zeros((1, 4)))
    gate.bias.assign(np.log([1, 3, 4, 2]))
    np.testing.assert_allclose(gate(np.ones((1, 1), F)).weights, [[0, 0.3, 0.4, 0]], rtol=1e-6)


@pytest.mark.parametrize("name", ["vmoe", "switch"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_inference_formula(name: str, k: int) -> None:
    gate, A, b = built(name, k)
    np.testing.assert_allclose(gate(X).weights, cut(softmax(X @ A + b), k), rtol=1e-5)
    assert gate(X).losses == {}


def test_vmoe_training_formula() -> None:
    gate, A, b = built("vmoe")
    eps = np.asarray(keras.random.normal((6, 5), stddev=1 / 5, seed=noise_generator(9)))
    weights = gate(X, training=True).weights
    np.testing.assert_allclose(weights, cut(softmax(X @ A + b + eps), 2), rtol=1e-5)
    assert not np.allclose(weights, gate(X).weights)


def test_vmoe_noise_has_deviation_one_over_the_number_of_experts() -> None:
    # With zero logits and k = E = 2, log(w_0 / w_1) = eps_0 - eps_1 has deviation sqrt(2) / 2;
    # its estimate from 20,000 rows has relative standard error 1 / sqrt(40,000) = 0.005.
    gate = gates.make("vmoe", 2, 2, seed=0)
    w = np.asarray(gate(np.zeros((20_000, 1), F), training=True).weights)
    assert np.std(np.log(w[:, 0] / w[:, 1])) == pytest.approx(np.sqrt(2) / 2, rel=0.025)


@pytest.mark.parametrize("noise", ["inputs", "logits"])
def test_switch_training_formula_and_loss(noise: str) -> None:
    gate, A, b = built("switch", noise=noise, jitter=0.3, balance_weight=0.5)
    shape = (6, 3) if noise == "inputs" else (6, 5)
    eps = np.asarray(keras.random.uniform(shape, 0.7, 1.3, seed=noise_generator(9)))
    logits = (X * eps) @ A + b if noise == "inputs" else (X @ A) * eps + b
    p = softmax(logits)
    routing = gate(X, training=True)
    np.testing.assert_allclose(routing.weights, cut(p, 2), rtol=1e-5)
    shares = np.bincount(p.argmax(1), minlength=5) / 6
    expected = 0.5 * 5 * np.sum(shares * p.mean(0))
    assert float(routing.losses["balance"]) == pytest.approx(expected, rel=1e-5)


def test_switch_noise_leaves_the_bias_alone() -> None:
    for noise in ("inputs", "logits"):
        gate, _, _ = built("switch", noise=noise)
        zeros = np.zeros((2, 3), F)
        np.testing.assert_allclose(gate(zeros, training=True).weights, gate(zeros).weights)


def test_switch_loss_of_no_example_is_zero() -> None:
    gate, _, _ = built("switch")
    assert float(gate(X[:0], training=True).losses["balance"]) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "output"}, "noise: Switch expected 'inputs' or 'logits', received 'output'"),
        ({"jitter": 1.0}, "jitter: Switch expected 0 <= jitter < 1, received 1.0"),
        ({"balance_weight": -0.1}, "balance_weight: Switch expected at least 0, received -0.1"),
    ],
)
def test_switch_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("switch", 4, 2, **options)
