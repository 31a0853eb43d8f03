"""When training stops by itself."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multigate.configs.errors import ModelError
from multigate.configs.sections.model import TrainConfig
from multigate.model.checkpoints import checkpoint
from multigate.model.training import loop, train
from multigate.model.training.guards import WINDOW, Guard

pytestmark = pytest.mark.slow


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


def test_a_density_below_zero_is_no_explosion(heads: Any, tmp_path: Path) -> None:
    """Losses are measured above the lowest value that they can have."""
    config = heads.make_config(train={"epochs": 1, "batch_size": 8})
    found: list[float] = []

    class Watched(Guard):
        def check(self, loss: float, where: str) -> None:
            found.append(loss)
            super().check(loss, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "Guard", Watched)
        train.train(config, heads.examples, tmp_path / "c", progress=False)
    (epoch,) = checkpoint.read_history(tmp_path / "c")
    weights = checkpoint.load(tmp_path / "c").ranker.task_weights
    losses = {name: epoch["tasks"][name]["loss"] for name in weights}
    total = sum(weight * losses[name] for name, weight in weights.items())
    assert found
    # Two of the losses are densities, which can be as low as -5.
    densities = 5.0 * (weights["censored"] + weights["zero_inflated"])
    assert np.mean(found) == pytest.approx(total + epoch["regularisation"] + densities, abs=1.0)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite(loss: float) -> None:
    with pytest.raises(ModelError, match=r"the loss is not finite\. Lower train\.learning_rate"):
        Guard(TrainConfig()).check(loss, "the loss")
