"""The mean of what was learnt on a logarithm."""

import numpy as np
import pytest
from scipy.stats import lognorm

from multigate.configs.sections.base import parse
from multigate.configs.sections.labels import Task
from multigate.model.evaluation.smearing import smear, smearing_factor


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
    factor = smearing_factor(task(), z, labels)
    assert factor is not None
    for median in (1.0, 3.0):
        mean = lognorm(0.7, scale=np.exp(median)).mean() - 1
        (found,) = smear(task(), np.array([median]), factor)
        assert found == pytest.approx(mean, rel=0.01)


def test_no_factor_where_it_would_not_help() -> None:
    z = np.array([1.0, 2.0, 3.0])
    assert smearing_factor(task(), z, np.expm1(z)) is None  # exact already
    wild = np.expm1(np.array([6.0, 2.0, 3.0]))  # one row's residual is no rule
    assert smearing_factor(task(), z, wild) is None
    assert smearing_factor(task(), z[:0], z[:0]) is None
    assert smearing_factor(task(transform="identity"), z, 2 * z) is None


def test_smeared_scores_keep_their_limits() -> None:
    z = np.log1p([0.0, 10.0, 90.0])
    limited = task(clip=[0.0, 100.0])
    np.testing.assert_allclose(smear(limited, z, 1.0), [0.0, 10.0, 90.0])
    np.testing.assert_allclose(smear(limited, z, 2.0), [1.0, 21.0, 100.0])
