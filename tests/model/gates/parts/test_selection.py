"""Selection by index, softmax over a selection, balance losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.gates.parts import selection

F = np.float32


@pytest.mark.parametrize(
    ("row", "k", "expected"),
    [
        ([1, 3, 2], 2, [0, 1, 1]),
        ([1, 1, 1, 1], 2, [1, 1, 0, 0]),  # ties: the lower index, and exactly k
        ([0, -1, 0, 0], 1, [1, 0, 0, 0]),  # a value of zero is a value like any other
        ([0, -np.inf, -np.inf], 2, [1, 1, 0]),
        ([2, 1], 2, [1, 1]),
        ([5], 1, [1]),
    ],
)
def test_top_k_mask(row: list[float], k: int, expected: list[int]) -> None:
    mask = selection.top_k_mask(np.array([row], F), k)
    np.testing.assert_array_equal(mask, [np.array(expected, bool)])


def test_top_k_mask_of_any_rank() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(F)
    mask = np.asarray(selection.top_k_mask(values, 2))
    threshold = np.sort(values, axis=-1)[..., -2:-1]
    np.testing.assert_array_equal(mask, values >= threshold)
    np.testing.assert_array_equal(selection.top_k_mask(values[0, 0], 2), mask[0, 0])
    assert selection.top_k_mask(np.zeros((0, 4), F), 2).shape == (0, 4)


def test_keep_top_k() -> None:
    kept = selection.keep_top_k(np.array([[0.0, -2.0, 0.0]], F), 2)
    np.testing.assert_array_equal(kept, [[0.0, -np.inf, 0.0]])


def test_masked_softmax_by_hand() -> None:
    # Over logits 0 and log 3: 1 / 4 and 3 / 4; what the mask leaves out may be anything.
    logits = np.array([[0.0, np.nan, np.log(3.0), np.inf, -np.inf]], F)
    mask = np.array([[True, False, True, False, False]])
    weights = selection.masked_softmax(logits, mask)
    np.testing.assert_allclose(weights, [[0.25, 0, 0.75, 0, 0]], rtol=1e-6)


def test_masked_softmax_gradient_is_finite_and_zero_outside() -> None:
    x = tf.constant([[1e4, -np.inf, 0.0, np.nan], [1.0, 2.0, 3.0, 4.0]])
    mask = np.array([[True, False, True, False], [False] * 4])
    with tf.GradientTape() as tape:
        tape.watch(x)
        weights = selection.masked_softmax(x, mask)
        loss = tf.reduce_sum(weights * [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(weights, [[1, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(tape.gradient(loss, x), np.zeros((2, 4)))


def test_softmax_of_some_is_the_masked_softmax_with_its_gradient() -> None:
    rng = np.random.default_rng(0)
    x = tf.constant(np.append(rng.normal(0, 1e3, (50, 8)), [[1e18] * 8, [-1e18] * 8], 0), F)
    mask = selection.top_k_mask(x, 2)
    found = {}
    for function in (selection.masked_softmax, selection.softmax_of_some):
        with tf.GradientTape() as tape:
            tape.watch(x)
            weights = function(x, mask)
            loss = tf.reduce_sum(weights * rng.permuted(np.arange(8.0, dtype=F)))
        found[function.__name__] = weights.numpy()
        assert not weights.numpy()[~mask.numpy()].any()
        assert not tape.gradient(loss, x).numpy()[~mask.numpy()].any()
    np.testing.assert_array_equal(*found.values())


def test_cv_squared() -> None:
    # Mean 2, variance ((1-2)^2 + (3-2)^2) / 2 = 1: 1 / 4.
    assert float(selection.cv_squared(np.array([1, 3], F))) == pytest.approx(0.25)
    zeros = tf.zeros(3)
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        value = selection.cv_squared(zeros)
    assert float(value) == 0.0
    np.testing.assert_array_equal(tape.gradient(value, zeros), np.zeros(3))


def test_switch_balance_loss_by_hand() -> None:
    # First choices 0, 0, 1: shares 2/3, 1/3.  Mean probabilities 0.6, 0.4.
    # 2 * (2/3 * 0.6 + 1/3 * 0.4) = 16/15.
    probabilities = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8]], F)
    loss = selection.switch_balance_loss(probabilities)
    assert float(loss) == pytest.approx(16 / 15, rel=1e-6)
    # One row, as from a static gate: 2 * (1 * 0.9).
    assert float(selection.switch_balance_loss(probabilities[0])) == pytest.approx(1.8)
    assert float(selection.switch_balance_loss(np.zeros((0, 2), F))) == 0.0


def test_batch_mean() -> None:
    np.testing.assert_allclose(selection.batch_mean(np.array([[1, 2], [3, 6]], F)), [2, 4])
    np.testing.assert_array_equal(selection.batch_mean(np.zeros((0, 2), F)), [0, 0])


def test_softmax_over_one_entry_is_one_without_a_warning() -> None:
    np.testing.assert_array_equal(selection.softmax(np.array([[3.0]], F)), [[1.0]])
    x = np.array([[0.3, -1.0]], F)
    np.testing.assert_allclose(selection.softmax(x), keras.ops.softmax(x))
