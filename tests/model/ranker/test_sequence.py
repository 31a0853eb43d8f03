"""The sequence encoder: against NumPy, and on a rule about the order of a list."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.model.ranker.conftest import planted_ranker

from multigate.model.ranker.sequence import SequenceEncoder

d, L = 4, 5


def make() -> SequenceEncoder:
    layer = SequenceEncoder(d, L, units=6, seed=1)
    rng = np.random.default_rng(0)
    for variable in layer.weights:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def normed(x: np.ndarray, norm: Any) -> np.ndarray:
    gamma, beta = norm.gamma.numpy(), norm.beta.numpy()
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * gamma + beta


def encoded_list(layer: SequenceEncoder, entries: np.ndarray) -> np.ndarray:
    """One list, with the causal block's output computed at every entry and read at the last."""
    first, second = layer.norms
    n = len(entries)
    h = [e + layer.positions.numpy()[n - 1 - i] for i, e in enumerate(entries)]
    kernel = {name: getattr(layer, name).kernel.numpy() for name in ("query", "key", "value")}
    outputs = []
    for i in range(n):
        q = normed(h[i], first) @ kernel["query"]
        scores = [
            float(q @ (normed(h[j], first) @ kernel["key"])) / math.sqrt(d) for j in range(i + 1)
        ]
        weights = np.exp(scores) / np.exp(scores).sum()
        read = sum(w * (normed(h[j], first) @ kernel["value"]) for j, w in enumerate(weights))
        z = h[i] + read @ layer.mix.kernel.numpy()
        up = normed(z, second) @ layer.up.kernel.numpy() + layer.up.bias.numpy()
        gelu = np.array([u / 2 * (1 + math.erf(u / math.sqrt(2))) for u in up])
        outputs.append(z + gelu @ layer.down.kernel.numpy() + layer.down.bias.numpy())
    return outputs[-1]


def test_it_is_the_last_output_of_a_causal_block() -> None:
    layer, rng = make(), np.random.default_rng(1)
    entries = rng.normal(size=(4, L, d)).astype(np.float32)
    lengths = np.array([5, 3, 1, 0])
    found = layer(entries, np.arange(L) < lengths[:, None]).numpy()
    for row, n in enumerate(lengths[:3]):
        expected = encoded_list(layer, entries[row, :n])
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found[3], 0)  # an empty list


def test_padding_does_not_count_and_order_does() -> None:
    layer, rng = make(), np.random.default_rng(2)
    entries = rng.normal(size=(1, L, d)).astype(np.float32)
    real = np.array([[True, True, True, False, False]])
    first = layer(entries, real).numpy()
    padded = entries.copy()
    padded[:, 3:] = 99.0
    np.testing.assert_array_equal(layer(padded, real).numpy(), first)
    swapped = entries[:, [1, 0, 2, 3, 4]]
    assert np.abs(layer(swapped, real).numpy() - first).max() > 1e-3


def test_every_weight_and_every_entry_gets_gradients() -> None:
    layer = make()
    entries = tf.random.normal((2, L, d), seed=1)
    real = tf.constant([[True] * 4 + [False], [False] * L])
    with tf.GradientTape() as tape:
        tape.watch(entries)
        total = tf.reduce_sum(tf.square(layer(entries, real)))
    weights = [w.value for w in layer.trainable_weights]
    *of_weights, of_entries = tape.gradient(total, [*weights, entries])
    for variable, gradient in zip(layer.trainable_weights, of_weights, strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 1e-5, variable.path
    assert (np.abs(of_entries[0, :4]).max(axis=1) > 0).all()
    np.testing.assert_array_equal(of_entries[0, 4], 0)
    np.testing.assert_array_equal(of_entries[1], 0)  # an empty list; and no NaN


def kind_of_the_last_but_one(encoded: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether the entry before the most recent one is of the first half of the items."""
    recent = encoded["recent"]
    place = (recent > 0).sum(axis=1) - 2
    return recent[np.arange(len(recent)), place] < 26


@pytest.mark.slow
def test_it_learns_an_effect_of_the_order(learnt_auc: Any) -> None:
    sequence = learnt_auc(planted_ranker("sequence"), kind_of_the_last_but_one)
    mean = learnt_auc(planted_ranker("mean"), kind_of_the_last_but_one)
    assert sequence > 0.95
    assert mean < sequence - 0.1


@pytest.mark.parametrize("name", ["recent", "recent__length"])
def test_the_list_stays_a_part_of_the_user(name: str) -> None:
    ranker = planted_ranker("sequence")
    assert ranker.embedder.of.get(name, "user") == "user"
    assert ranker.embedder.widths["recent"] == 4 + 1  # and the length
