"""The models that a mixture has to beat, as configurations: same features, towers and budget."""

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError
from multigate.configs.sections.gates import Softmax

SHARED_BOTTOM, SINGLE_TASK = "shared_bottom", "single_task"


def baseline(config: Config, name: str) -> Config:
    """Replace a configuration's model by a baseline.

    Args:
        config: of the mixture.
        name: `shared_bottom`: every task's tower reads one expert; or `single_task:TASK`: the
            same, trained on one task's loss alone (the other tasks' towers stay untrained).

    Raises:
        ConfigError: unknown baseline or task.
    """
    kind, _, task = name.partition(":")
    if kind == SHARED_BOTTOM and not task:
        return _shared_bottom(config)
    if kind == SINGLE_TASK and task in config.contract.tasks:
        return _shared_bottom(_only(config, task))
    known = [SHARED_BOTTOM, *(f"{SINGLE_TASK}:{task}" for task in config.contract.tasks)]
    raise ConfigError(f"baseline: expected one of {', '.join(known)}; received {name!r}")


def _shared_bottom(config: Config) -> Config:
    """A softmax over one expert gives it weight 1 for every task."""
    experts = config.model.experts.model_copy(update={"count": 1})
    model = config.model.model_copy(update={"experts": experts, "gate": Softmax(), "gates": {}})
    return config.model_copy(update={"model": model})


def _only(config: Config, task: str) -> Config:
    """The task keeps its weight (1 where it had none), the others lose theirs."""
    tasks = {
        name: one.model_copy(update={"weight": (one.weight or 1.0) if name == task else 0.0})
        for name, one in config.contract.tasks.items()
    }
    contract = config.contract.model_copy(update={"tasks": tasks})
    return config.model_copy(update={"contract": contract})
