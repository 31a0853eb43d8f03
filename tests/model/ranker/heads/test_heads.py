"""Heads against SciPy and arithmetic by hand, and whether each does what it is chosen for."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from scipy import integrate, special, stats

from multigate.configs.errors import ConfigError
from multigate.configs.sections.labels import Task
from multigate.configs.statistics import TaskStatistics
from multigate.model.ranker import scores
from multigate.model.ranker.heads import normal
from multigate.model.ranker.heads.censored import Censored
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.heads.location import Huber, Quantile, Squared
from multigate.model.ranker.heads.ordinal import Ordinal
from multigate.model.ranker.make_heads import make_head
from multigate.model.ranker.towers import Tower


def numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def tensor(values: Any) -> Any:
    return keras.ops.convert_to_tensor(np.asarray(values, np.float32))


def losses(head: Head, outputs: Any, targets: Any) -> np.ndarray:
    return numpy(head.losses(tensor(outputs), tensor(targets)))


def logit(head: Head, outputs: Any) -> np.ndarray:
    return numpy(head.logit(tensor(outputs)))


def task(loss: Any, **fields: Any) -> Task:
    label = {"rule": "column", "column": "dwell"}
    base = {"group": "engagement", "type": "regression", "label": label, "loss": loss}
    return Task.model_validate(base | fields)


def measured(values: np.ndarray, of: Task) -> TaskStatistics:
    """Statistics of labels as training measures them."""
    found = scores.transform(of, values)
    quantiles = np.quantile(found, np.linspace(0, 1, 401), method="inverted_cdf")
    return TaskStatistics(
        count=len(values),
        masked=0,
        mean=float(found.mean()),
        std=float(found.std()),
        quantiles=tuple(float(q) for q in quantiles),
    )


def test_the_logarithm_of_the_normal_distribution() -> None:
    x = np.linspace(-40, 12, 521).astype(np.float32)
    expected = special.log_ndtr(x.astype(float))
    np.testing.assert_allclose(numpy(normal.log_cdf(tensor(x))), expected, rtol=2e-6, atol=1e-7)


def test_huber_is_squared_near_zero_and_linear_far_away() -> None:
    found = losses(Huber(1.5), [[0.0]] * 4, [0.5, -1.5, 3.0, -10.0])
    np.testing.assert_allclose(found, 2 * special.huber(1.5, [0.5, -1.5, 3.0, -10.0]), rtol=1e-6)
    assert found[0] == 0.25


def test_pinball() -> None:
    # Too low by 2 costs 0.9 * 2; too high by 2 costs 0.1 * 2.
    np.testing.assert_allclose(losses(Quantile(0.9), [[1.0], [5.0]], [3.0, 3.0]), [1.8, 0.2])


def test_censored_is_the_likelihood_of_what_was_seen() -> None:
    head = Censored(1.25)
    outputs = np.array([[0.3, 0.2], [0.3, 0.2], [-2.0, -1.0], [-12.0, -0.5], [9.0, 0.0]])
    targets = np.array([0.9, 1.25, 1.25, 1.25, 1.25])
    mean, sigma = outputs[:, 0], np.exp(outputs[:, 1])
    seen = -stats.norm.logpdf(targets, mean, sigma) - 0.5 * np.log(2 * np.pi)
    beyond = -stats.norm.logsf(1.25, mean, sigma)
    expected = np.where(targets < 1.25, seen, beyond)
    np.testing.assert_allclose(losses(head, outputs, targets), expected, rtol=1e-5, atol=1e-6)
    for row in outputs:

        def capped(y: float, row: Any = row) -> float:
            return min(y, 1.25) * float(stats.norm.pdf(y, row[0], np.exp(row[1])))

        width = 12 * np.exp(row[1])
        limits = (row[0] - width, row[0] + width)
        expected_mean = integrate.quad(capped, *limits, points=[1.25], limit=200)[0]
        assert logit(head, [row])[0] == pytest.approx(expected_mean, abs=2e-5)


def test_a_label_at_its_cap_counts_as_censored() -> None:
    """Cap and label go through the same rounding, for each way to name the cap."""
    values = np.array([1.0, 7.3, 61.7, 600.0], np.float32)
    by_clip = task("censored", transform="log1p", clip=(0.0, 600.0))
    by_rule = task(
        "censored", transform="log1p", label={"rule": "dwell", "cap": "10m"}, clip=(0.0, 1e6)
    )
    for one in (by_clip, by_rule):
        statistics = measured(values, one)
        head = make_head(one, statistics)
        targets = scores.targets(one, statistics, values)
        assert isinstance(head, Censored)
        assert (targets >= np.float32(head.cap)).tolist() == [False, False, False, True]


def test_ordinal_by_hand() -> None:
    head = Ordinal(np.array([1.0, 2.0]), np.array([0.5, 1.5, 4.0]), np.array([0.5, 0.2]))
    outputs = [[0.0, -1.0]]
    above = [0.5, 1 / (1 + np.e)]
    assert logit(head, outputs)[0] == pytest.approx(0.5 + above[0] * 1.0 + above[1] * 2.5)
    # A label on a threshold is not above it.
    for label, is_above in ((1.0, (0, 0)), (1.7, (1, 0)), (2.5, (1, 1))):
        expected = -np.mean(
            [np.log(p if y else 1 - p) for y, p in zip(is_above, above, strict=True)]
        )
        assert losses(head, outputs, [label])[0] == pytest.approx(expected)


def test_ordinal_starts_at_the_mean_and_stars_stay_stars() -> None:
    stars = np.repeat(np.arange(1.0, 6.0, dtype=np.float32), [50, 50, 200, 400, 300])
    of = task({"kind": "ordinal", "thresholds": 30})
    statistics = measured(stars, of)
    head = make_head(of, statistics)
    assert isinstance(head, Ordinal)
    in_stars = head.thresholds * statistics.std + statistics.mean
    np.testing.assert_allclose(in_stars, [1, 2, 3, 4], rtol=1e-6)
    assert logit(head, [head.start])[0] == pytest.approx(0.0, abs=0.01)
    sure = logit(
        head, [[9e9 if k < stars_below else -9e9 for k in range(4)] for stars_below in range(5)]
    )
    np.testing.assert_allclose(sure * statistics.std + statistics.mean, [1, 2, 3, 4, 5], rtol=1e-5)
    few = make_head(task({"kind": "ordinal", "thresholds": 3}), statistics)
    assert len(few.start) == 2  # quantiles 3 and 4; the third is 5, which no label exceeds


def test_zero_inflated_is_the_likelihood_of_zero_or_a_log_normal() -> None:
    amounts = np.array([0.0, 0.5, 3.0, 40.0], np.float32)
    of = task("zero_inflated")
    statistics = TaskStatistics(
        count=4, masked=0, mean=10.0, std=17.0, quantiles=(0.0, 0.0, 0.5, 3.0, 5e3)
    )
    head = make_head(of, statistics)
    outputs = np.array([[0.4, 1.2, -0.3]] * 4)
    targets = scores.targets(of, statistics, amounts)
    p, sigma = 1 / (1 + np.exp(-0.4)), np.exp(-0.3)
    safe = np.maximum(amounts, 1e-9).astype(float)
    of_amount = -stats.lognorm.logpdf(safe, sigma, scale=np.exp(1.2))
    of_amount -= np.log(safe) + 0.5 * np.log(2 * np.pi)  # constants
    expected = np.where(amounts > 0, -np.log(p) + of_amount, -np.log(1 - p))
    np.testing.assert_allclose(losses(head, outputs, targets), expected, rtol=1e-4)
    mean = p * stats.lognorm.mean(sigma, scale=np.exp(1.2))
    assert logit(head, outputs)[0] * 17 + 10 == pytest.approx(mean, rel=1e-5)
    # No row exceeds every label.
    assert logit(head, [[50.0, 30.0, 2.0]])[0] * 17 + 10 == pytest.approx(5e3, rel=1e-5)


HEADS = ["squared", "huber", "quantile", "censored", "ordinal", "zero_inflated"]


def head_of(kind: str) -> tuple[Task, TaskStatistics]:
    values = np.random.default_rng(0).gamma(1.0, 30.0, 500).astype(np.float32)
    values = np.where(values < 10, 0, values) if kind == "zero_inflated" else values
    fields = {} if kind == "zero_inflated" else {"transform": "log1p"}
    one = task(kind, clip=(0.0, 90.0), **fields)
    return one, measured(np.minimum(values, 90.0), one)


@pytest.mark.parametrize("kind", HEADS)
def test_extreme_outputs_have_finite_losses_and_gradients(kind: str) -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("GradientTape is TensorFlow's")
    import tensorflow as tf

    one, statistics = head_of(kind)
    head = make_head(one, statistics)
    targets = scores.targets(one, statistics, np.array([0.0, 1.0, 90.0] * 3, np.float32))
    outputs = tf.constant(np.repeat([[-40.0], [0.0], [40.0]], 3, axis=0) * np.ones(len(head.start)))
    outputs = tf.cast(outputs, tf.float32)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(outputs)
        loss, z = head.losses(outputs, tf.constant(targets)), head.logit(outputs)
    for value in (loss, z, tape.gradient(loss, outputs), tape.gradient(z, outputs)):
        assert np.isfinite(numpy(value)).all()


@pytest.mark.parametrize("kind", HEADS)
def test_new_statistics_keep_what_is_predicted(kind: str) -> None:
    """In the label's own units; what a warm start needs."""
    one, old = head_of(kind)
    new = old.model_copy(update={"mean": old.mean + 0.4, "std": old.std * 1.7})
    before, after = make_head(one, old), make_head(one, new)
    outputs = np.random.default_rng(1).normal(0, 0.5, (6, len(before.start))) + before.start
    a, b = after.rescaled(old.std / new.std, (old.mean - new.mean) / new.std)
    found = logit(after, outputs * a + b) * new.std + new.mean
    np.testing.assert_allclose(found, logit(before, outputs) * old.std + old.mean, rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "censored"}, "needs the value at which labels are cut off"),
        ({"loss": "zero_inflated", "transform": "log1p"}, "takes the logarithm itself"),
        ({"loss": "hinge"}, "loss"),
        ({"loss": {"kind": "quantile", "q": 1.0}}, "q: "),
        (
            {"loss": "huber", "type": "binary", "transform": "identity", "at_least": 1},
            "is for regression",
        ),
    ],
)
def test_wrong_losses_are_refused(tiny: Any, fields: Any, message: str) -> None:
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"]["dwell"] = contract["tasks"]["dwell"] | {"transform": "identity"} | fields
    with pytest.raises(ConfigError, match=message):
        tiny.make_config(contract=contract)


