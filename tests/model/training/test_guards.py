"""When training stops by itself."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.errors import ModelError
from multigate.configs.sections.model import TrainConfig
from multigate.model.checkpoints import checkpoint
from multigate.model.data import examples
from multigate.model.data.encoding import Encoder
from multigate.model.training import loop, train
from multigate.model.training.guards import WINDOW, Guard
from multigate.model.training.state import TrainingState

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


def test_labels_that_begin_late_are_no_explosion(tiny: Any) -> None:
    """Each step of a measurement counts alike, with labels of a task or without."""
    config = tiny.make_config(model={"task_weighting": "fixed"})
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, 3)
    rows = examples.read_split(tiny.examples, "train", encoder).take(slice(2))
    guard = Guard(TrainConfig(explosion=10.0))
    watched: Any = SimpleNamespace(ranker=ranker, guard=guard, state=TrainingState())
    callback = loop._StepCallback(watched)
    logits = {task: keras.ops.zeros(2) for task in config.contract.tasks}
    names = list(logits)
    steps = 12 * Guard.STEPS
    for step in range(1, steps + 1):
        targets = np.full((2, len(logits)), np.nan, np.float32)
        targets[:, names.index("click")] = [0, 1]
        if step > 10 * Guard.STEPS:
            targets[0, names.index("dwell")] = 1.0
        ranker(rows.features)
        ranker.compute_loss(None, targets, logits, training=True)
        found = {name: float(value) for name, value in ranker.get_metrics_result().items()}
        callback._measure(step, found, "the loss")
    weights = ranker.task_weights
    before = weights["click"] * math.log(2) + found["regularisation"]
    expected = [before] * 10 + [before + weights["dwell"]] * 2
    assert list(guard.measured) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_is_not_finite(loss: float) -> None:
    with pytest.raises(ModelError, match=r"the loss is not finite\. Lower train\.learning_rate"):
        Guard(TrainConfig()).check(loss, "the loss")
