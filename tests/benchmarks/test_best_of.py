"""The arithmetic of the tuning study: the expected test loss of the best of some trials."""

import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks/papers"))
    return importlib.import_module("tuning")


@pytest.mark.parametrize("best_of", [1, 2, 3])
def test_best_of_is_the_mean_over_all_draws(study: Any, best_of: int) -> None:
    validation, test = np.array([0.3, 0.1, 0.2, 0.4]), np.array([7.0, 2.0, 1.0, 9.0])
    draws = itertools.product(range(4), repeat=best_of)
    chosen = [test[min(draw, key=lambda trial: validation[trial])] for draw in draws]
    assert study.expected(validation, test, best_of) == pytest.approx(np.mean(chosen))


def test_resamples_of_both_gates_are_paired(study: Any) -> None:
    validation, test = np.arange(5.0), np.arange(5.0)
    ours, theirs = study.resample([(validation, test), (validation, test + 1)], 2)
    np.testing.assert_allclose(theirs - ours, 1.0)
    assert ours[0] == pytest.approx(study.expected(validation, test, 2))
    assert ours[1:].std() > 0.1
