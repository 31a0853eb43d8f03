"""The search for better settings, with Optuna: trains with the values that `tune.space` allows.

    OUT/study.db          Optuna's study: every trial with its settings and its monitor by epoch
    OUT/best/             checkpoint of the best trial so far
    OUT/best.yaml         the configuration with the best trial's settings, which `--config` takes
    OUT/trials.json       all trials, for people and scripts
    OUT/teacher.npz       scores of `train.teacher`, which all trials share

A search that was interrupted goes on in the same folder: finished trials count, and the settings of
the interrupted trial are tried again.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import optuna
from sqlalchemy.exc import OperationalError

from multigate.configs import progress
from multigate.configs.config import Config
from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.files import write_json, write_text
from multigate.configs.lineage import check_contract
from multigate.configs.sections.base import parse
from multigate.configs.sections.tune import Choices, Range
from multigate.configs.written import as_yaml, complete_values
from multigate.jobs.lock import locked
from multigate.jobs.show import say

if TYPE_CHECKING:  # its import takes seconds
    from multigate.model.checkpoints.history import Epoch

STUDY, BEST, BEST_CONFIG, TRIALS = "study.db", "best", "best.yaml", "trials.json"
TEACHER = "teacher.npz"
_FAILED = "failed "  # begins the study's attributes that say why a trial failed

Measure = Callable[[Path], dict[str, Any]]
"""Called with a finished trial's checkpoint; what it returns is kept with the trial."""


class BestTrial(TypedDict):
    """The trial with the best value of `train.monitor`, at the epoch that it kept."""

    number: int
    monitor: str
    monitored: float | None
    val_loss: float | None
    settings: dict[str, Any]
    checkpoint: str
    config: str
    """The file of the configuration with these settings."""


class SearchResult(TypedDict):
    """What `tune` returns."""

    trials: int
    """Finished or pruned."""
    pruned: int
    failed: int
    best: BestTrial


