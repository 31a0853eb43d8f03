"""A model's names, and with them the order of TensorFlow's sums, are its own."""

import keras
import numpy as np
import pytest

from multigate.model.backend.names import fresh_names

NINE = 9
"""Layers after which the order of names is another: `dense_10` comes before `dense_9`."""


def names() -> list[str]:
    return [keras.layers.Dense(1).name for _ in range(3)]


def test_names_do_not_depend_on_what_was_made_before() -> None:
    for _ in range(NINE):
        keras.layers.Dense(1)
    with fresh_names():
        first = names()
    with fresh_names():
        assert names() == first == ["dense", "dense_1", "dense_2"]


def test_names_outside_go_on_where_they_were() -> None:
    before = keras.layers.Dense(1).name
    with pytest.raises(ZeroDivisionError), fresh_names():
        keras.layers.Dense(1)
        raise ZeroDivisionError
    after = keras.layers.Dense(1).name
    assert int(after.rpartition("_")[2]) == int(before.rpartition("_")[2] or 0) + 1


def gradient(x: np.ndarray) -> np.ndarray:
    """Of several layers that read the same tensor, by a function that TensorFlow optimises."""
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    layers = [keras.layers.Dense(5, activation="tanh") for _ in range(4)]
    for layer in layers:
        layer.build(x.shape)
        layer.kernel.assign(rng.normal(size=(x.shape[1], 5)))
    start = keras.Variable(x)

    @tf.function
    def found() -> object:
        with tf.GradientTape() as tape:
            shared = tf.tanh(start.value)
            total = sum(tf.reduce_sum(layer(shared) ** 2) for layer in layers)
        return tape.gradient(total, start.value)

    return np.array(found())


def test_sums_are_in_the_order_of_the_model() -> None:
    x = np.random.default_rng(1).normal(size=(64, 16)).astype(np.float32)
    with fresh_names():
        expected = gradient(x)
        for _ in range(NINE):
            keras.layers.Dense(1)
        with fresh_names():
            np.testing.assert_array_equal(gradient(x), expected)
