"""The baselines as models: what their one expert and their one loss mean."""

from typing import Any

import numpy as np
import pytest

from multigate.configs.baselines import baseline
from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import read_split
from multigate.model.training import train


def numpy(value: Any) -> np.ndarray:
    return np.array(value.__array__())


def test_shared_bottom_gives_its_expert_weight_one_for_every_task(tiny: Any) -> None:
    config = baseline(tiny.make_config(), "shared_bottom")
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    encoded = read_split(tiny.examples, "train", encoder).take(slice(8)).features
    forward = ranker.forward(encoded, training=False)
    for routing in forward.mixed.routings:
        np.testing.assert_array_equal(numpy(routing.weights), np.ones((8, 1), np.float32))
    first, *others = (numpy(output) for output in forward.mixed.outputs)
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["click", "dwell"])
def test_single_task_trains_no_other_tower(tiny: Any, tmp_path: Any, task: str) -> None:
    # Weight decay would shrink the others' towers as well.
    options = tiny.config.train.model_dump() | {"weight_decay": 0.0}
    config = baseline(tiny.make_config(train=options), f"single_task:{task}")
    train.train(config, tiny.examples, tmp_path / "out", progress=False)
    encoder = Encoder.read(tiny.examples)
    seed = config.train.seed
    before = checkpoint.make_ranker(config.contract, config.model, encoder, seed)
    after = checkpoint.load(tmp_path / "out").ranker
    for name in config.contract.tasks:
        changed = any(
            not np.array_equal(numpy(a), numpy(b))
            for a, b in zip(
                before.towers[name].trainable_variables,
                after.towers[name].trainable_variables,
                strict=True,
            )
        )
        assert changed == (name == task), name
