"""Measures of tasks: by hand, against scikit-learn and SciPy, on resamples too, and edge cases."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn import metrics as sk

from multigate.model.evaluation import metrics
from multigate.model.evaluation.measures import ranks, tasks
from multigate.model.evaluation.measures.bootstrap import Resamples

NAN = np.nan


def drawn(resamples: Resamples, number: int) -> np.ndarray:
    """Index of the rows of one resample, each as often as its user was drawn."""
    counts = resamples.weights[number][resamples.codes].astype(int)
    return np.repeat(np.arange(len(counts)), counts)


def sample(rows: int = 400, users: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, binary labels of which some are masked, and scores with many ties."""
    rng = np.random.default_rng(1)
    user = rng.integers(0, users, rows)
    score = np.round(np.clip(rng.beta(2, 4, rows), 0.02, 0.98), 1)
    label = np.where(rng.random(rows) < 0.2, NAN, rng.random(rows) < 0.3 + 0.4 * score)
    return user, label.astype(np.float32), score


def test_weighted_auc_by_hand() -> None:
    # Users a (a positive at 0.8, a negative at 0.5) and b (a positive at 0.5, a negative at 0.9).
    # Drawn once each: pairs 0.8 > 0.5 right, 0.8 < 0.9 wrong, 0.5 = 0.5 tie, 0.5 < 0.9 wrong:
    # 1.5 / 4.  a twice and b never: 1.  a once and b once again: the same as the sample.
    resamples = Resamples(np.array(["a", "a", "b", "b"]), 0)
    resamples.weights = np.array([[1, 1], [2, 0], [0, 2], [2, 1.0]])
    found = ranks.auc(
        resamples, np.array([1, 0, 1, 0.0]), np.array([0.8, 0.5, 0.5, 0.9]), np.arange(4)
    )
    # a twice, b once: weights 4 for a's own pair, 2, 2 (tie: 1) and 1: (4 + 0 + 1 + 0) / 9.
    np.testing.assert_allclose(found, [1.5 / 4, 1.0, 0.0, 5 / 9])


def test_binary_against_scikit_learn_on_the_sample_and_on_resamples() -> None:
    user, label, score = sample()
    resamples = Resamples(user, 20)
    found = tasks.binary(resamples, label, score)
    for number in (0, 1, 7):
        rows = drawn(resamples, number)
        rows = rows[~np.isnan(label[rows])]
        y, p = label[rows], score[rows]
        assert found["auc"][number] == pytest.approx(sk.roc_auc_score(y, p))
        assert found["log_loss"][number] == pytest.approx(sk.log_loss(y, p))
        rate = y.mean()
        entropy = -rate * np.log(rate) - (1 - rate) * np.log(1 - rate)
        assert found["normalised_entropy"][number] == pytest.approx(sk.log_loss(y, p) / entropy)
        assert found["predicted_over_observed"][number] == pytest.approx(p.mean() / rate)
        # A user who is drawn twice counts twice in the mean over users.
        areas, sizes = [], []
        for one in np.unique(user[rows]):
            mine = user[rows] == one
            if 0 < y[mine].mean() < 1:
                areas.append(sk.roc_auc_score(y[mine], p[mine]))
                sizes.append(mine.sum())
        assert found["gauc"][number] == pytest.approx(np.average(areas, weights=sizes))


def test_the_light_metrics_are_the_same_numbers() -> None:
    user, label, score = sample()
    resamples = Resamples(user, 0)
    light, full = metrics.binary(label, score), tasks.binary(resamples, label, score)
    assert full["auc"][0] == pytest.approx(light["value"])
    assert full["log_loss"][0] == pytest.approx(light["log_loss"])
    light, full = metrics.regression(label, score), tasks.regression(resamples, label, score)
    assert full["rmse"][0] == pytest.approx(light["value"])
    assert full["mae"][0] == pytest.approx(light["mae"])


def test_ece_by_hand() -> None:
    # Two scores, so two bins: 0.2 with labels 0 0 0 1 (rate 0.25), 0.8 with labels 1 1 1 1.
    scores = np.repeat([0.2, 0.8], 4)
    labels = np.array([0, 0, 0, 1, 1, 1, 1, 1.0])
    found = tasks.calibration_error(Resamples(np.arange(8), 0), labels, scores)
    assert found["value"] == pytest.approx((4 * 0.05 + 4 * 0.2) / 8)
    low, high = tasks.reliability(Resamples(np.arange(8), 0), labels, scores)
    assert (low["score"], low["label"]["value"]) == (pytest.approx(0.2), 0.25)
    assert (high["score"], high["label"]["value"]) == (pytest.approx(0.8), 1.0)


