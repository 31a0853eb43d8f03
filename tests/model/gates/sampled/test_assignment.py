"""Drawing under a capacity, Sinkhorn, and gradients against exact enumeration."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.gates.sampled.assignment import assign, keep_up_to_capacity, sinkhorn
from multigate.model.gates.sampled.estimators import sampled_loss

F = np.float32


def seed(n: int = 0) -> keras.random.SeedGenerator:
    return keras.random.SeedGenerator(n)


def softmax(v: np.ndarray) -> np.ndarray:
    e = np.exp(v - v.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_capacity_keeps_min_n_c_of_each_expert() -> None:
    # B = 7, E = 3: c = 3.
    z = np.random.default_rng(0).choice(3, p=[0.7, 0.2, 0.1], size=(500, 7))
    drawn = tf.constant(np.eye(3)[z], tf.float32)
    kept = keep_up_to_capacity(drawn, seed()).numpy()
    taken = (drawn.numpy() * kept[..., None]).sum(1)
    np.testing.assert_array_equal(taken, np.minimum(drawn.numpy().sum(1), 3))
    assert set(np.unique(kept)) == {0, 1}


def test_every_row_is_equally_likely_to_be_kept() -> None:
    # Six rows at one of two experts, c = 3: each is kept half of the time; 4.5 standard errors.
    drawn = np.zeros((8000, 6, 2), F)
    drawn[..., 0] = 1
    share = keep_up_to_capacity(tf.constant(drawn), seed()).numpy().mean(0)
    assert (np.abs(share - 0.5) < 4.5 * np.sqrt(0.25 / 8000)).all()


def test_sinkhorn_by_hand() -> None:
    # Both rows (4/5, 1/5), B/E = 1: columns become (1/2, 1/2) each, and then rows are (1/2, 1/2).
    balanced = sinkhorn(tf.constant(np.log([[0.8, 0.2], [0.8, 0.2]]), tf.float32))
    np.testing.assert_allclose(balanced, np.log(np.full((2, 2), 0.5)), rtol=1e-6)


def test_sinkhorn_balances_by_scaling_rows_and_columns() -> None:
    rng = np.random.default_rng(2)
    p = softmax(rng.normal(size=(3, 9, 4)) * 2)
    log_q = sinkhorn(tf.constant(np.log(p), tf.float32)).numpy()
    np.testing.assert_allclose(np.exp(log_q).sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(log_q).sum(-2), 9 / 4, rtol=1.01e-2)  # its tolerance
    # log q - log p = u_b + v_e: all second differences vanish.
    d = log_q - np.log(p)
    rank_one = d - d[:, :1] - d[:, :, :1] + d[:, :1, :1]
    np.testing.assert_allclose(rank_one, 0, atol=2e-5)


def test_sinkhorn_balances_nearly_one_hot_rows() -> None:
    # Plain alternation is 16% off after 300 rounds: 75 of 100 rows prefer expert 0 by up to 1,000.
    x = np.linspace(-0.75, 0.25, 100)
    log_p = tf.nn.log_softmax(tf.constant(np.stack([-1000 * x, 0 * x], -1), tf.float32))
    q = np.exp(sinkhorn(log_p).numpy())
    np.testing.assert_allclose(q.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(q.sum(-2), 50, rtol=0.05)


def test_importance_by_hand() -> None:
    # All four rows draw expert 0 of two for certain; p_0 = 1/2 would be their target.
    logits = np.zeros((4, 2), F)
    near = np.array([60.0, -60], F) * np.ones((4, 1), F)
    # skip: c = 2 of 4 kept, p/q = 1: B / kept = 2.  skip_iw: n / min(n, c) = 4 / 2 = 2.
    for strategy in ("skip", "skip_iw"):
        draw = assign(tf.constant(near), 1.0, strategy, False, seed())
        np.testing.assert_array_equal(draw.expert, [0] * 4)
        assert float(keras.ops.sum(draw.kept)) == 2
        np.testing.assert_allclose(draw.importance, 2)
    # none: p = softmax(a), q = softmax(a / 2), at a = (log 4, 0): p = (4/5, 1/5), q = (2/3, 1/3).
    draw = assign(
        tf.constant(logits + np.array([np.log(4), 0]), tf.float32), 2.0, "none", False, seed()
    )
    expected = np.where(draw.expert.numpy() == 0, 0.8 / (2 / 3), 0.2 / (1 / 3))
    np.testing.assert_allclose(draw.importance, expected, rtol=1e-5)
    np.testing.assert_array_equal(draw.kept, 1)


def test_gumbel_matching_fills_every_slot() -> None:
    logits = tf.constant(np.random.default_rng(0).normal(size=(50, 6, 3)) * 3, tf.float32)
    for strategy in ("gumbel_matching", "gumbel_matching_iw", "gumbel_matching_sinkhorn"):
        draw = assign(logits, 1.0, strategy, False, seed())
        np.testing.assert_array_equal(np.eye(3)[draw.expert.numpy()].sum(1), 2)
        np.testing.assert_array_equal(draw.kept, 1)
    p, q = softmax(logits.numpy()), np.exp(sinkhorn(tf.nn.log_softmax(logits)).numpy())
    ratio = np.take_along_axis(p / q, draw.expert.numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(draw.importance, ratio, rtol=1e-3)


def estimates(
    logits: np.ndarray,
    losses: np.ndarray,
    draws: int,
    strategy: str,
    temperature: float,
    balanced: bool,
    estimator: str = "reinforce",
) -> tuple[np.ndarray, np.ndarray]:
    """Independent estimates (draws, B, E) of the gradients by logits and by the loss table."""
    shape = (draws, *logits.shape)
    a = tf.constant(np.broadcast_to(logits, shape), tf.float32)
    table = tf.constant(np.broadcast_to(losses, shape), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([a, table])
        draw = assign(a, temperature, strategy, balanced, seed(11))
        one_hot = keras.ops.one_hot(draw.expert, shape[-1])
        rows = keras.ops.sum(one_hot * table, axis=-1)
        total = tf.reduce_sum(sampled_loss(rows, draw.importance, draw.kept, draw.log_prob, 0.7))
    by_logits, by_table = tape.gradient(total, [a, table])
    return by_logits.numpy(), by_table.numpy()


def deviation(
    logits: np.ndarray, losses: np.ndarray, estimate: tuple[np.ndarray, np.ndarray]
) -> float:
    """Largest distance of the mean estimate from the exact gradient, in standard errors.

    J = mean_b sum_j p_bj f_bj, so dJ/da_bj = p_bj (f_bj - sum_i p_bi f_bi) / B and
    dJ/df_bj = p_bj / B.
    """
    p = softmax(logits)
    exact = (p * (losses - (p * losses).sum(-1, keepdims=True)) / len(p), p / len(p))
    worst = 0.0
    for mine, truth in zip(estimate, exact, strict=True):
        error = mine.std(0) / np.sqrt(len(mine))
        worst = max(worst, float((np.abs(mine.mean(0) - truth) / error).max()))
    return worst


PROBLEMS = {
    "two experts": (4, 2, 20_000),
    "two experts, odd batch": (3, 2, 20_000),
    "three experts": (6, 3, 3000),
    "three experts, a dummy row": (5, 3, 3000),
}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(
    ("strategy", "temperature", "balanced"),
    [
        ("none", 1.0, False),
        ("none", 2.0, True),
        ("skip_iw", 1.0, False),
        ("skip_iw", 2.0, False),
        ("skip_iw", 1.0, True),
        ("gumbel_matching_iw", 1.0, False),
        ("gumbel_matching_iw", 2.0, False),
    ],
)
def test_unbiased_gradients(
    problem: str, strategy: str, temperature: float, balanced: bool
) -> None:
    B, E, draws = PROBLEMS[problem]
    rng = np.random.default_rng(B)
    logits = rng.normal(size=(B, E)) + np.linspace(0.8, 0, E)  # preferring the first expert
    losses = rng.uniform(size=(B, E)) * 2
    estimate = estimates(logits, losses, draws, strategy, temperature, balanced)
    # At most 36 numbers in 28 tests: 4.5 standard errors are passed by chance once in 150 runs;
    # the seeds are fixed.
    assert deviation(logits, losses, estimate) < 4.5


@pytest.mark.parametrize("strategy", ["skip", "gumbel_matching"])
def test_biased_strategies_are_found_out(strategy: str) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(4, 2)) + np.array([1.5, 0])
    losses = rng.uniform(size=(4, 2)) * 2
    estimate = estimates(logits, losses, 20_000, strategy, 1.0, False)
    assert deviation(logits, losses, estimate) > 10
