"""Intervals: what they are made of, and that they cover the truth as often as they say."""

import numpy as np
import pytest

from multigate.model.evaluation.measures import ranking, tasks
from multigate.model.evaluation.measures.bootstrap import LEAST_USERS, Resamples, interval


def test_resamples_draw_whole_users() -> None:
    users = np.array(["b", "a", "b", "c"])
    resamples = Resamples(users, 200, seed=4)
    assert resamples.users == 3
    np.testing.assert_array_equal(resamples.codes, [1, 0, 1, 2])
    np.testing.assert_array_equal(resamples.weights[0], 1)
    np.testing.assert_array_equal(resamples.weights.sum(axis=1), 3)
    assert resamples.weights[1:].mean() == pytest.approx(1)
    again = Resamples(users, 200, seed=4)
    np.testing.assert_array_equal(resamples.weights, again.weights)
    values = np.array([1.0, 10, 100, 1000])
    np.testing.assert_allclose(
        resamples.totals(values),
        resamples.weights @ [10, 101, 1000],
    )
    np.testing.assert_allclose(
        resamples.totals_by_bin(np.array([0, 1]), 2, values[:2], np.array([2, 3])),
        resamples.weights[:, [1, 2]] * values[:2],
    )


def test_interval_by_hand() -> None:
    replicates = np.arange(101.0)  # its 2.5 % quantile is 2.5
    found = interval(np.append(50.0, replicates), 50, rows=7)
    assert (found["value"], found["rows"]) == (50, 7)
    assert (found["low"], found["high"]) == (pytest.approx(2.5), pytest.approx(97.5))
    assert found["error"] == pytest.approx(replicates.std(ddof=1))


def test_no_interval_from_too_few() -> None:
    values = np.append(0.5, np.linspace(0, 1, 100))
    assert interval(values, LEAST_USERS, rows=9)["low"] is not None
    assert interval(values, LEAST_USERS - 1, rows=9)["low"] is None
    assert interval(values, 1, rows=9)["value"] == 0.5
    half = np.where(np.arange(101) % 2, np.nan, 0.5)
    assert interval(half, 99, rows=9)["low"] is None  # most resamples have no value
    assert interval(values * np.nan, 99, rows=9)["value"] is None


def simulate(rng: np.random.Generator, users: int, gap: float) -> tuple[np.ndarray, ...]:
    """Users differ in size, in rate and in how well they are predicted; labels' rate is p + gap."""
    size = rng.integers(2, 20, users)
    user = np.repeat(np.arange(users), size)
    p = np.clip(0.4 + np.repeat(rng.normal(0, 0.12, users), size), 0.15, 0.75)
    p = np.clip(p + rng.normal(0, 0.15, len(p)), 0.05, 0.85)
    return user, (rng.random(len(p)) < p + gap).astype(np.float64), p


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("measure", "gap"),
    [
        ("auc", 0.0),
        ("gauc", 0.0),
        ("log_loss", 0.1),
        ("normalised_entropy", 0.1),
        ("predicted_over_observed", 0.1),
    ],
)
def test_intervals_cover_the_truth(measure: str, gap: float) -> None:
    """Of 95 % intervals from 80 users each, at least 89 % cover; chance allows 5 points less."""
    rng = np.random.default_rng(5)
    many = simulate(rng, 10_000, gap)
    truth = tasks.binary(Resamples(many[0], 0), *many[1:])[measure][0]
    covered = 0
    for seed in range(150):
        user, label, p = simulate(rng, 80, gap)
        resamples = Resamples(user, 100, seed)
        found = tasks.summaries(resamples, label, tasks.binary(resamples, label, p))[measure]
        covered += found["low"] <= truth <= found["high"]
    assert covered >= 0.89 * 150


@pytest.mark.parametrize("gap", [0.0, 0.03, 0.1])
def test_calibration_intervals_cover_the_truth(gap: float) -> None:
    """Also that of a calibrated model, which is 0, although no sample of it has an error of 0."""
    rng = np.random.default_rng(9)
    covered = 0
    for seed in range(150):
        user, label, p = simulate(rng, 80, gap)
        found = tasks.calibration_error(Resamples(user, 100, seed), label, p)
        assert found["value"] > 0
        covered += found["low"] <= gap <= found["high"]
    assert covered >= 0.85 * 150  # the turned test is approximate: about 90 % of so small samples


@pytest.mark.sweep(1)
@pytest.mark.parametrize("measure", ["rmse", "mae", "r2", "spearman"])
def test_regression_intervals_cover_the_truth(measure: str) -> None:
    rng = np.random.default_rng(6)

    def draw(users: int) -> tuple[np.ndarray, ...]:
        user = np.repeat(np.arange(users), 6)
        p = rng.normal(3, 1, len(user))
        return user, p + np.repeat(rng.normal(0, 0.5, users), 6) + rng.normal(0, 0.8, len(user)), p

    many = draw(10_000)
    truth = tasks.regression(Resamples(many[0], 0), *many[1:])[measure][0]
    covered = 0
    for seed in range(150):
        user, label, p = draw(80)
        resamples = Resamples(user, 100, seed)
        found = tasks.summaries(resamples, label, tasks.regression(resamples, label, p))[measure]
        covered += found["low"] <= truth <= found["high"]
    assert covered >= 0.89 * 150


def test_rows_of_a_user_are_not_taken_for_independent() -> None:
    """Each user's rows repeated ten times: the interval stays as wide as it was."""
    rng = np.random.default_rng(7)
    user, label, p = simulate(rng, 80, 0.0)
    widths = []
    for times in (1, 10):
        rows = np.repeat(np.arange(len(user)), times)
        resamples = Resamples(user[rows], 300)
        found = tasks.summaries(
            resamples, label[rows], tasks.binary(resamples, label[rows], p[rows])
        )
        widths.append(found["auc"]["high"] - found["auc"]["low"])
    assert widths[1] == pytest.approx(widths[0], rel=1e-9)


def test_ranking_intervals_come_from_users() -> None:
    rng = np.random.default_rng(8)
    user = np.repeat(np.arange(40), 10)
    lists = np.arange(400) // 5  # two lists of five rows each user
    gain, score = (rng.random(400) < 0.3) * 1.0, rng.random(400)
    resamples = Resamples(user, 200)
    found = ranking.measure_lists(resamples, lists, gain, score)
    summary = ranking.summaries(resamples, lists, gain, found)
    assert summary["of"] == 80
    per_list = ranking.by_list(lists, gain, score)["ndcg@5"]
    judged = np.isfinite(per_list)
    assert summary["lists"] == judged.sum() < 80
    weights = resamples.weights[3][np.arange(80) // 2]
    assert found["ndcg@5"][3] == pytest.approx(
        np.average(per_list[judged], weights=weights[judged])
    )
    ndcg = summary["measures"]["ndcg@5"]
    assert ndcg["low"] < ndcg["value"] < ndcg["high"]
    assert ndcg["rows"] == 5 * judged.sum()
