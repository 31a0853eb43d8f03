"""What counts as a difference between an export's scores and the Keras model's."""

from typing import Any

import numpy as np
import pytest

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.model.export.parity import relative_differences

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def contract() -> Contract:
    label = {"rule": "column", "column": "click"}
    tasks = {
        "click": {"group": "engagement", "type": "binary", "label": label},
        "dwell": {"group": "engagement", "type": "regression", "label": label},
    }
    features = {
        "user": {"kind": "id", "side": "user"},
        "item": {"kind": "id", "side": "item"},
    }
    values = {"user": "user", "item": "item", "features": features, "tasks": tasks}
    return parse(Contract, values, "contract")


def difference(contract: Contract, click: Any, received: Any) -> np.ndarray:
    """Of these probabilities; the other scores are equal."""
    click, same = np.asarray(click, np.float64), np.linspace(-1, 1, len(click))
    expected = {"click": click, "dwell": same, "score": same}
    return relative_differences(contract, expected, expected | {"click": np.asarray(received)})


def probability(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit))


def test_a_logit_s_rounding_is_no_difference_however_small_the_probability(
    contract: Contract,
) -> None:
    """Ten units in the last place of a float32 sum, at every size of the logit."""
    logit = np.linspace(-30, 30, 601)
    rounded = logit * (1 + 10 * 2**-24)
    assert difference(contract, probability(logit), probability(rounded)).max() < TOLERANCE
    # What one of five trainings of a preset had, and was refused for.
    assert difference(contract, [0.000933011062], [0.000933020434]).max() < TOLERANCE


@pytest.mark.parametrize("p", [1e-6, 1e-3, 0.1, 0.5, 0.9])
def test_a_wrong_score_is_a_difference_at_every_size(contract: Contract, p: float) -> None:
    logit = np.log(p) - np.log1p(-p)
    wrong = probability(np.array([logit + 3e-4]))
    assert difference(contract, [p], wrong).max() > TOLERANCE


def test_a_probability_of_nothing_has_to_be_nothing(contract: Contract) -> None:
    assert difference(contract, [0.0, 1.0], [0.0, 1.0]).tolist() == [0.0, 0.0]
    assert difference(contract, [0.0], [1e-30]).tolist() == [np.inf]
    assert difference(contract, [0.5], [np.nan]).tolist() == [np.inf]


def test_other_scores_near_nothing_are_compared_with_all(contract: Contract) -> None:
    """A sum near zero has the precision of its terms."""
    click, dwell = np.full(3, 0.5), np.array([-10.0, 1e-9, 10.0])
    expected = {"click": click, "dwell": dwell, "score": click}
    assert relative_differences(contract, expected, expected | {"dwell": dwell + 1e-5}).max() < 1e-5
    assert relative_differences(contract, expected, expected | {"dwell": dwell + 1e-3}).max() > 1e-5
