"""Balanced gradients: norms in the ratio of the weights, directions and values as they were."""

from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.errors import ConfigError
from multigate.model.ranker.balance import balanced

if keras.backend.backend() != "tensorflow":
    pytest.skip("GradientTape is TensorFlow's", allow_module_level=True)

import tensorflow as tf


def gradients(
    weights: list[float] | None, scales: list[float]
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Gradients by the T outputs, by the shared layer, and the loss of three tasks."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(16, 5)), tf.float32)
    shared = tf.Variable(rng.normal(size=(5, 4)), dtype=tf.float32)
    towers = [tf.constant(rng.normal(size=(4,)), tf.float32) for _ in scales]
    with tf.GradientTape() as tape:
        outputs = [tf.nn.tanh(x @ shared) * (t + 1) for t in range(len(scales))]
        tape.watch(outputs)
        after = outputs if weights is None else balanced(outputs, weights)
        parts = [
            scale * tf.reduce_mean(tf.square(tf.linalg.matvec(output, tower) - 1))
            for scale, output, tower in zip(scales, after, towers, strict=True)
        ]
        loss = tf.add_n(parts)
    *of_outputs, of_shared = tape.gradient(loss, [*outputs, shared])
    return [g.numpy() for g in of_outputs], of_shared.numpy(), loss.numpy()


def test_norms_are_in_the_ratio_of_the_weights_and_add_up_to_what_they_were() -> None:
    plain, _, loss = gradients(None, [1.0, 100.0, 0.01])
    found, _, same = gradients([1.0, 0.5, 2.0], [1.0, 100.0, 0.01])
    assert loss == same
    before = np.array([np.linalg.norm(g) for g in plain])
    after = np.array([np.linalg.norm(g) for g in found])
    np.testing.assert_allclose(after, before.sum() * np.array([1, 0.5, 2]) / 3.5, rtol=1e-5)
    for g, h in zip(plain, found, strict=True):
        cosine = np.sum(g * h) / np.linalg.norm(g) / np.linalg.norm(h)
        assert cosine == pytest.approx(1, abs=1e-6)


def test_the_scale_of_a_loss_does_not_matter_to_the_shared_layer() -> None:
    """Seconds or milliseconds: the direction of the shared gradient stays."""
    directions = []
    for scale in (1.0, 1e6):
        _, shared, _ = gradients([1.0, 1.0, 1.0], [1.0, scale, 1.0])
        directions.append(shared / np.linalg.norm(shared))
    np.testing.assert_allclose(directions[0], directions[1], atol=1e-6)


def test_a_task_without_a_gradient_takes_no_part() -> None:
    plain, _, _ = gradients(None, [1.0, 0.0, 3.0])
    found, _, _ = gradients([1.0, 1.0, 1.0], [1.0, 0.0, 3.0])
    np.testing.assert_array_equal(found[1], 0 * found[1])
    half = (np.linalg.norm(plain[0]) + np.linalg.norm(plain[2])) / 2
    assert np.linalg.norm(found[0]) == pytest.approx(half, rel=1e-5)
    nothing, _, _ = gradients([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    assert all((g == 0).all() for g in nothing)


def test_data_parallel_is_refused(tiny: Any) -> None:
    with pytest.raises(ConfigError, match=r"balanced and train.data_parallel cannot go together"):
        tiny.make_config(
            model={"task_weighting": "balanced"},
            train={"data_parallel": True},
        )
