"""MOESART: draws, adjustments and their bias, gradients, inference, regularisers."""

import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.gates.moesart import (
    ADJUSTMENTS,
    Moesart,
    adjusted_weights,
    draw_counts,
    draw_uniform,
)

F = np.float32
STUDY = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "moesart_bias.py"))


def made(E: int, k: int, **options: Any) -> Moesart:
    gate = gates.make("moesart", E, k, seed=7, **options)
    assert isinstance(gate, Moesart)
    gate.build((None, 4))
    return gate


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# g = (1/2, 1/4, 1/8, 1/8), k = 3, r = (2, 1, 0, 0), z = expert 0.
@pytest.mark.parametrize(
    ("adjustment", "expected"),
    [
        # Q = 1/2 * 2 + 1/(3-1) = 3/2: w_0 = 1 / (3/2), w_1 = (1/2) / (3/2).
        ("randomised", [2 / 3, 1 / 3, 0, 0]),
        # 1/2 : 1/4.
        ("none", [2 / 3, 1 / 3, 0, 0]),
        # 1/2 * 2 : 1/4 * 1.
        ("counts", [4 / 5, 1 / 5, 0, 0]),
        # 2/3 : 1/3 of the draws.
        ("expected_counts", [2 / 3, 1 / 3, 0, 0]),
    ],
)
def test_adjustments_by_hand(adjustment: str, expected: list[float]) -> None:
    logits = tf.constant([np.log([1 / 2, 1 / 4, 1 / 8, 1 / 8]) + 5], tf.float32)
    counts = tf.constant([[2.0, 1, 0, 0]])
    chosen = tf.constant([[True, False, False, False]])
    weights = adjusted_weights(logits, counts, chosen, adjustment, 3)
    np.testing.assert_allclose(weights, [expected], rtol=1e-5)


@pytest.mark.parametrize("replacement", [False, True])
def test_randomised_closed_form(replacement: bool) -> None:
    k, E = 3, 6
    rng = np.random.default_rng(1)
    logits = tf.constant(rng.normal(size=(200, E)), tf.float32)
    seed = keras.random.SeedGenerator(1)
    counts = draw_counts(logits, k, replacement, seed)
    chosen = draw_uniform(counts, seed)
    weights = adjusted_weights(logits, counts, chosen, "randomised", k).numpy()
    g, r, z = softmax(logits.numpy()), counts.numpy(), chosen.numpy()
    terms = np.where(z, g * r, r / (k - 1))
    np.testing.assert_allclose(weights, terms / terms.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(r.sum(-1), k)
    np.testing.assert_array_equal(z.sum(-1), 1)
    assert (r[z] > 0).all()
    if not replacement:
        assert r.max() == 1
    single = (r > 0).sum(-1) == 1
    np.testing.assert_allclose(weights[single].max(-1, initial=1), 1)


@pytest.mark.parametrize("replacement", [False, True])
def test_draws_follow_g(replacement: bool) -> None:
    g, k, N = np.array([0.5, 0.3, 0.15, 0.05]), 2, 20_000
    logits = tf.constant(np.tile(np.log(g), (N, 1)), tf.float32)
    counts = draw_counts(logits, k, replacement, keras.random.SeedGenerator(3)).numpy()
    outcomes, probability = STUDY["draws"](g, k, replacement)
    for outcome, p in zip(outcomes, probability, strict=True):
        share = (counts == outcome).all(-1).mean()
        assert abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / N)


def test_z_is_uniform_over_the_drawn() -> None:
    counts = tf.constant(np.tile([[2.0, 0, 1, 1]], (9000, 1)), tf.float32)
    share = draw_uniform(counts, keras.random.SeedGenerator(0)).numpy().mean(0)
    error = np.sqrt(1 / 3 * 2 / 3 / 9000)
    assert share[1] == 0
    assert (np.abs(share[[0, 2, 3]] - 1 / 3) < 4.5 * error).all()


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("kind", ["random", "decaying"])
def test_bias_order_with_replacement(kind: str, k: int) -> None:
    g = STUDY["shapes"](6)[kind]
    bias = {a: STUDY["bias"](g, k, True, a) for a in ADJUSTMENTS}
    assert bias["expected_counts"] < 1e-6
    assert 1e-4 < bias["randomised"] < bias["none"] <= bias["counts"] + 1e-7


def test_bias_on_uniform_g() -> None:
    g = STUDY["shapes"](6)["uniform"]
    for adjustment in ADJUSTMENTS:
        assert STUDY["bias"](g, 3, True, adjustment) < 1e-6
        assert STUDY["bias"](g, 3, False, adjustment) < 1e-6


def test_bias_without_replacement_has_another_order() -> None:
    g = STUDY["shapes"](8)["decaying"]
    bias = {a: STUDY["bias"](g, 4, False, a) for a in ADJUSTMENTS}
    assert abs(bias["none"] - 0.027) < 0.001
    assert abs(bias["randomised"] - 0.35) < 0.01
    assert bias["counts"] == bias["none"]  # every count is one


