"""The smooth-step, the codes and the schedules that DSelect-k and its ablations use."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.gates.parts.schedule import check_points, geometric, piecewise_linear
from multigate.model.gates.parts.smooth_step import code_probabilities, saturated, smooth_step

F = np.float32


def cubic(t: np.ndarray, gamma: float) -> np.ndarray:
    """The paper's form, in float64."""
    middle = -2 * t**3 / gamma**3 + 3 * t / (2 * gamma) + 0.5
    return np.where(t <= -gamma / 2, 0.0, np.where(t >= gamma / 2, 1.0, middle))


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_smooth_step_is_the_papers_cubic(gamma: float) -> None:
    t = np.linspace(-0.7, 0.7, 141) * gamma
    on, off = smooth_step(tf.constant(t, tf.float32), gamma)
    np.testing.assert_allclose(on, cubic(t, gamma), atol=3e-7)
    np.testing.assert_allclose(off, 1 - cubic(t, gamma), atol=3e-7)


def test_smooth_step_by_hand() -> None:
    # gamma = 2, t = 0.5: u = 3/4, S = 9/16 (3 - 3/2) = 27/32; 1 - S = 1/16 (1 + 3/2) = 5/32.
    on, off = smooth_step(tf.constant([0.5]), 2.0)
    assert float(on[0]) == 27 / 32
    assert float(off[0]) == 5 / 32


def test_value_and_slope_vanish_together() -> None:
    # The 4,000 float32 numbers around each end; the polynomial in t fails this test.
    steps = np.arange(-2000, 2001) * np.spacing(F(0.5))
    t = tf.constant(np.concatenate([-0.5 + steps, 0.5 + steps]).astype(F))
    for side in (0, 1):
        with tf.GradientTape() as tape:
            tape.watch(t)
            value = smooth_step(t, 1.0)[side]
        slope = tape.gradient(value, t).numpy()
        zero = value.numpy() == 0
        assert 0 < zero.sum() < zero.size
        np.testing.assert_array_equal(slope[zero], 0)


def test_saturated() -> None:
    marks = saturated(tf.constant([-1.0, -0.5, -0.49, 0.0, 0.49, 0.5]), 1.0)
    np.testing.assert_array_equal(marks, [True, True, False, False, False, True])


def test_codes_by_hand() -> None:
    # E = 4: code e has bit 0 (value 1) and bit 1 (value 2).  on = (0.9, 0.2):
    # p[0] = 0.1 * 0.8, p[1] = 0.9 * 0.8, p[2] = 0.1 * 0.2, p[3] = 0.9 * 0.2.
    on = tf.constant([0.9, 0.2])
    np.testing.assert_allclose(code_probabilities(on, 1 - on), [0.08, 0.72, 0.02, 0.18], rtol=1e-6)


@pytest.mark.parametrize("m", [0, 1, 3, 5])
def test_codes_follow_their_bits(m: int) -> None:
    rng = np.random.default_rng(m)
    on = rng.uniform(size=(4, 2, m)).astype(F)
    bits = np.arange(2**m)[:, None] >> np.arange(m) & 1  # (2^m, m)
    expected = np.where(bits, on[..., None, :], 1 - on[..., None, :]).prod(-1)
    p = code_probabilities(tf.constant(on), tf.constant(1 - on))
    np.testing.assert_allclose(p, expected, rtol=1e-5)


def test_piecewise_linear() -> None:
    points = check_points([(10, 0.0), (20, 1.0), (40, 0.5)], "schedule")
    values = [float(piecewise_linear(points, tf.constant(float(s)))) for s in (0, 10, 15, 30, 99)]
    np.testing.assert_allclose(values, [0, 0, 0.5, 0.75, 0.5])
    assert piecewise_linear(None, tf.constant(3.0)) == 1.0


def test_geometric() -> None:
    # From 1 to 1e-4 in 4 steps: a factor 10 each.
    values = [float(geometric(1.0, 1e-4, 4, tf.constant(float(s)))) for s in (0, 1, 2, 4, 9)]
    np.testing.assert_allclose(values, [1, 0.1, 0.01, 1e-4, 1e-4], rtol=1e-5)
    assert geometric(3.0, None, 4, keras.ops.ones(())) == 3.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "entropy_schedule: expected .step, value. pairs"),
        ([[1, 2, 3]], r"received \[\[1, 2, 3\]\]"),
        ([[5, 1.0], [5, 2.0]], "increasing steps"),
        ([[-1, 1.0]], "steps >= 0"),
        ([[0, -1.0]], "entropy_schedule: expected values >= 0"),
    ],
)
def test_bad_schedules(points: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_points(points, "entropy_schedule")
