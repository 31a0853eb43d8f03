"""The models that a mixture must beat: configurations of ours, and other libraries' by name."""

from importlib import import_module
from importlib.util import find_spec

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError, one_line
from multigate.configs.sections.gates import Softmax

SHARED_BOTTOM, SINGLE_TASK = "shared_bottom", "single_task"
LIGHTGBM = "lightgbm"


def is_installed(name: str) -> bool:
    """Whether the library of a baseline such as `LIGHTGBM` is installed."""
    return find_spec(name) is not None


def require_library(name: str | None) -> None:
    """Check that the library of a baseline such as `LIGHTGBM` can be used; None needs none.

    The library is imported: one that is there and cannot be loaded would else be found out after
    hours of training.

    Raises:
        ConfigError: it is not installed, or cannot be loaded.
    """
    if name is None:
        return
    if not is_installed(name):
        raise ConfigError(
            f"baseline {name}: expected the package {name}, but it is not installed; run "
            "`pip install multigate[baseline]`"
        )
    try:
        import_module(name)
    except (ImportError, OSError) as error:
        reason = one_line(error)
        missing = " (Debian and Ubuntu: `apt-get install libgomp1`)" if "libgomp" in reason else ""
        raise ConfigError(
            f"baseline {name}: the package is installed but cannot be loaded: {reason}; install "
            f"the library that it names{missing}, or install the package anew with "
            f"`pip install --force-reinstall --no-deps {name}`"
        ) from None


def baseline(config: Config, name: str) -> Config:
    """Replace a configuration's model by a baseline.

    Args:
        config: configuration of the mixture.
        name: `shared_bottom`: every task's tower reads one expert; or `single_task:TASK`: the
            same, trained on one task's loss alone (the other tasks' towers stay untrained).

    Raises:
        ConfigError: unknown baseline or task.
    """
    kind, _, task = name.partition(":")
    if kind == SHARED_BOTTOM and not task:
        return _shared_bottom(config)
    if kind == SINGLE_TASK and task in config.contract.tasks:
        return _shared_bottom(_single_task(config, task))
    known = [SHARED_BOTTOM, *(f"{SINGLE_TASK}:{task}" for task in config.contract.tasks)]
    raise ConfigError(f"baseline: expected one of {', '.join(known)}; received {name!r}")


def _shared_bottom(config: Config) -> Config:
    """One expert, to which a softmax gates every task with weight 1."""
    experts = config.model.experts.model_copy(update={"count": 1, "own": 0})
    model = config.model.model_copy(update={"experts": experts, "gate": Softmax(), "gates": {}})
    return config.model_copy(update={"model": model})


def _single_task(config: Config, task: str) -> Config:
    """The task keeps its loss weight (1 where it was 0), the others get 0."""
    tasks = {
        name: one.model_copy(update={"weight": (one.weight or 1.0) if name == task else 0.0})
        for name, one in config.contract.tasks.items()
    }
    contract = config.contract.model_copy(update={"tasks": tasks})
    train = config.train
    if train.monitor in tasks:
        train = train.model_copy(update={"monitor": task})
    return config.model_copy(update={"contract": contract, "train": train})
