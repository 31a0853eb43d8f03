"""Gumbel-softmax gate."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.gumbel_softmax import GumbelSoftmax

F = np.float32
X = np.zeros((2, 3), F)


def made(E: int, **options: Any) -> GumbelSoftmax:
    gate = gates.make("gumbel_softmax", E, static=True, seed=5, **options)
    assert isinstance(gate, GumbelSoftmax)
    gate.build((None, 3))
    return gate


def test_inference_by_hand() -> None:
    # alpha = log (1, 2, 5): softmax (1/8, 1/4, 5/8); pi = (0.6, 0.5, 0.9): 0.5 is not above 1/2.
    gate = made(3)
    gate.mix.assign(np.log([1, 2, 5]))
    gate.switch.assign([np.log(0.6 / 0.4), 0, np.log(9)])
    np.testing.assert_allclose(gate(X).weights, [1 / 8, 0, 5 / 8], rtol=1e-6)


def test_penalty_by_hand() -> None:
    # mu * sum log pi = 2 (log 0.6 + log 0.1).
    gate = made(2, sparsity_weight=2.0)
    gate.switch.assign([np.log(0.6 / 0.4), np.log(0.1 / 0.9)])
    losses = gate(X, training=True).losses
    np.testing.assert_allclose(losses["sparsity"], 2 * np.log(0.6 * 0.1), rtol=1e-6)
    assert gate(X).losses == {}


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_switches_follow_the_binary_concrete_distribution(temperature: float) -> None:
    # P(U > u) = P(logistic > temperature * logit(u) - logit(pi)) = sigmoid(logit(pi) - t logit(u)).
    E, pi = 20_000, 0.7
    gate = made(E, temperature=temperature, initial_probability=pi)
    switches = np.array(gate(X, training=True).weights) * E  # softmax(alpha) = 1 / E
    for u in (0.2, 0.5, 0.8):
        z = np.log(pi / (1 - pi)) - temperature * np.log(u / (1 - u))
        expected = 1 / (1 + np.exp(-z))
        error = np.sqrt(expected * (1 - expected) / E)
        assert abs((switches > u).mean() - expected) < 4 * error


def test_hard_form_is_straight_through() -> None:
    soft, hard = made(50, initial_probability=0.5), made(50, initial_probability=0.5, hard=True)
    assert not soft.properties.straight_through
    assert hard.properties.straight_through
    gradients = []
    for gate in (soft, hard):
        with tf.GradientTape() as tape:
            weights = gate(X, training=True).weights
            total = tf.reduce_sum(weights * np.arange(1, 51, dtype=F))
        gradients.append(tape.gradient(total, gate.switch.value).numpy())
    switches = np.array(weights) * 50
    np.testing.assert_allclose(switches, np.round(switches), atol=1e-5)
    assert 5 < (switches == 0).sum() < 45
    # The relaxed form's gradient, where the weight is zero too.
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-5)
    assert (gradients[1] != 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0}, "temperature: GumbelSoftmax expected more than 0, received 0"),
        ({"initial_probability": 1.0}, "initial_probability: GumbelSoftmax expected 0 <"),
        ({"sparsity_weight": -1}, "sparsity_weight: GumbelSoftmax expected at least 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("gumbel_softmax", 4, static=True, **options)