def fitted(
    kind: Any, x: np.ndarray, y: np.ndarray, units: Any = (), **fields: Any
) -> Callable[[np.ndarray], np.ndarray]:
    """Train a tower on features (N, d) and labels (N,): a function from features to scores."""
    import tensorflow as tf

    one = task(kind, **fields)
    statistics = measured(y, one)
    head = Squared() if kind is None else make_head(one, statistics)
    tower = Tower(x.shape[1], units, "relu", 0.0, bias=head.start, seed=0)
    targets = tf.constant(scores.targets(one, statistics, y.astype(np.float32)))
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build(tower.trainable_variables)
    inputs = tf.constant(x.astype(np.float32))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(head.losses(tower(inputs), targets))
        optimizer.apply(tape.gradient(loss, tower.trainable_variables))

    for _ in range(500):
        step()
    return lambda new: numpy(scores.score(one, statistics, head.logit(tower(tensor(new))))).astype(
        float
    )


def rmse(predicted: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - truth) ** 2)))


@pytest.mark.slow
def test_censored_beats_squared_where_many_labels_are_at_the_cap() -> None:
    """Effects add up on the uncapped scale; a third of the labels is at the cap."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2600, 4))
    uncapped = x @ [1.0, -0.8, 0.5, 0.3] + 0.7 * rng.normal(size=2600) + 2.0
    y = np.minimum(uncapped, 2.6)
    assert 0.3 < np.mean(y == 2.6) < 0.4
    train, test = slice(600), slice(600, None)
    fields = {"clip": (-100.0, 2.6)}
    squared, censored = (
        rmse(fitted(kind, x[train], y[train], **fields)(x[test]), y[test])
        for kind in ("squared", "censored")
    )
    assert censored < 0.97 * squared


def test_zero_inflated_and_ordinal_beat_squared_on_spending() -> None:
    """Nine of ten spend nothing; who spends and how much depend on different things."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(9000, 3))
    spends = rng.random(9000) < 1 / (1 + np.exp(3.0 - 1.5 * x[:, 0]))
    amount = np.exp(1.0 + 0.8 * x[:, 1] + 0.5 * rng.normal(size=9000))
    y = np.where(spends, amount, 0.0)
    expected = np.exp(1.0 + 0.8 * x[:, 1] + 0.125) / (1 + np.exp(3.0 - 1.5 * x[:, 0]))
    train, test = slice(4000), slice(4000, None)
    found = {
        kind: rmse(fitted(kind, x[train], y[train])(x[test]), expected[test])
        for kind in ("squared", "ordinal", "zero_inflated")
    }
    assert found["zero_inflated"] < 0.5 * found["squared"]
    assert found["ordinal"] < 0.9 * found["squared"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_quantiles_cover_their_share(q: float) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(8000, 1))
    y = np.exp(x[:, 0] + rng.normal(size=8000))  # on the logarithmic scale a line
    predict = fitted(
        {"kind": "quantile", "q": q}, x[:4000], y[:4000], transform="log1p", units=(8,)
    )
    assert np.mean(y[4000:] < predict(x[4000:])) == pytest.approx(q, abs=0.03)


def test_huber_is_not_moved_by_outliers() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3000, 2))
    truth = x @ [1.0, 0.5]
    y = truth + 0.3 * rng.normal(size=3000)
    y[::50] += 60.0
    squared, huber = (
        fitted(kind, x, y)(x) for kind in ("squared", {"kind": "huber", "delta": 0.1})
    )
    assert rmse(huber, truth) < 0.3 * rmse(squared, truth)
