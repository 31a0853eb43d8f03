"""Ranking terms, against loops over requests, and what they are for."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from multigate.configs.errors import ConfigError
from multigate.configs.sections.model import Ranking
from multigate.model.ranker.ranking import ranking_term

KINDS = ["listwise", "pairwise"]


def term(kind: str, z: Any, y: Any, requests: Any, w: Any = None, **options: Any) -> float:
    y = np.asarray(y, np.float32)
    known = (~np.isnan(y)).astype(np.float32)
    w = known if w is None else known * np.asarray(w, np.float32)
    arguments = [keras.ops.convert_to_tensor(np.asarray(a)) for a in (np.float32(z), y, w)]
    codes = keras.ops.convert_to_tensor(np.asarray(requests, np.int32))
    options = {"kind": kind} | options
    return float(ranking_term(Ranking.model_validate(options), *arguments, codes))


def expected(kind: str, z: Any, y: Any, requests: Any, w: Any) -> float:
    """The definition, one request at a time, in float64."""
    z, y, requests, w = (np.asarray(a, float) for a in (z, y, requests, w))
    found, weights = [], []
    for request in np.unique(requests):
        rows = (requests == request) & ~np.isnan(y) & (w > 0)
        s, label = z[rows], y[rows] == 1
        if label.all() or not label.any():
            continue
        if kind == "listwise":
            found.append(np.mean(np.log(np.exp(s).sum()) - s[label]))
        else:
            margins = s[label][:, None] - s[~label][None, :]
            found.append(np.mean(np.log1p(np.exp(-margins))))
        weights.append(w[rows].mean())
    return float(np.average(found, weights=weights))


@pytest.mark.parametrize("kind", KINDS)
def test_by_hand(kind: str) -> None:
    # One request: positive at 1, negatives at 0 and 0.  Then one without a positive.
    value = term(kind, [1.0, 0.0, 0.0, 5.0, 2.0], [1, 0, 0, 0, 0], [7, 7, 7, 3, 3])
    by_hand = {"listwise": np.log(np.e + 2) - 1, "pairwise": np.log(1 + np.exp(-1.0))}
    assert value == pytest.approx(by_hand[kind], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("B", [0, 1])
def test_the_last_batch_may_hold_one_row_or_none(kind: str, B: int) -> None:
    options = Ranking.model_validate({"kind": kind})
    graph = tf.function(
        lambda z, y, w, requests: ranking_term(options, z, y, w, requests),
        input_signature=[tf.TensorSpec([None])] * 3 + [tf.TensorSpec([None], tf.int32)],
    )
    assert float(graph(*(tf.ones(B) for _ in range(3)), tf.ones(B, tf.int32))) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_random_requests_with_masks_and_weights(kind: str) -> None:
    rng = np.random.default_rng(0)
    requests = np.repeat(rng.permutation(40), rng.integers(1, 9, 40))
    N = len(requests)
    z, w = 3 * rng.normal(size=N), rng.choice([0.0, 0.5, 1.0, 2.0], N)
    y = rng.choice([0.0, 1.0, np.nan], N)
    value = term(kind, z, y, requests, w)
    assert value == pytest.approx(expected(kind, z, y, requests, w), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_ranked_counts_nothing(kind: str) -> None:
    for y in ([1, 1, 0, 0], [np.nan] * 4, [1, np.nan, 0, np.nan]):
        assert term(kind, [1.0, 2.0, 3.0, 4.0], y, [1, 1, 2, 2]) == 0.0
    # The same number later in the batch is another request: rows of one stand together.
    assert term(kind, [1.0, 2.0, 3.0], [1, 1, 0], [1, 2, 1]) == 0.0


def test_far_neighbours_are_left_out_of_pairs() -> None:
    z, y = [0.0, 5.0, 1.0, 2.0], [1, 0, 0, 0]
    near = term("pairwise", z, y, [1] * 4, neighbours=1)
    assert near == pytest.approx(np.log1p(np.exp(5.0)), rel=1e-6)
    assert term("pairwise", z, y, [1] * 4, neighbours=2) == pytest.approx(
        (np.log1p(np.exp(5.0)) + np.log1p(np.exp(1.0))) / 2, rel=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_and_push_positives_up(kind: str) -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("GradientTape is TensorFlow's")
    import tensorflow as tf

    z = tf.constant([90.0, -90.0, 0.0, 80.0, 3.0])
    y = tf.constant([0.0, 1.0, np.nan, 1.0, 0.0])
    w = tf.cast(~tf.math.is_nan(y), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = ranking_term(Ranking(kind=kind), z, y, w, tf.constant([1, 1, 1, 2, 2]))
    g = tape.gradient(value, z).numpy()
    assert np.isfinite(g).all()
    assert g[0] > 0 > g[1]
    assert g[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_order_within_requests_where_users_dominate_the_pooled_loss(kind: str) -> None:
    """Heavy users see popular items and click less; within a request popular items win."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    requests, size = 400, 8
    mood = rng.normal(size=(requests, 1))
    popularity = 2 * mood + rng.normal(size=(requests, size))
    clicks = rng.random((requests, size)) < 1 / (1 + np.exp(4 * mood - 0.8 * popularity))
    x, y = np.float32(popularity.ravel()), np.float32(clicks.ravel())
    of = np.repeat(np.arange(requests), size).astype(np.int32)

    def slope(weight: float) -> float:
        w, b = tf.Variable(0.0), tf.Variable(0.0)
        for _ in range(100):
            with tf.GradientTape() as tape:
                z = w * x + b
                loss = tf.reduce_mean(tf.nn.softplus(z) - y * z)
                ranking = ranking_term(Ranking(kind=kind), z, y, tf.ones_like(z), of)
                loss += weight * ranking
            for variable, g in zip((w, b), tape.gradient(loss, [w, b]), strict=True):
                variable.assign_sub(0.2 * g)
        return float(w)

    def within(w: float) -> float:
        both = [r for r in range(requests) if 0 < clicks[r].sum() < size]
        return float(np.mean([roc_auc_score(clicks[r], w * popularity[r]) for r in both]))

    plain, ranked = slope(0.0), slope(3.0)
    assert within(plain) < 0.5
    assert within(ranked) > 0.6


def test_ranking_needs_a_binary_task_and_one_process(tiny: Any) -> None:
    with pytest.raises(ConfigError, match="ranking and data_parallel cannot go together"):
        tiny.make_config(train={"ranking": {"kind": "pairwise"}, "data_parallel": True})
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"] = {"dwell": contract["tasks"]["dwell"] | {"when": None}}
    with pytest.raises(ConfigError, match="needs a binary task"):
        tiny.make_config(contract=contract, train={"ranking": {"kind": "pairwise"}})
