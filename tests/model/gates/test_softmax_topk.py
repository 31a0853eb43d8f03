"""Softmax and Top-k."""

import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates

F = np.float32


def softmax(logits: np.ndarray) -> np.ndarray:
    terms = np.exp(logits - logits.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


def test_softmax_by_hand() -> None:
    # Logits (0, log 3): (1/4, 3/4).
    gate = gates.make("softmax", 2)
    gate.build((None, 1))
    gate.kernel.assign([[0.0, np.log(3)]])
    np.testing.assert_allclose(gate(np.ones((1, 1), F)).weights, [[0.25, 0.75]], rtol=1e-6)


def test_softmax_formula() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(F)
    gate = gates.make("softmax", 4, seed=1)
    weights = gate(x).weights
    gate.bias.assign([0.1, -0.2, 0.3, 0.0])
    A, b = (np.asarray(v) for v in gate.get_weights())
    np.testing.assert_allclose(gate(x).weights, softmax(x @ A + b), rtol=1e-5)
    assert not np.allclose(weights, gate(x).weights)
    static = gates.make("softmax", 4, static=True)
    static.build((None, 3))
    static.bias.assign(b)
    np.testing.assert_allclose(static(x).weights, softmax(b), rtol=1e-6)


def test_topk_by_hand() -> None:
    # Logits (log 3, 5, 0, -1) * x + b with x = 0: those of b, of which the two largest are
    # log 3 and 0: weights 3/4 and 1/4.
    gate = gates.make("topk", 4, 2)
    gate.build((None, 1))
    gate.bias.assign([np.log(3), -5.0, 0.0, -1.0])
    weights = gate(np.zeros((1, 1), F)).weights
    np.testing.assert_allclose(weights, [[0.75, 0.0, 0.25, 0.0]], rtol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_topk_formula(k: int) -> None:
    x = np.random.default_rng(k).normal(size=(6, 3)).astype(F)
    gate = gates.make("topk", 5, k, seed=1)
    weights = gate(x, training=True).weights
    A, b = gate.get_weights()
    logits = x @ A + b
    kept = np.full_like(logits, -np.inf)
    for row, chosen in enumerate(np.argsort(-logits, kind="stable")[:, :k]):
        kept[row, chosen] = logits[row, chosen]
    np.testing.assert_allclose(weights, softmax(kept), rtol=1e-5)
    assert (np.count_nonzero(weights, axis=1) == k).all()


def test_topk_static_starts_from_a_choice_of_its_seed() -> None:
    x = np.zeros((3, 2), F)
    chosen = set()
    for seed in range(8):
        gate = gates.make("topk", 6, 2, static=True, seed=seed)
        weights = np.asarray(gate(x).weights)
        b = gate.get_weights()[0]
        kept = np.where(b >= np.sort(b)[-2], b, -np.inf)
        np.testing.assert_allclose(weights, softmax(kept), rtol=1e-5)
        chosen.add(tuple(np.flatnonzero(weights)))
    assert len(chosen) > 1


def test_topk_keeps_zero_logits_and_exactly_k_of_a_tie() -> None:
    gate = gates.make("topk", 4, 2)
    gate.build((None, 1))
    gate.kernel.assign(np.zeros((1, 4)))
    weights = gate(np.ones((1, 1), F)).weights
    np.testing.assert_array_equal(weights, [[0.5, 0.5, 0, 0]])


def test_not_a_number_is_named() -> None:
    gate = gates.make("topk", 4, 2)
    gate.build((None, 1))
    x = np.array([[np.nan]], F)
    with pytest.raises(ValueError, match=r"logits of gate .*expected finite values, received NaN"):
        gate(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="logits of gate"):
        tf.function(gate)(tf.constant(x))
