"""The Gumbel-Matching solver and its conditionals, against brute force."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import linear_sum_assignment

from multigate.model.gates.sampled.matching import capacity, gumbel_matching, match, solve

SIZES = [(1, 1), (1, 3), (2, 2), (3, 2), (4, 2), (5, 2), (5, 3), (6, 3), (4, 4), (5, 4), (3, 5)]


def assignments(B: int, E: int) -> list[tuple[int, ...]]:
    """Every assignment of B rows with at most c = ceil(B / E) per expert."""
    c = capacity(B, E)
    return [
        z for z in itertools.product(range(E), repeat=B) if max(np.bincount(z, minlength=E)) <= c
    ]


def value(scores: np.ndarray, z: tuple[int, ...]) -> float:
    return float(scores[np.arange(len(z)), list(z)].sum())


def test_solve_by_hand() -> None:
    # c = 2.  Rows 0 to 2 prefer expert 0; row 2 gives up least (0.5) and moves to expert 1.
    # d*[0, 1]: the cheapest row to leave expert 0 is row 1, at 2 - 0 = 2; d*[1, 0]: row 2 at
    # 0 - 0.5 = -0.5 (it would gain), row 3 at 4: -0.5.
    scores = np.array([[3.0, 0], [2, 0], [0.5, 0], [0, 4]])
    expected = np.array([[0, 2], [-0.5, 0]])
    z, d = solve(scores)
    np.testing.assert_array_equal(z, [0, 0, 1, 1])
    np.testing.assert_allclose(d, expected)


@pytest.mark.parametrize(("B", "E"), SIZES)
def test_solve_is_optimal_and_within_capacity(B: int, E: int) -> None:
    rng = np.random.default_rng(B * 10 + E)
    for _ in range(20):
        scores = rng.normal(size=(B, E)) + rng.normal(size=E) * 2  # some experts are preferred
        z, d = solve(scores)
        assert np.bincount(z, minlength=E).max() <= capacity(B, E)
        best = max(value(scores, other) for other in assignments(B, E))
        assert value(scores, tuple(z)) == pytest.approx(best)
        np.testing.assert_array_equal(np.diag(d), 0)


@pytest.mark.parametrize(("B", "E"), [(60, 4), (64, 7), (50, 16), (9, 12)])
def test_solve_against_a_general_assignment_solver(B: int, E: int) -> None:
    rng = np.random.default_rng(B)
    scores = rng.gumbel(size=(B, E)) + np.linspace(0, 5, E)
    slots = np.repeat(scores, capacity(B, E), axis=1)
    rows, columns = linear_sum_assignment(slots, maximize=True)
    z, _ = solve(scores)
    assert value(scores, tuple(z)) == pytest.approx(slots[rows, columns].sum())
    assert np.bincount(z).max() <= capacity(B, E)


@pytest.mark.parametrize(("B", "E"), SIZES)
def test_conditionals_against_brute_force(B: int, E: int) -> None:
    # Given the other rows' noise, z_b = j wins iff v_-bj + a_bj + gumbel_bj is the largest, with
    # v_-bj the best value of the other rows once one slot of expert j is taken.  So q(z_b = j)
    # = softmax_j(v_-bj + a_bj), with v_-bj by enumeration.
    rng = np.random.default_rng(B + 100 * E)
    for _ in range(5):
        logits = rng.normal(size=(B, E)) * 1.5
        noise = rng.gumbel(size=(B, E))
        z, log_q = match(logits, noise)
        for b in range(B):
            v = np.full(E, -np.inf)
            for other in assignments(B, E):
                rest = value(logits + noise, other) - (logits + noise)[b, other[b]]
                v[other[b]] = max(v[other[b]], rest + logits[b, other[b]])
            assert log_q[b] == pytest.approx(v[z[b]] - np.logaddexp.reduce(v), abs=1e-9)


def test_conditional_is_the_frequency_under_redrawn_noise() -> None:
    # Redraw row 0's noise 4,000 times; 4.5 standard errors.  B = 5, E = 3: one dummy row.
    rng = np.random.default_rng(0)
    logits, noise = rng.normal(size=(5, 3)), rng.gumbel(size=(5, 3))
    N = 4000
    noises = np.tile(noise, (N, 1, 1))
    noises[:, 0] = rng.gumbel(size=(N, 3))
    z, log_q = match(np.tile(logits, (N, 1, 1)), noises)
    for j in range(3):
        stated = np.exp(log_q[z[:, 0] == j, 0])
        np.testing.assert_allclose(stated, stated[0])  # does not depend on row 0's own noise
        error = np.sqrt(stated[0] * (1 - stated[0]) / N)
        assert abs((z[:, 0] == j).mean() - stated[0]) < 4.5 * error


def test_two_experts_agree_with_the_general_solver() -> None:
    rng = np.random.default_rng(0)
    for B in (1, 2, 5, 8, 33):
        logits, noise = rng.normal(size=(4, B, 2)) * 2, rng.gumbel(size=(4, B, 2))
        z, log_q = match(logits, noise)
        for s in range(4):
            other, d = solve(logits[s] + noise[s])
            np.testing.assert_array_equal(z[s], other)
            v = logits[s] - d[:, other].T
            expected = v[np.arange(B), other] - np.logaddexp.reduce(v, axis=1)
            np.testing.assert_allclose(log_q[s], expected)


@pytest.mark.parametrize("E", [2, 3])
def test_callback_inside_a_graph(E: int) -> None:
    rng = np.random.default_rng(1)
    logits, noise = rng.normal(size=(2, 6, E)).astype("f"), rng.gumbel(size=(2, 6, E)).astype("f")

    @tf.function(input_signature=[tf.TensorSpec((None, None, E)), tf.TensorSpec((None, None, E))])
    def inside(a: tf.Tensor, g: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return gumbel_matching(a, g)

    z, log_q = inside(logits, noise)
    expected_z, expected_q = match(logits, noise)
    np.testing.assert_array_equal(z, expected_z)
    np.testing.assert_array_equal(log_q, expected_q)
    assert match(logits[:, :0], noise[:, :0])[0].shape == (2, 0)
