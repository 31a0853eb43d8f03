"""Baselines are configurations of the same contract."""

import pytest

from multigate.configs import ConfigError, load
from multigate.configs.baselines import baseline


def test_shared_bottom_has_one_expert_behind_softmax_gates():
    config = load("demo")
    bottom = baseline(config, "shared_bottom")
    assert (bottom.model.experts.count, bottom.model.gate.name) == (1, "softmax")
    assert bottom.model.experts.units == config.model.experts.units
    assert bottom.contract == config.contract


def test_single_task_keeps_one_weight_and_the_schema():
    config = load("demo")
    single = baseline(config, "single_task:dwell")
    weights = {name: task.weight for name, task in single.contract.tasks.items()}
    assert weights.pop("dwell") == config.contract.tasks["dwell"].weight
    assert set(weights.values()) == {0.0}
    assert single.model.experts.count == 1
    assert single.contract.schema_fingerprint() == config.contract.schema_fingerprint()


@pytest.mark.parametrize("name", ["", "shared", "single_task", "single_task:x", "shared_bottom:x"])
def test_unknown_baselines_name_the_known_ones(name):
    with pytest.raises(ConfigError, match="expected one of shared_bottom, single_task:click"):
        baseline(load("demo"), name)
