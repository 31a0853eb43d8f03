"""When training stops by itself."""

import math

import pytest

from multigate.configs.errors import ModelError
from multigate.configs.sections.model import TrainConfig
from multigate.model.training.guards import WINDOW, Guard


def test_an_explosion_is_measured_against_the_running_median() -> None:
    guard = Guard(TrainConfig(explosion=10.0))
    for loss in (5.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.9):  # the median is 1
        guard.check(loss, "step 1: the loss")
    guard.check(10.0, "step 2: the loss")  # exactly ten times is not above it
    message = "step 3: the loss explodes: 10.1, 10.1 times its running median 1; expected at most"
    with pytest.raises(ModelError, match=message):
        guard.check(10.1, "step 3: the loss")
    assert guard.measured[-1] == 10.0  # what was refused does not count


def test_the_first_steps_have_nothing_to_be_compared_with() -> None:
    guard = Guard(TrainConfig(explosion=2.0))
    for loss in (1.0, 100.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1000.0):
        guard.check(loss, "the loss")


def test_the_median_forgets() -> None:
    guard = Guard(TrainConfig(explosion=2.0), [100.0] * WINDOW)
    guard.check(1.0, "the loss")
    for _ in range(WINDOW):
        guard.check(1.0, "the loss")
    with pytest.raises(ModelError, match="explodes: 3"):
        guard.check(3.0, "the loss")


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite(loss: float) -> None:
    with pytest.raises(ModelError, match=r"the loss is not finite\. Lower train\.learning_rate"):
        Guard(TrainConfig()).check(loss, "the loss")
