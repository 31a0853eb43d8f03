"""Dispatch on TensorFlow against sums written out with NumPy, for any pattern of zeros."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from multigate.model.moe.dispatch import mix


class Scale(keras.layers.Layer):
    """f_e(x) = (e + 1) x: its sums are worked out by hand."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = self.add_weight(shape=(), initializer=keras.initializers.Constant(factor))

    def call(self, x):
        return self.factor * x

    def compute_output_shape(self, input_shape):
        return input_shape


def experts(count):
    return [Scale(e + 1) for e in range(count)]


def test_by_hand():
    weights = tf.constant(
        [
            [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]],
            [[0.5, 0.0, 0.5], [0.25, 0.75, 0.0]],
        ]
    )
    outputs, experts_per_row = mix(experts(3), tf.constant([[10.0], [100.0]]), weights)
    # Row 0: 0.5 * 1 * 10 + 0.5 * 3 * 10 = 20 for both tasks.
    # Row 1: 1 * 2 * 100 = 200, and 0.25 * 1 * 100 + 0.75 * 2 * 100 = 175.
    np.testing.assert_allclose(outputs, [[[20.0], [200.0]], [[20.0], [175.0]]])
    # Row 0 evaluates experts 0 and 2, row 1 evaluates 0 and 1.
    assert float(experts_per_row) == 2


def test_gradients_by_hand():
    layers = experts(2)
    x = tf.constant([[10.0, 1.0], [100.0, 2.0]])
    weights = tf.constant([[[0.5, 0.0], [0.25, 0.75]]])
    with tf.GradientTape() as tape:
        tape.watch([x, weights])
        loss = tf.reduce_sum(mix(layers, x, weights)[0][0])
    by_x, by_weights, first, second = tape.gradient(
        loss, [x, weights, *(layer.factor.value for layer in layers)]
    )
    np.testing.assert_allclose(by_x, [[0.5, 0.5], [1.75, 1.75]])  # sum over e of w_e (e + 1)
    # (e + 1) times the row's sum, 11 or 102; none where the weight is zero.
    np.testing.assert_allclose(by_weights, [[[11.0, 0.0], [102.0, 204.0]]])
    np.testing.assert_allclose([first, second], [0.5 * 11 + 0.25 * 102, 0.75 * 102])


def test_dense_gives_zero_weights_their_gradient():
    x, weights = tf.constant([[10.0], [100.0]]), tf.constant([[[0.5, 0.0], [0.0, 0.0]]])
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs, experts_per_row = mix(experts(2), x, weights, dense=True)
    np.testing.assert_allclose(outputs[0], [[5.0], [0.0]])
    np.testing.assert_allclose(tape.gradient(outputs, weights), [[[10.0, 20.0], [100.0, 200.0]]])
    assert float(experts_per_row) == 2


def test_a_row_without_experts_is_zero():
    outputs, experts_per_row = mix(experts(2), tf.ones((3, 2)), tf.zeros((2, 3, 2)))
    np.testing.assert_array_equal(outputs, np.zeros((2, 3, 2)))
    assert float(experts_per_row) == 0


def test_nan_weights_are_not_skipped():
    outputs, _ = mix(experts(1), tf.ones((1, 1)), tf.constant([[[np.nan]]]))
    assert np.isnan(outputs[0])


@settings(max_examples=40)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(0, 7), st.integers(1, 6)),
    share=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_any_pattern_of_zeros(shape, share, seed):
    T, B, E = shape
    rng = np.random.default_rng(seed)
    weights = (rng.random((T, B, E)) * (rng.random((T, B, E)) < share)).astype(np.float32)
    x = rng.normal(size=(B, 3)).astype(np.float32)
    upstream = rng.normal(size=(T, B, 3)).astype(np.float32)
    layers = experts(E)
    inputs = [tf.constant(x), tf.constant(weights)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs, experts_per_row = mix(layers, *inputs)
        loss = tf.reduce_sum(tf.stack(outputs) * upstream)
    factors = np.arange(1, E + 1, dtype=np.float32)
    sources = [*inputs, *(layer.factor.value for layer in layers)]
    received = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    np.testing.assert_allclose(outputs, np.einsum("tbe,e,bd->tbd", weights, factors, x), atol=1e-5)
    expected = [
        np.einsum("tbe,e,tbd->bd", weights, factors, upstream),
        np.einsum("e,bd,tbd->tbe", factors, x, upstream) * (weights != 0),
        *np.einsum("tbe,bd,tbd->e", weights, x, upstream),
    ]
    for a, b in zip(received, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    assert float(experts_per_row) == pytest.approx((weights != 0).any(0).sum() / max(B, 1))
