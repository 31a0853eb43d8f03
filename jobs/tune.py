"""The search for better settings: trainings that differ in what the configuration names.

    OUT/study.db          Optuna's study: every trial with its settings and losses by epoch
    OUT/best/             checkpoint of the best trial so far
    OUT/best.yaml         the settings that were searched, as the best trial had them
    OUT/trials.json       all trials, for people and scripts

A search that was cut off goes on in the same folder: finished trials count, and the settings of the
one that was cut off are tried again.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import yaml

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError, DataError, ModelError
from multigate.configs.files import write_json, write_text
from multigate.configs.sections.base import parse
from multigate.configs.sections.tune import Choices, Range
from multigate.jobs.lock import locked
from multigate.jobs.show import say

if TYPE_CHECKING:  # its import takes seconds
    from multigate.model.training.epoch_record import Epoch

STUDY, BEST, SETTINGS, TRIALS = "study.db", "best", "best.yaml", "trials.json"

Finish = Callable[[Path], dict[str, Any]]
"""Called with a finished trial's checkpoint; what it returns is kept with the trial."""


def tune(config: Config, examples: Path, out: Path, finish: Finish | None = None) -> dict[str, Any]:
    """Search, and keep the checkpoint with the lowest validation loss.

    Args:
        config: of the trials, and what to search (`tune`).
        examples: folder of examples.
        out: folder of the study; may hold one that was begun with the same space.
        finish: measures each finished trial; none where None.

    Returns:
        trials (finished), pruned, failed, best: number, val_loss, settings and checkpoint.

    Raises:
        ConfigError: nothing to search, or a setting that the configuration does not have.
        DataError: `out` holds a study of another space or other examples, or another search runs.
        ModelError: no trial could be trained.
    """
    check(config)
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / ".lock", "a search"):
        study = _study(config, examples, out)
        for cut_off in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            study.tell(cut_off.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(cut_off.params)
        while _finished(study) < config.tune.trials:
            _run(study, config, examples, out, finish)
        return _result(study, out)


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
        changed(config, {name: _any(values)})


def changed(config: Config, settings: dict[str, Any]) -> Config:
    """A configuration with other settings.

    Args:
        config: to start from.
        settings: values by place, such as `train.learning_rate`.

    Raises:
        ConfigError: the configuration has no such setting, or does not take the value.
    """
    values = config.model_dump(mode="json")
    for name, value in settings.items():
        *path, last = name.split(".")
        place: Any = values
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise ConfigError(
                f"tune.space: no setting {name!r} in this configuration; expected one such as "
                f"{', '.join(_known(values, path))}"
            )
        place[last] = value
    return parse(Config, values, "tune")


def _known(values: dict[str, Any], path: list[str]) -> list[str]:
    """Some settings near a wrong one."""
    place: Any = values
    prefix = []
    for step in path:
        if not isinstance(place.get(step), dict):
            break
        place = place[step]
        prefix.append(step)
    return [".".join([*prefix, name]) for name in list(place)[:8]]


def _any(values: Range | Choices) -> Any:
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
    study = optuna.create_study(
        storage=f"sqlite:///{out / STUDY}",
        study_name=config.name,
        load_if_exists=True,
        direction="minimize",
        pruner=pruner,
    )
    # A search that goes on must not draw the same settings again.
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


def _run(
    study: optuna.Study, config: Config, examples: Path, out: Path, finish: Finish | None
) -> None:
    """One trial."""
    from multigate.model.training import train

    trial = study.ask()
    settings = {name: _draw(trial, name, values) for name, values in config.tune.space.items()}
    checkpoint = out / f"trial-{trial.number}"
    _remove(checkpoint)

    def report(epoch: "Epoch") -> None:
        trial.report(epoch["val_loss"], epoch["epoch"])
        if trial.should_prune():
            raise optuna.TrialPruned

    text = ", ".join(f"{name} {value}" for name, value in settings.items())
    try:
        trained = train.train(
            changed(config, settings), examples, checkpoint, progress=False, on_epoch=report
        )
    except optuna.TrialPruned:
        _remove(checkpoint)
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        say(f"trial {trial.number}: pruned; {text}")
        return
    except ModelError as error:  # a learning rate that explodes is an answer, too
        _remove(checkpoint)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        study.set_user_attr(f"failed {trial.number}", str(error))
        say(f"trial {trial.number}: {error}; {text}")
        failed = study.get_trials(states=[optuna.trial.TrialState.FAIL])
        if len(failed) >= 5 and not _finished(study):
            raise ModelError(f"{out}: the first {len(failed)} trials failed: {error}") from None
        return
    trial.set_user_attr("epochs", trained["epochs"])
    trial.set_user_attr("best_epoch", trained["best_epoch"])
    if finish is not None:
        trial.set_user_attr("measured", finish(checkpoint))
    study.tell(trial, trained["val_loss"])
    best = study.best_trial.number == trial.number
    if best:
        _publish(checkpoint, out / BEST)
        write_text(out / SETTINGS, yaml.safe_dump(settings, sort_keys=False))
    else:
        _remove(checkpoint)
    write_json(out / TRIALS, [_row(one) for one in study.trials])
    say(
        f"trial {trial.number}: validation loss {trained['val_loss']:.5f}"
        f"{' (best)' if best else ''}; {text}"
    )


def _draw(trial: optuna.Trial, name: str, values: Range | Choices) -> Any:
    if isinstance(values, Choices):
        # Optuna's categories are plain values; lists go through text.
        return json.loads(
            trial.suggest_categorical(name, [json.dumps(one) for one in values.choices])
        )
    if values.whole:
        return trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
    return trial.suggest_float(name, values.low, values.high, log=values.log)


def _remove(checkpoint: Path) -> None:
    """Remove a trial's checkpoint, or what there is of it."""
    for path in (checkpoint, *checkpoint.parent.glob(f".{checkpoint.name}.*")):
        shutil.rmtree(path, ignore_errors=True)


def _publish(checkpoint: Path, best: Path) -> None:
    """Put a checkpoint in the best one's place."""
    before = best.with_name(f".{best.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if best.exists():
        best.rename(before)
    checkpoint.rename(best)
    shutil.rmtree(before, ignore_errors=True)


def _finished(study: optuna.Study) -> int:
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return len(study.get_trials(deepcopy=False, states=states))


def _row(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name.lower(),
        "val_loss": trial.value,
        "settings": trial.params,
        "by_epoch": {str(step): loss for step, loss in trial.intermediate_values.items()},
        **trial.user_attrs,
    }


def _result(study: optuna.Study, out: Path) -> dict[str, Any]:
    state = optuna.trial.TrialState
    best = study.best_trial
    return {
        "trials": _finished(study),
        "pruned": len(study.get_trials(states=[state.PRUNED])),
        "failed": len(study.get_trials(states=[state.FAIL])),
        "best": {
            "number": best.number,
            "val_loss": best.value,
            "settings": yaml.safe_load((out / SETTINGS).read_text(encoding="utf-8")),
            "checkpoint": str(out / BEST),
        },
    }