def test_expected_weights_agree_with_the_gate() -> None:
    # The gate's own draws, averaged, against the enumeration; 4.5 standard errors.
    gate = made(4, 2, static=True)
    g = np.array([0.5, 0.3, 0.15, 0.05])
    gate.bias.assign(np.log(g))
    weights = np.array(gate(np.zeros((20_000, 4), F), training=True).weights)
    expected = STUDY["expected_weights"](g, 2, False, "randomised")
    error = weights.std(0) / np.sqrt(len(weights))
    assert (np.abs(weights.mean(0) - expected) < 4.5 * error).all()


@pytest.mark.parametrize("adjustment", ["randomised", "none", "counts"])
def test_zero_weights_carry_no_gradient(adjustment: str) -> None:
    logits = tf.constant(np.random.default_rng(0).normal(size=(50, 6)) * 40, tf.float32)
    seed = keras.random.SeedGenerator(2)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        counts = draw_counts(logits, 3, False, seed)
        weights = adjusted_weights(logits, counts, draw_uniform(counts, seed), adjustment, 3)
    jacobian = tape.batch_jacobian(weights, logits).numpy()
    assert np.isfinite(jacobian).all()
    np.testing.assert_array_equal(jacobian[weights.numpy() == 0], 0)
    assert (jacobian != 0).any()


def test_gradient_of_the_randomised_weight_by_hand() -> None:
    # s = {0, 1}, r = 1, k = 2, z = 0: w_0 = g_0 / (g_0 + 1), so dw_0/do_0 = g_0 (1 - g_0) /
    # (1 + g_0)^2; with g_0 = 1/2 that is 1/9.  dw_0/do_2 = -g_0 g_2 / (1 + g_0)^2 = -1/18 at
    # g_2 = 1/4: an expert that was not drawn moves too, through g's normalisation.
    logits = tf.constant([np.log([1 / 2, 1 / 4, 1 / 4])], tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        weights = adjusted_weights(
            logits, tf.constant([[1.0, 1, 0]]), tf.constant([[True, False, False]]), "randomised", 2
        )
        first = weights[0, 0]
    np.testing.assert_allclose(tape.gradient(first, logits), [[1 / 9, -1 / 18, -1 / 18]], rtol=1e-5)


def test_inference_takes_the_k_likeliest_with_equal_weights() -> None:
    gate = made(5, 3)
    x = np.random.default_rng(0).normal(size=(20, 4)).astype(F)
    logits = x @ gate.kernel.numpy() + gate.bias.numpy()
    expected = np.zeros((20, 5))
    np.put_along_axis(expected, np.argsort(-logits, -1)[:, :3], 1 / 3, -1)
    np.testing.assert_allclose(gate(x).weights, expected, rtol=1e-6)
    static = made(3, 2, static=True)
    static.bias.assign([0.1, 0.0, 0.2])
    np.testing.assert_allclose(static(x).weights, [0.5, 0, 0.5])
    assert static(x, training=True).weights.shape == (20, 3)


def test_regularisers_by_hand() -> None:
    # g = (1/2, 1/4, 1/8, 1/8), k = 2: beyond the two largest lies 1/4.  Balance: E * f_0 * g_0 =
    # 4 * 1 * 1/2 = 2.
    gate = made(4, 2, static=True, trimmed_lasso_weight=2.0, balance_weight=0.5)
    gate.bias.assign(np.log([1 / 2, 1 / 4, 1 / 8, 1 / 8]))
    losses = gate(np.zeros((3, 4), F), training=True).losses
    np.testing.assert_allclose(losses["trimmed_lasso"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(losses["balance"], 1.0, rtol=1e-5)
    assert gate(np.zeros((3, 4), F)).losses == {}


def test_trimmed_lasso_is_a_mean_over_the_batch() -> None:
    gate = made(6, 2, trimmed_lasso_weight=1.0, temperature=0.5)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(F)
    g = np.sort(softmax((x @ gate.kernel.numpy()) / 0.5), -1)
    loss = gate(x, training=True).losses["trimmed_lasso"]
    np.testing.assert_allclose(loss, g[:, :4].sum(-1).mean(), rtol=1e-5)
    assert float(gate(x[:0], training=True).losses["trimmed_lasso"]) == 0


def test_all_experts_selected() -> None:
    weights = np.array(made(3, 3)(np.ones((4, 4), F), training=True).weights)
    assert (weights > 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        (1, {}, "num_selected: Moesart expected at least 2 .*router would get no gradient"),
        (2, {"temperature": 0}, "temperature: Moesart expected more than 0, received 0"),
        (2, {"adjustment": "iv"}, "adjustment: Moesart expected one of randomised, none, .*'iv'"),
        (2, {"trimmed_lasso_weight": -1}, "trimmed_lasso_weight: Moesart expected at least 0"),
        (2, {"balance_weight": -1}, "balance_weight: Moesart expected at least 0"),
    ],
)
def test_bad_options(k: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gates.make("moesart", 4, k, **options)
