"""Target attention: DIN's activation unit, against NumPy and on a planted rule."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.model.ranker.conftest import planted_ranker

from multigate.configs.errors import ConfigError
from multigate.model.ranker.attention import TargetAttention

d, H = 3, 5


def make(normalise: bool) -> TargetAttention:
    layer = TargetAttention(d, H, normalise, seed=1)
    rng = np.random.default_rng(0)
    for variable in layer.weights:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def pooled(layer: TargetAttention, entries: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """One candidate and the entries of one list, entry by entry as in the paper."""
    kernel, bias, out, out_bias = (w.numpy().astype(np.float64) for w in layer.weights)
    scores = []
    for e in entries:
        z = np.concatenate([e, candidate, e * candidate, e - candidate]) @ kernel + bias
        scores.append(float((z / (1 + np.exp(-z))) @ out[:, 0] + out_bias[0]))
    weights = np.array(scores)
    if layer.normalise and len(weights):
        weights = np.exp(weights) / np.exp(weights).sum()
    return sum((w * e for w, e in zip(weights, entries, strict=True)), np.zeros(d))


@pytest.mark.parametrize("normalise", [False, True])
def test_weights_are_those_of_the_paper(normalise: bool) -> None:
    layer, rng = make(normalise), np.random.default_rng(1)
    entries = rng.normal(size=(3, 4, d)).astype(np.float32)
    lengths, user_index = np.array([4, 2, 0]), np.array([0, 1, 1, 2, 0])
    candidates = rng.normal(size=(5, d)).astype(np.float32)
    real = np.arange(4) < lengths[:, None]
    found = layer(entries, real, candidates, user_index).numpy()
    for n, m in enumerate(user_index):
        expected = pooled(layer, entries[m, : lengths[m]], candidates[n])
        np.testing.assert_allclose(found[n], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[3], 0)  # an empty list
    by_row = layer(entries[user_index], real[user_index], candidates).numpy()
    np.testing.assert_allclose(by_row, found, rtol=1e-5, atol=1e-6)


def test_padding_does_not_count() -> None:
    layer, rng = make(True), np.random.default_rng(2)
    entries = rng.normal(size=(1, 4, d)).astype(np.float32)
    real = np.array([[True, True, False, False]])
    candidates = np.ones((1, d), np.float32)
    first = layer(entries, real, candidates).numpy()
    entries[:, 2:] = 99.0
    np.testing.assert_array_equal(layer(entries, real, candidates).numpy(), first)


@pytest.mark.parametrize("normalise", [False, True])
def test_every_weight_and_both_embeddings_get_gradients(normalise: bool) -> None:
    layer = make(normalise)
    entries, candidates = tf.random.normal((2, 4, d), seed=1), tf.random.normal((2, d), seed=2)
    real = tf.constant([[True, True, True, False], [False] * 4])
    with tf.GradientTape() as tape:
        tape.watch([entries, candidates])
        total = tf.reduce_sum(tf.square(layer(entries, real, candidates)))
    weights = [w.value for w in layer.trainable_weights]
    *of_weights, of_entries, of_candidates = tape.gradient(total, [*weights, entries, candidates])
    for variable, gradient in zip(layer.trainable_weights, of_weights, strict=True):
        # A softmax does not change if the same number is added to all scores.
        moves = not (normalise and variable.name == "out_bias")
        assert (np.abs(gradient).max() > 1e-4) == moves, variable.name
    assert np.abs(of_entries[0, :3]).min() > 0
    np.testing.assert_array_equal(of_entries[0, 3], 0)
    np.testing.assert_array_equal(of_entries[1], 0)
    assert np.abs(of_candidates[0]).max() > 0
    assert np.isfinite(of_candidates).all()  # that of an empty list, too


def resembles_some_entry(encoded: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether some entry of the history is of the candidate's kind, of 12 kinds."""
    recent, item = encoded["recent"], encoded["item_id"]
    return ((recent % 12 == item[:, None] % 12) & (recent > 0)).any(axis=1)


@pytest.mark.slow
def test_it_learns_that_some_entry_resembles_the_candidate(learnt_auc: Any) -> None:
    attention = learnt_auc(planted_ranker("attention"), resembles_some_entry)
    mean = learnt_auc(planted_ranker("mean"), resembles_some_entry)
    assert attention > 0.92
    assert mean < attention - 0.1


def test_a_list_that_shares_no_vocabulary_with_the_item_is_refused(tiny: Any) -> None:
    contract = tiny.config.contract.model_dump(mode="json", exclude_defaults=True)
    contract["features"]["recent"]["pooling"] = "attention"
    tiny.make_config(contract=contract)
    del contract["features"]["recent"]["share"]
    message = (
        "feature 'recent': pooling: attention compares the list with the candidate; expected .* "
        "received side 'user' and share: none; share it, or choose another pooling"
    )
    with pytest.raises(ConfigError, match=message):
        tiny.make_config(contract=contract)
