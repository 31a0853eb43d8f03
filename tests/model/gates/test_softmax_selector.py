"""DSelect-k's softmax ablations."""

from typing import Any

import numpy as np
import pytest

from multigate.model import gates
from multigate.model.gates.softmax_selector import SoftmaxSelector

F = np.float32
X = np.zeros((2, 3), F)


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def static_gate(psi: Any, mix: Any, **options: Any) -> SoftmaxSelector:
    psi = np.array(psi, F)
    gate = gates.make("softmax_selector", psi.shape[1], len(psi), static=True, seed=0, **options)
    assert isinstance(gate, SoftmaxSelector)
    gate.build((None, 3))
    gate.selector_bias.assign(psi.reshape(-1))
    gate.mix_bias.assign(np.array(mix, F))
    return gate


def test_weights_by_hand() -> None:
    # psi_0 = (log 3, 0, 0): (3, 1, 1) / 5; psi_1 = (0, log 4, 0): (1, 4, 1) / 6; alpha = 1/2, 1/2.
    # w = (3/5 + 1/6, 1/5 + 4/6, 1/5 + 1/6) / 2 = (23, 26, 11) / 60.
    gate = static_gate([[np.log(3), 0, 0], [0, np.log(4), 0]], [0, 0])
    training = gate(X, training=True).weights
    np.testing.assert_allclose(training, [23 / 60, 26 / 60, 11 / 60], rtol=1e-6)
    np.testing.assert_allclose(gate(X).weights, [23 / 49, 26 / 49, 0], rtol=1e-6)


def test_two_selectors_may_take_the_same_expert() -> None:
    gate = static_gate([[1e3, 0, 0], [2e3, 0, 0]], [0, 1])
    np.testing.assert_allclose(gate(X).weights, [1, 0, 0], rtol=1e-6)


def test_per_example_formula() -> None:
    gate = gates.make("softmax_selector", 5, 3, temperature=0.5, seed=2)
    assert isinstance(gate, SoftmaxSelector)
    gate.build((None, 4))
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(F)
    psi = (x @ gate.selector_kernel.numpy() + gate.selector_bias.numpy()).reshape(6, 3, 5)
    alpha = softmax(x @ gate.mix_kernel.numpy() + gate.mix_bias.numpy())
    training = np.einsum("br,bre->be", alpha, softmax(psi / 0.5))
    np.testing.assert_allclose(gate(x, training=True).weights, training, rtol=1e-4)
    kept = np.where(training >= np.sort(training, axis=1)[:, [-gate.num_selected]], training, 0)
    inference = kept / kept.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(gate(x).weights, inference, rtol=1e-4)


def test_temperature_is_annealed_by_step() -> None:
    psi = np.array([[0.3, 0.1, -0.2]])
    gate = static_gate(psi, [0], temperature=1.0, temperature_end=1e-16, temperature_steps=4)
    seen = [np.array(gate(X, training=True).weights) for _ in range(5)]
    for step, temperature in enumerate([1, 1e-4, 1e-8, 1e-12, 1e-16]):
        np.testing.assert_allclose(seen[step], softmax(psi[0] / temperature), atol=1e-6)
    np.testing.assert_array_equal(seen[4], [1, 0, 0])


def test_entropy_by_hand() -> None:
    # Selectors (1/2, 1/2) and (3/4, 1/4): log 2 + 3/4 log(4/3) + 1/4 log 4.
    gate = static_gate([[0, 0], [np.log(3), 0]], [0, 0], entropy_weight=2.0)
    losses = gate(X, training=True).losses
    entropy = np.log(2) + 0.75 * np.log(4 / 3) + 0.25 * np.log(4)
    np.testing.assert_allclose(losses["entropy"], 2 * entropy, rtol=1e-6)
    assert gate(X).losses == {}


def test_selectors_start_different() -> None:
    gate = gates.make("softmax_selector", 6, 4, static=True, seed=1)
    assert isinstance(gate, SoftmaxSelector)
    gate.build((None, 3))
    assert len(set(gate.selector_bias.numpy())) == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: SoftmaxSelector expected more than 0, received 0"),
        ({"temperature_end": 0.0}, "temperature_end: SoftmaxSelector expected None or more"),
        ({"entropy_weight": -0.1}, "entropy_weight: SoftmaxSelector expected at least 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("softmax_selector", 4, 2, **options)