def test_ece_of_bins_of_equally_many_rows_by_hand() -> None:
    labels, scores = np.array([0.0, 1.0] * 15), np.repeat(np.arange(15) / 15, 2)
    expected = np.abs(np.arange(15) / 15 - 0.5).mean()  # bins of two rows, of which one is positive
    assert tasks.expected_calibration_error(labels, scores) == pytest.approx(expected)


def test_rows_of_one_score_are_never_divided() -> None:
    """However the rows are ordered: divided by order, sorted labels would give 0.32 here."""
    labels = np.sort(np.random.default_rng(0).random(1000) < 0.2)[::-1].astype(float)
    constant = np.full(1000, labels.mean())
    assert tasks.expected_calibration_error(labels, constant) == pytest.approx(0, abs=1e-12)
    two = np.where(np.arange(1000) % 2, 0.1, 0.3)
    for order in (np.arange(1000), np.arange(1000)[::-1], np.lexsort((labels, two))):
        expected = sum(abs(labels[two == s].mean() - s) / 2 for s in (0.1, 0.3))
        found = tasks.expected_calibration_error(labels[order], two[order])
        assert found == pytest.approx(expected)


def test_regression_against_scikit_learn_and_scipy() -> None:
    rng = np.random.default_rng(2)
    user, y = rng.integers(0, 30, 300), np.round(100 + 5 * rng.normal(size=300), 1)
    p = np.round(0.5 * y + 50 + 3 * rng.normal(size=300), 0)
    resamples = Resamples(user, 5)
    found = tasks.regression(resamples, y, p)
    for number in (0, 3):
        rows = drawn(resamples, number)
        assert found["rmse"][number] == pytest.approx(sk.root_mean_squared_error(y[rows], p[rows]))
        assert found["mae"][number] == pytest.approx(sk.mean_absolute_error(y[rows], p[rows]))
        assert found["r2"][number] == pytest.approx(sk.r2_score(y[rows], p[rows]))
        assert found["spearman"][number] == pytest.approx(spearmanr(y[rows], p[rows]).statistic)
        assert found["bias"][number] == pytest.approx((p[rows] - y[rows]).mean())


def test_quantile_against_scikit_learn_and_scipy() -> None:
    rng = np.random.default_rng(4)
    user, y = rng.integers(0, 30, 300), np.round(100 + 5 * rng.normal(size=300), 0)
    p = np.round(0.5 * y + 53 + 3 * rng.normal(size=300), 0)  # labels at the score are covered
    y[::7] = NAN
    resamples = Resamples(user, 5)
    found = tasks.quantile(resamples, y, p, 0.8)
    assert (y == p).sum() > 5
    for number in (0, 3):
        rows = drawn(resamples, number)
        rows = rows[~np.isnan(y[rows])]
        expected = sk.mean_pinball_loss(y[rows], p[rows], alpha=0.8)
        assert found["pinball"][number] == pytest.approx(expected)
        assert found["coverage"][number] == pytest.approx((y[rows] <= p[rows]).mean())
        assert found["spearman"][number] == pytest.approx(spearmanr(y[rows], p[rows]).statistic)
    nothing = tasks.quantile(resamples, np.full(300, NAN), p, 0.8)
    assert all(np.isnan(values).all() for values in nothing.values())


def test_auc_by_user_by_hand() -> None:
    # User 0: positives 0.8, 0.5, negatives 0.5, 0.1: 3.5 / 4.  User 1 has one class.  User 2: 0.
    users = np.array([0, 1, 0, 0, 1, 0, 2, 2])
    labels = np.array([1, 0, 1, 0, 0, 0, 1, 0.0])
    scores = np.array([0.8, 0.3, 0.5, 0.5, 0.2, 0.1, 0.2, 0.9])
    np.testing.assert_allclose(ranks.auc_by_list(users, labels, scores), [3.5 / 4, NAN, 0.0])
    found = tasks.binary(Resamples(users, 0), labels, scores)
    assert found["gauc"][0] == pytest.approx((4 * 3.5 / 4 + 2 * 0.0) / 6)