def tune(config: Config, examples: Path, out: Path, measure: Measure | None = None) -> SearchResult:
    """Search, and keep the checkpoint with the best value of `train.monitor`.

    Args:
        config: configuration of the trials, with the space to search (`tune`).
        examples: folder of examples.
        out: folder of the study; may hold an unfinished search of the same space.
        measure: measures each finished trial; None measures nothing more.

    Raises:
        ConfigError: nothing to search, or a setting that the configuration does not have.
        DataError: `out` holds a study of another space or other examples, another search runs, or
            the study cannot be written.
        ModelError: the examples are of another contract, or no trial could be trained.
    """
    check(config)
    check_contract(config.contract, examples)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", "a search"), _plain_failures(out / STUDY):
        study = _study(config, examples, out)
        for interrupted in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            study.tell(interrupted.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(interrupted.params)
            _remove(_checkpoint(out, interrupted.number))
        with progress.bar("tune", config.tune.trials, "trials") as bar:
            while (finished := _count_finished(study)) < config.tune.trials:
                bar.show(finished, _best_so_far(study))
                _run_trial(study, config, examples, out, measure)
        return _result(study, out)


@contextmanager
def _plain_failures(path: Path) -> Iterator[None]:
    """Say in one line that the study's file cannot be read or written."""
    try:
        yield
    except (OperationalError, optuna.exceptions.StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OperationalError) else error
        reason = getattr(cause, "orig", None) or cause
        raise DataError(
            f"{path}: the study could not be written: {reason}; check the disk's space and rights"
        ) from error


def _best_so_far(study: optuna.Study) -> str:
    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    return f"best {study.best_value:.5f}" if done else ""


def check(config: Config) -> None:
    """Check what is to be searched, before anything is trained.

    Raises:
        ConfigError: nothing to search, or a setting that the configuration does not have.
    """
    if not config.tune.space:
        raise ConfigError(
            "tune.space: expected at least one setting to search, such as "
            "train.learning_rate: {low: 0.0001, high: 0.01, log: true}; received none"
        )
    for name, values in config.tune.space.items():
        with_settings(config, {name: _some_value(values)})


def with_settings(config: Config, settings: dict[str, Any], where: str = "tune.space") -> Config:
    """A copy of a configuration with other values of some settings.

    Args:
        config: the configuration to copy.
        settings: values by dotted name, such as `train.learning_rate`.
        where: they come from, for errors.

    Raises:
        ConfigError: the configuration has no such setting, or does not take the value.
    """
    values = complete_values(config)
    for name, value in settings.items():
        *path, last = name.split(".")
        place: Any = values
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise ConfigError(
                f"{where}: no setting {name!r} in this configuration; expected one such as "
                f"{', '.join(_known(values, path))}"
            )
        place[last] = value
    return parse(Config, values, where)


def _known(values: dict[str, Any], path: list[str]) -> list[str]:
    """Some existing settings near one that does not exist."""
    place: Any = values
    prefix = []
    for step in path:
        if not isinstance(place.get(step), dict):
            break
        place = place[step]
        prefix.append(step)
    return [".".join([*prefix, name]) for name in list(place)[:8]]


def _some_value(values: Range | Choices) -> Any:
    if isinstance(values, Choices):
        return values.choices[0]
    return int(values.low) if values.whole else values.low


def _study(config: Config, examples: Path, out: Path) -> optuna.Study:
    options = config.tune
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if options.prune:
        pruner = optuna.pruners.MedianPruner(n_startup_trials=options.prune_after, n_warmup_steps=1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = f"sqlite:///{out / STUDY}"
    # A folder holds one search: under another name, a second one would take `best` from it.
    known = optuna.get_all_study_names(storage)
    study = optuna.create_study(
        storage=storage,
        study_name=known[0] if known else config.name,
        load_if_exists=True,
        direction="minimize" if config.train.monitor == "loss" else "maximize",
        pruner=pruner,
    )
    # Another seed after each start, else the search would draw the same settings again.
    study.sampler = samplers[options.sampler](seed=options.seed + len(study.trials))
    identity = _identity(config, examples)
    before = study.user_attrs.get("identity", identity)
    if before != identity:
        differs = next(key for key in identity if identity[key] != before.get(key))
        raise DataError(
            f"{out}: holds a search with another {differs}; choose another folder, or remove it"
        )
    study.set_user_attr("identity", identity)
    return study


def _identity(config: Config, examples: Path) -> dict[str, Any]:
    """What must be the same for two trials' losses to be comparable."""
    from multigate.configs.contract import FrozenContract
    from multigate.configs.files import ExamplesFolder

    frozen = FrozenContract.read(ExamplesFolder(examples).contract)
    values = config.model_dump(mode="json")
    return {
        "space": values["tune"]["space"],
        "data": frozen.data_fingerprint,
        "contract": values["contract"],
        "model": values["model"],
        "train": values["train"],
    }


def _run_trial(
    study: optuna.Study, config: Config, examples: Path, out: Path, measure: Measure | None
) -> None:
    """Train with one choice of settings and record how it went."""
    from multigate.model.checkpoints import history
    from multigate.model.training import train

    trial = study.ask()
    settings = {name: _draw(trial, name, values) for name, values in config.tune.space.items()}
    checkpoint = _checkpoint(out, trial.number)
    _remove(checkpoint)

    def report(epoch: "Epoch") -> None:
        value = history.monitored(epoch)
        if history.monitor([epoch]) != config.train.monitor:
            raise ConfigError(
                f"train.monitor: {config.train.monitor} cannot be measured, because no task has "
                "enough validation labels of each class; search with train.monitor: loss"
            )
        trial.report(value, epoch["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned

    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    try:
        trained = train.train(
            _together(config, settings),
            examples,
            checkpoint,
            progress=False,
            on_epoch=report,
            teacher_scores=out / TEACHER,
        )
    except optuna.TrialPruned:
        _remove(checkpoint)
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        say(f"trial {trial.number}: pruned; {text}")
        return
    except ModelError as error:  # such as a loss that explodes, or more choices than experts
        _remove(checkpoint)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        study.set_user_attr(f"{_FAILED}{trial.number}", str(error))
        say(f"trial {trial.number}: {error}; {text}")
        failed = _count_failed(study)
        if failed >= 5 and not _count_finished(study):
            raise ModelError(f"{out}: the first {failed} trials failed: {error}") from None
        return
    trial.set_user_attr("epochs", trained["epochs"])
    trial.set_user_attr("best_epoch", trained["best_epoch"])
    if measure is not None:
        trial.set_user_attr("measured", measure(checkpoint))
    trial.set_user_attr("monitor", trained["monitor"])
    trial.set_user_attr("val_loss", trained["val_loss"])
    # The trial is told last: cut off before that, it is trained again.
    best = _is_best(study, trained["monitored"])
    if best:
        _replace_best(checkpoint, out / BEST)
        write_text(out / BEST_CONFIG, _best_config(config, settings, trial.number))
    else:
        _remove(checkpoint)
    study.tell(trial, trained["monitored"])
    write_json(out / TRIALS, [_trial_record(each) for each in study.trials])
    say(
        f"trial {trial.number}: {trained['monitor']} {trained['monitored']:.5f}"
        f"{' (best)' if best else ''}; {text}"
    )


def _together(config: Config, settings: dict[str, Any]) -> Config:
    """The configuration of a trial.

    Raises:
        ModelError: settings exclude one another, each of which the configuration takes alone.
    """
    try:
        return with_settings(config, settings)
    except ConfigError as error:
        raise ModelError(str(error)) from None


def _draw(trial: optuna.Trial, name: str, values: Range | Choices) -> Any:
    if isinstance(values, Choices):
        # Optuna's categories are plain values; lists go through text.
        return json.loads(
            trial.suggest_categorical(name, [json.dumps(value) for value in values.choices])
        )
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _checkpoint(out: Path, number: int) -> Path:
    """The folder of a trial's checkpoint."""
    return out / f"trial-{number}"


def _is_best(study: optuna.Study, value: float) -> bool:
    """Whether a value of the monitor is better than that of all trials before."""
    if not study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        return True
    if study.direction == optuna.study.StudyDirection.MINIMIZE:
        return value < study.best_value
    return value > study.best_value


def _remove(checkpoint: Path) -> None:
    """Remove a trial's checkpoint, complete or not."""
    for path in (checkpoint, *checkpoint.parent.glob(f".{checkpoint.name}.*")):
        shutil.rmtree(path, ignore_errors=True)


def _replace_best(checkpoint: Path, best: Path) -> None:
    """Put a checkpoint in the place of the best one so far."""
    before = best.with_name(f".{best.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if best.exists():
        best.rename(before)
    checkpoint.rename(best)
    shutil.rmtree(before, ignore_errors=True)


def _count_finished(study: optuna.Study) -> int:
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=states))


def _count_failed(study: optuna.Study) -> int:
    """How many trials could not be trained; Optuna's state is that of interrupted ones as well."""
    return sum(name.startswith(_FAILED) for name in study.user_attrs)


def _trial_record(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "monitored": trial.value,
        "settings": _settings(trial),
        "by_epoch": {str(step): value for step, value in trial.intermediate_values.items()},
        **trial.user_attrs,
    }


def _settings(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    """A trial's settings by name; Optuna keeps a choice as the text that `_draw` gave it."""
    categorical = optuna.distributions.CategoricalDistribution
    return {
        name: json.loads(value) if isinstance(trial.distributions[name], categorical) else value
        for name, value in trial.params.items()
    }


def _best_config(config: Config, settings: dict[str, Any], number: int) -> str:
    """The text of `best.yaml`: the search's configuration with a trial's settings."""
    lines = [f"# The search's configuration with the settings of trial {number}:"]
    lines += [f"#   {name}: {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join([*lines, as_yaml(with_settings(config, settings))])


def _result(study: optuna.Study, out: Path) -> SearchResult:
    state = optuna.trial.TrialState
    best = study.best_trial
    return {
        "trials": _count_finished(study),
        "pruned": len(study.get_trials(states=[state.PRUNED])),
        "failed": _count_failed(study),
        "best": {
            "number": best.number,
            "monitor": best.user_attrs["monitor"],
            "monitored": best.value,
            "val_loss": best.user_attrs["val_loss"],
            "settings": _settings(best),
            "checkpoint": str(out / BEST),
            "config": str(out / BEST_CONFIG),
        },
    }
