"""The mean of what was learnt on a logarithm."""

import numpy as np
import pytest
from scipy.stats import lognorm

from multigate.configs.sections.base import parse
from multigate.configs.sections.labels import Task
from multigate.model.evaluation.smearing import Smearing, fit_task


def task(**changes: object) -> Task:
    settings = {
        "group": "engagement",
        "type": "regression",
        "label": {"rule": "column", "column": "dwell"},
        "transform": "log1p",
    }
    return parse(Task, settings | changes, "task")


def test_the_smeared_median_is_the_mean() -> None:
    """Of log-normal labels, whose mean scipy knows."""
    rng = np.random.default_rng(0)
    z = rng.choice([1.0, 3.0], 200_000)
    labels = np.exp(z + rng.normal(0, 0.7, len(z))) - 1
    found = fit_task(task(), z, labels)
    assert found is not None
    for median in (1.0, 3.0):
        mean = lognorm(0.7, scale=np.exp(median)).mean() - 1
        (smeared,) = found.scores(task(), np.array([median]))
        assert smeared == pytest.approx(mean, rel=0.01)


def test_low_predictions_that_err_more_are_raised_more() -> None:
    """Their mean is farther above their median: a factor alone would be a compromise."""
    rng = np.random.default_rng(0)
    z = rng.choice([1.0, 3.0], 200_000)
    deviation = np.where(z < 2, 1.2, 0.4)
    labels = np.exp(z + rng.normal(0, deviation)) - 1
    found = fit_task(task(), z, labels)
    assert found is not None
    assert found.power < 0.8
    for median, width in ((1.0, 1.2), (3.0, 0.4)):
        mean = lognorm(width, scale=np.exp(median)).mean() - 1
        (smeared,) = found.scores(task(), np.array([median]))
        assert smeared == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("spread", [0.7, 1.0, 1.4])
def test_how_far_predictions_are_spread_matters_little(spread: float) -> None:
    """A model that is too bold or too timid on the logarithm has the same means."""
    rng = np.random.default_rng(0)
    truth = rng.normal(4, 0.5, 50_000)
    labels = np.exp(truth + rng.normal(0, 0.7, len(truth))) - 1
    predicted = 4 + spread * (truth - 4)
    found = fit_task(task(), predicted, labels)
    assert found is not None
    assert found.power == pytest.approx(1 / spread, rel=0.05)
    mean = np.exp(truth + 0.7**2 / 2) - 1
    np.testing.assert_allclose(1 + found.scores(task(), predicted), 1 + mean, rtol=0.1)
    assert found.scores(task(), predicted).mean() == pytest.approx(labels.mean(), rel=1e-6)


def test_a_power_has_to_help_on_rows_that_it_was_not_fitted_to() -> None:
    """Early labels rise more slowly than predictions, late ones faster: neither is a rule."""
    rng = np.random.default_rng(0)
    z = rng.choice([1.0, 3.0], 20_000)
    times = np.arange(len(z))
    rise = np.where(times < len(z) / 2, 0.4, 1.2)
    labels = np.exp(2 + rise * (z - 2) + rng.normal(0, 0.4, len(z))) - 1
    assert fit_task(task(), z, labels, times) is None  # and a factor alone does not help either
    # Where both halves hold both, their mean is one.
    mixed = fit_task(task(), z, labels, rng.permutation(times))
    assert mixed is not None
    mean_rise = np.log(np.mean(np.exp([0.4, 1.2])) / np.mean(np.exp([-0.4, -1.2]))) / 2
    assert mixed.power == pytest.approx(mean_rise, abs=0.03)


def test_no_smearing_where_it_would_not_help() -> None:
    z = np.array([1.0, 2.0, 3.0])
    assert fit_task(task(), z, np.expm1(z)) is None  # exact already
    wild = np.expm1(np.array([6.0, 2.0, 3.0]))  # one row's residual is no rule
    assert fit_task(task(), z, wild) is None
    assert fit_task(task(), z[:0], z[:0]) is None
    assert fit_task(task(transform="identity"), z, 2 * z) is None


def test_few_labels_have_a_factor_alone() -> None:
    z = np.linspace(1, 3, 19)
    found = fit_task(task(), z, np.expm1(1 + 0.5 * z))
    assert found is not None
    assert found.power == 1
    z = np.linspace(1, 3, 20)
    found = fit_task(task(), z, np.expm1(1 + 0.5 * z))
    assert found is not None
    assert found.power == pytest.approx(0.5, abs=0.01)


def test_smeared_scores_keep_their_limits() -> None:
    z = np.log1p([0.0, 10.0, 90.0])
    limited = task(clip=[0.0, 100.0])
    np.testing.assert_allclose(Smearing(1.0).scores(limited, z), [0.0, 10.0, 90.0])
    np.testing.assert_allclose(Smearing(2.0).scores(limited, z), [1.0, 21.0, 100.0])
    np.testing.assert_allclose(
        Smearing(2.0, 0.5).scores(limited, z), 2 * np.sqrt([1.0, 11.0, 91.0]) - 1
    )