def test_auc_within_users_counts_the_users_that_it_is_measured_on() -> None:
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(300), 4)
    few, many = np.zeros(1200), np.zeros(1200)
    few[:16:4] = 1  # of the first four users
    many[:200:4] = 1  # of the first fifty
    scores, resamples = rng.random(1200), Resamples(users, 100, seed=0)
    found = {
        len(np.unique(users[labels > 0])): tasks.summaries(
            resamples, labels, tasks.binary(resamples, labels, scores)
        )
        for labels in (few, many)
    }
    assert (found[4]["gauc"]["rows"], found[4]["auc"]["rows"]) == (16, 1200)
    assert found[4]["gauc"]["value"] is not None
    assert found[4]["gauc"]["low"] is None  # four users say nothing of the others
    assert found[50]["gauc"]["rows"] == 200
    assert found[50]["gauc"]["low"] is not None


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        ([NAN, NAN, NAN], {"auc", "gauc", "log_loss", "predicted_over_observed"}),
        ([1, 1, NAN], {"auc", "gauc", "normalised_entropy"}),
        ([0, 0, 0], {"auc", "gauc", "normalised_entropy", "predicted_over_observed"}),
    ],
)
def test_what_does_not_exist_is_none(labels: list[float], missing: set[str]) -> None:
    resamples = Resamples(np.arange(3), 10)
    values = np.array(labels)
    found = tasks.summaries(
        resamples, values, tasks.binary(resamples, values, np.array([0.2, 0.5, 0.7]))
    )
    without = {name for name, measure in found.items() if measure["value"] is None}
    assert without >= missing
    assert ("log_loss" in without) == ("log_loss" in missing)
    # Each user has one row, so that AUC within users is measured on none.
    rows = dict.fromkeys(found, np.isfinite(values).sum()) | {"gauc": 0}
    assert {name: measure["rows"] for name, measure in found.items()} == rows


def test_regression_without_spread_or_rows() -> None:
    resamples = Resamples(np.arange(4), 10)
    found = tasks.regression(resamples, np.full(4, 3.0), np.array([1, 2, 3, 4.0]))
    assert np.isnan(found["r2"][0])
    assert np.isnan(found["spearman"][0])
    assert found["mae"][0] == pytest.approx(1.0)
    found = tasks.regression(resamples, np.full(4, NAN), np.ones(4))
    assert all(np.isnan(values[0]) for values in found.values())
    assert tasks.calibration_error(resamples, np.full(4, NAN), np.ones(4))["value"] is None
    assert tasks.residuals(np.full(4, NAN), np.ones(4)) == []
    assert tasks.reliability(resamples, np.full(4, NAN), np.ones(4)) == []


@pytest.mark.parametrize("offset", [1e3, 1e6, 1.7e9])
def test_r2_of_labels_far_from_zero(offset: float) -> None:
    """Such as times in seconds: their spread is small beside them, and yet no rounding."""
    rng = np.random.default_rng(3)
    labels = (offset * (1 + 3e-7 * rng.normal(size=100))).astype(np.float32)
    scores = labels.astype(np.float64) + 1e-8 * offset * rng.normal(size=100)
    found = tasks.regression(Resamples(np.arange(100), 5), labels, scores)
    assert found["r2"][0] == pytest.approx(sk.r2_score(labels.astype(np.float64), scores))


def test_a_constant_score_at_the_samples_rate_is_not_known_to_be_calibrated() -> None:
    """Its measured error is 0 by construction, the true one as large as the rate is uncertain."""
    labels = np.random.default_rng(0).random(400) < 0.2
    resamples = Resamples(np.arange(400), 200)
    for score in (labels.mean(), 0.5):
        y = labels.astype(float) if score != 0.5 else np.tile([0.0, 1.0], 200)
        found = tasks.calibration_error(resamples, y, np.full(400, score))
        noise = 1.96 * np.sqrt(score * (1 - score) / 400)
        assert found["value"] == pytest.approx(0, abs=1e-12)
        assert found["low"] == 0
        assert 0.8 * noise < found["high"] < 1.6 * noise
    exact = tasks.calibration_error(resamples, np.ones(400), np.ones(400))
    assert (exact["value"], exact["low"], exact["high"]) == (0, 0, 0)  # nothing varies


def test_residuals_by_hand() -> None:
    labels, scores = np.array([1, 2, 3, 10.0]), np.array([1, 1, 1, 5.0])
    low, high = tasks.residuals(labels, scores)  # label - score: 0, 1, 2 and 5
    assert (low["score"], low["median"], low["rows"]) == (1.0, 1.0, 3)
    assert low["low"] == pytest.approx(0.2)
    assert (high["median"], high["rows"]) == (5.0, 1)
