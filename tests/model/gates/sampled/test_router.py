"""The sampled router and the loss that trains it."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.sampled.assignment import STRATEGIES
from multigate.model.gates.sampled.estimators import SampledLoss, expected_loss, sampled_loss
from multigate.model.gates.sampled.router import Sampled

F = np.float32


def made(E: int = 3, **options: Any) -> Sampled:
    gate = gates.make("sampled", E, seed=3, **options)
    assert isinstance(gate, Sampled)
    gate.build((None, 4))
    return gate


def features(B: int) -> np.ndarray:
    return np.random.default_rng(B).normal(size=(B, 4)).astype(F)


def probabilities(gate: Sampled, x: np.ndarray) -> np.ndarray:
    e = np.exp(x @ gate.kernel.numpy() + gate.bias.numpy())
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("B", [0, 1, 7, 9])
def test_routing_while_training(strategy: str, B: int) -> None:
    gate, x = made(strategy=strategy), features(B)
    routing = gate(x, training=True)
    weights, kept = np.array(routing.weights), np.array(routing.kept)
    p = probabilities(gate, x)
    np.testing.assert_array_equal(weights.sum(-1), kept)
    assert set(np.unique(weights)) <= {0, 1}
    rows = np.flatnonzero(kept)
    np.testing.assert_allclose(
        np.array(routing.log_prob)[rows], np.log((p * weights).sum(-1)[rows]), rtol=1e-4
    )
    assert np.isfinite(np.array(routing.importance)).all()
    if strategy != "none":
        assert weights.sum(0).max(initial=0) <= -(-B // 3)
    if "skip" not in strategy:
        np.testing.assert_array_equal(kept, 1)
    assert float(routing.diagnostics["kept"]) == pytest.approx(kept.mean() if B else 0)


def test_inference_is_the_likeliest_expert() -> None:
    x = features(9)
    for estimator in ("reinforce", "gating"):
        gate = made(estimator=estimator)
        p = probabilities(gate, x)
        expected = np.eye(3)[p.argmax(-1)]
        routing = gate(x)
        np.testing.assert_allclose(
            routing.weights, expected * p if estimator == "gating" else expected, rtol=1e-5
        )
        assert routing.log_prob is None
        assert routing.importance is None
        assert routing.kept is None


def test_gating_learns_through_the_weight() -> None:
    gate, x = made(estimator="gating", strategy="none"), features(6)
    with tf.GradientTape() as tape:
        routing = gate(x, training=True)
        total = tf.reduce_sum(routing.weights)
    assert routing.log_prob is None
    weights, p = np.array(routing.weights), probabilities(gate, x)
    np.testing.assert_allclose(weights[weights > 0], p[weights > 0], rtol=1e-5)
    # d p_z / d bias_j = p_z ([j = z] - p_j), summed over rows.
    drawn = (weights > 0).astype(F)
    p_z = (p * drawn).sum(-1, keepdims=True)
    np.testing.assert_allclose(
        tape.gradient(total, gate.bias.value), (p_z * (drawn - p)).sum(0), atol=1e-6
    )


def test_balance_loss() -> None:
    gate, x = made(balance_weight=0.01), features(8)
    p = probabilities(gate, x)
    first = np.eye(3)[p.argmax(-1)].mean(0)
    expected = 0.01 * 3 * (first * p.mean(0)).sum()
    np.testing.assert_allclose(gate(x, training=True).losses["balance"], expected, rtol=1e-5)
    assert gate(x).losses == {}


def test_properties() -> None:
    assert not made(strategy="none").properties.batch_dependent
    assert made(strategy="none", sinkhorn_proposal=True).properties.batch_dependent
    assert made(strategy="skip").properties.batch_dependent
    assert made(strategy="gumbel_matching").properties.normalised
    assert not made(strategy="skip_iw").properties.normalised
    assert not made(estimator="gating", strategy="none").properties.normalised


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_selected": 2}, "num_selected: Sampled expected 1, received 2"),
        ({"static": True}, "static: Sampled exists per example only"),
        ({"estimator": "vimco"}, "estimator: Sampled expected one of reinforce, gating, received"),
        ({"strategy": "base"}, "strategy: Sampled expected one of none, skip, skip_iw, gumbel"),
        ({"temperature": 0}, "temperature: Sampled expected more than 0, received 0"),
        ({"balance_weight": -1}, "balance_weight: Sampled expected at least 0, received -1"),
        (
            {"strategy": "gumbel_matching", "sinkhorn_proposal": True},
            "sinkhorn_proposal: Sampled expected False with Gumbel-Matching",
        ),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("sampled", 4, **arguments)


def test_sampled_loss_by_hand() -> None:
    # Three rows: losses (1, 2, 4), importance (1, 3, 5), kept (1, 1, 0), b = 1.
    # Value: (1*1 + 3*2) / 3 = 7/3, the score term adds nothing to it.
    # By loss: importance * kept / 3 = (1/3, 1, 0).
    # By log_prob: kept * importance * (loss - b) / 3 = (0, 3 * 1 / 3, 0) = (0, 1, 0).
    losses, log_prob = tf.constant([1.0, 2, 4]), tf.constant([-1.0, -2, -3])
    importance, kept = tf.constant([1.0, 3, 5]), tf.constant([1.0, 1, 0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([losses, log_prob])
        value = sampled_loss(losses, importance, kept, log_prob, 1.0)
        without = sampled_loss(losses, importance, kept)
    np.testing.assert_allclose(value, 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(without, 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(value, losses), [1 / 3, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(value, log_prob), [0, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(expected_loss(losses, importance, kept), 7 / 4)
    assert float(sampled_loss(losses[:0], importance[:0], kept[:0])) == 0


def test_baseline_is_updated_after_use() -> None:
    # Loss 2 throughout: baselines used are 0, 0.01 * 2 = 0.02, 0.99 * 0.02 + 0.02 = 0.0398.
    layer = SampledLoss()
    one, log_prob = tf.ones(4), tf.zeros(4)
    used = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            tape.watch(log_prob)
            value = layer(2 * one, one, one, log_prob)
        assert float(value) == 2
        used.append(2 - 4 * float(tape.gradient(value, log_prob)[0]))
    np.testing.assert_allclose(used, [0, 0.02, 0.0398], atol=1e-6)
    before = float(layer.baseline)
    layer(2 * one, one, 0 * one, log_prob)  # nothing kept: nothing to learn from
    assert float(layer.baseline) == before
    assert SampledLoss.from_config(SampledLoss(decay=0.5).get_config()).decay == 0.5
    with pytest.raises(ValueError, match="decay: expected 0 <= decay < 1, received 1"):
        SampledLoss(decay=1)


EVERY_OPTION: list[tuple[str, int, dict[str, Any]]] = [
    (
        "dselect_k",
        2,
        {
            "gamma": 2.0,
            "gamma_end": 0.1,
            "gamma_steps": 7,
            "entropy_weight": 0.1,
            "entropy_schedule": [[0.0, 0.0], [5.0, 1.0]],
            "reachability_weight": 0.3,
            "reachability_mass": 0.9,
        },
    ),
    (
        "softmax_selector",
        3,
        {
            "static": True,
            "temperature": 2.0,
            "temperature_end": 0.1,
            "temperature_steps": 7,
            "entropy_weight": 0.1,
            "entropy_schedule": [[0.0, 1.0]],
        },
    ),
    (
        "gumbel_softmax",
        1,
        {
            "static": True,
            "temperature": 0.5,
            "sparsity_weight": 0.1,
            "hard": True,
            "initial_probability": 0.8,
        },
    ),
    (
        "moesart",
        2,
        {
            "temperature": 0.5,
            "replacement": True,
            "adjustment": "counts",
            "trimmed_lasso_weight": 0.1,
            "balance_weight": 0.2,
        },
    ),
    (
        "sampled",
        1,
        {
            "estimator": "gating",
            "strategy": "skip",
            "temperature": 2.0,
            "sinkhorn_proposal": True,
            "balance_weight": 0.01,
        },
    ),
]


@pytest.mark.parametrize(("name", "k", "options"), EVERY_OPTION, ids=lambda v: str(v)[:16])
def test_configuration_and_seed_round_trip(name: str, k: int, options: dict[str, Any]) -> None:
    gate = gates.make(name, 5, k, seed=9, **options)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(gate))
    config = twin.get_config()
    assert config == gate.get_config()
    assert {option: config[option] for option in options} == options
    x = features(7)
    for training in (True, True, False):  # the seed fixes both initial values and noise
        mine, other = gate(x, training=training), twin(x, training=training)
        np.testing.assert_array_equal(mine.weights, other.weights)
        assert {n: float(v) for n, v in mine.losses.items()} == {
            n: float(v) for n, v in other.losses.items()
        }
