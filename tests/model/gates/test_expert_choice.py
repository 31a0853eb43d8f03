"""Expert choice: experts take examples in training, examples take experts at inference."""

import numpy as np
import pytest

from multigate.model import gates

F = np.float32


def test_by_hand() -> None:
    # Probabilities of three examples over E = 2, k = 1: k' = ceil(3 * 1 / 2) = 2.
    #   expert 0 takes its best two, examples 0 (.9) and 1 (.6); expert 1 takes 2 (.8) and 1 (.4).
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    gate = gates.make("expert_choice", 2, 1)
    gate.build((None, 2))
    gate.kernel.assign(np.eye(2))
    x = np.log(p).astype(F)
    weights = gate(x, training=True).weights
    np.testing.assert_allclose(weights, [[0.9, 0], [0.6, 0.4], [0, 0.8]], rtol=1e-5)
    np.testing.assert_allclose(gate(x).weights, [[0.9, 0], [0.6, 0], [0, 0.8]], rtol=1e-5)


@pytest.mark.parametrize(
    ("B", "E", "k", "taken"), [(8, 4, 2, 4), (5, 4, 1, 2), (1, 4, 1, 1), (3, 3, 3, 3), (2, 1, 1, 2)]
)
def test_training_formula(B: int, E: int, k: int, taken: int) -> None:
    x = np.random.default_rng(B).normal(size=(B, 3)).astype(F)
    gate = gates.make("expert_choice", E, k, seed=2)
    weights = np.asarray(gate(x, training=True).weights)
    A, b = gate.get_weights()
    p = np.exp(x @ A + b)
    p /= p.sum(1, keepdims=True)
    expected = np.where(p >= np.sort(p, axis=0)[-taken], p, 0)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert (np.count_nonzero(weights, axis=0) == taken).all()


def test_equal_scores_go_to_the_earlier_rows() -> None:
    gate = gates.make("expert_choice", 2, 1)
    gate.build((None, 1))
    weights = gate(np.zeros((4, 1), F), training=True).weights  # k' = 2
    np.testing.assert_array_equal(weights, [[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]])


def test_properties_say_that_training_mixes_rows() -> None:
    found = gates.make("expert_choice", 4, 2).properties
    assert found.batch_dependent
    assert not found.sparse_in_training
    assert found.sparse_at_inference
