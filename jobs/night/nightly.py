"""The nightly run: from the log of a date to a version that is in production, or to a refusal.

Started again after a kill, it goes on with the first stage that has no record. A date that is
finished does nothing. Whatever goes wrong, production stays as it is until the last rename.
"""

import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from multigate.candidates.pairs import positive_task
from multigate.configs.config import Config
from multigate.configs.errors import MultigateError, RunError
from multigate.configs.sections.run import ALL_STAGES
from multigate.jobs.lock import locked
from multigate.jobs.night.folder import LOCK, RunFolder, all_runs, now
from multigate.jobs.night.listing import candidates_of
from multigate.jobs.night.night import Night
from multigate.jobs.night.notify import notify
from multigate.jobs.night.stages import ACTIONS, ON_TENSORFLOW
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.show import say

_log = logging.getLogger(__name__)


def run(
    config: Config,
    day: date,
    data: Path | str,
    runs: Path,
    *,
    base: Path | None = None,
    force: str | None = None,
    import_tensorflow: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Do a night's run, or go on with it.

    Args:
        config: the data set's configuration.
        day: whose log is the last to be learnt from; a whole day in the log's time zone.
        data: folder of the log's files, or its address.
        runs: folder of all runs; see `jobs.night.folder`.
        base: the base folder that servers follow; `runs/models/<name>` by default.
        force: the stage to repeat, with all after it.
        import_tensorflow: called before the first stage that uses TensorFlow, to import it without
            its notices.

    Returns:
        date, state (published or refused), version (None where refused), production, start, tasks
        (value by task) and metrics (its name), reasons (of a refusal), seconds (by stage); where
        the candidate model is built too, candidates: see `jobs.night.listing.candidates_of`.

    Raises:
        MultigateError: a stage failed, a guard stopped the run, another run is under way, a stage
            had finished with another configuration, or the candidate model has no task to learn
            from. Production is as it was.
        OSError: the disk is full or read-only. Production is as it was.
    """
    night = Night(config, day, data, runs, Base(base or runs / "models" / config.name))
    stages, stage = config.stages, "lock"
    if force is not None and force not in stages:
        raise RunError(
            f"--force {force}: expected a stage of this configuration's run: {', '.join(stages)}"
        )
    try:
        if night.builds_candidates:
            positive_task(config)  # a mistake there would show when the ranker is trained
        runs.mkdir(parents=True, exist_ok=True)
        with locked(runs / LOCK, f"multigate run --date {day}"):
            try:
                if force is not None:
                    night.folder.forget(force)
                    night.folder.abandon()
                if night.folder.record(stages[-1]) is None:
                    for stage in stages:
                        _do(night, stage, import_tensorflow)
                    _discard_old(night)
                    told = outcome(night)
                    night.folder.set_state(told["state"])
                    _notify(night, told["state"], stages[-1], told["version"], _words(told))
                else:
                    _check_configuration(night)
            except BaseException as error:
                _record_failure(night, stage, error)
                raise
            return outcome(night)
    except BaseException as error:
        event = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        _notify(night, event, stage, None, _reason(error))
        raise


def outcome(night: Night) -> dict[str, Any]:
    """What became of a run that is finished."""
    records = {stage: night.folder.record(stage) or {} for stage in night.config.stages}
    version = records["publication"]["result"]["version"]
    results = {stage: record["result"] for stage, record in records.items()}
    found = {
        "date": night.day.isoformat(),
        "state": "refused" if version is None else "published",
        "version": version,
        "production": night.base.production(),
        "start": results["training"]["why"],
        "tasks": results["evaluation"]["tasks"],
        "metrics": results["evaluation"].get("metrics", {}),
        "reasons": results["decision"]["reasons"],
        "seconds": {stage: record["seconds"] for stage, record in records.items()},
    }
    candidates = candidates_of(results)
    if candidates is not None:
        found["candidates"] = candidates | {"production": night.pair.candidates.production()}
    return found


def _do(night: Night, stage: str, import_tensorflow: Callable[[], None] | None) -> None:
    """Do a stage, unless it is finished."""
    folder = night.folder
    record = folder.record(stage)
    if record is not None and not _overtaken(night, stage, record):
        _check_stage(night, stage, record)
        return
    folder.forget(stage)
    folder.clear(stage)
    plan, identity = night.plan, night.identity()
    if folder.state().get("identity", identity) != identity:
        folder.abandon()  # what was interrupted is not what is to be done now
    folder.set_state("running", stage=stage, identity=identity)
    say(f"{night.day} {stage}")
    if stage in ON_TENSORFLOW and import_tensorflow is not None:
        import_tensorflow()
    began, started = now(), time.monotonic()
    result, output = ACTIONS[stage](night)
    folder.finish(
        stage,
        {
            "stage": stage,
            "inputs": {"configuration": night.read_by(stage), **_before(folder, stage), **plan},
            "output": output,
            "result": result,
            "started": began,
            "seconds": round(time.monotonic() - started, 3),
        },
    )


def _before(folder: RunFolder, stage: str) -> dict[str, str]:
    """Fingerprints of what earlier stages left."""
    earlier = ALL_STAGES[: ALL_STAGES.index(stage)]
    found = {name: (folder.record(name) or {}).get("output", "") for name in earlier}
    return {name: output for name, output in found.items() if output}


def _overtaken(night: Night, stage: str, record: dict[str, Any]) -> bool:
    """Whether a decision was about a version that is no longer in production."""
    if stage != "decision":
        return False
    judged, pair = record["result"].get("candidates"), night.pair
    overtaken = record["result"]["production"] != night.base.production()
    if judged is not None and judged["production"] != pair.candidates.production():
        own = night.identity_of(night.folder.candidates_export)
        overtaken |= pair.candidates.number_of(own) is None
    # By this run's own publication, which was cut off before its record, is not overtaken.
    return overtaken and night.base.number_of(night.candidate) is None


def _check_stage(night: Night, stage: str, record: dict[str, Any]) -> None:
    if record["inputs"]["configuration"] != night.read_by(stage):
        raise RunError(
            f"{night.folder.root}: stage {stage} had finished with another configuration; start "
            f"the run with --force {stage} to repeat it, or with the configuration of then"
        )


def _check_configuration(night: Night) -> None:
    for stage in night.config.stages:
        record = night.folder.record(stage)
        if record is None:
            raise RunError(
                f"{night.folder.root}: the run had finished without stage {stage}; start it with "
                f"--force {stage} to do it, or with the configuration of then"
            )
        _check_stage(night, stage, record)


def _discard_old(night: Night) -> None:
    """Remove the large outputs of old runs; a failure to do so is not the run's."""
    for old in all_runs(night.runs)[: -night.config.run.keep_runs]:
        if old.day != night.day:
            try:
                old.discard()
            except OSError as error:
                _log.warning("%s: not removed: %s", old.root, error)


def _record_failure(night: Night, stage: str, error: BaseException) -> None:
    state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    try:
        identity = night.folder.state().get("identity", "")
        night.folder.set_state(state, stage=stage, message=_reason(error), identity=identity)
    except OSError as second:  # the disk is the reason, perhaps
        _log.error("%s: not recorded: %s", night.folder.root, second)


def _reason(error: BaseException) -> str:
    if isinstance(error, MultigateError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"


def _words(told: dict[str, Any]) -> str:
    if told["state"] != "published":
        return "; ".join(told["reasons"])
    words = f"version {told['version']} is in production"
    candidates = told.get("candidates")
    if candidates is None:
        return words
    if candidates["version"] is None:
        return f"{words}; the candidate model was refused: {'; '.join(candidates['reasons'])}"
    return f"{words}, and candidate version {candidates['version']}"


def _notify(night: Night, event: str, stage: str, version: int | None, message: str) -> None:
    notify(
        night.config.run,
        {
            "event": event,
            "name": night.config.name,
            "date": night.day.isoformat(),
            "stage": stage,
            "message": message,
            "version": version,
            "run": str(night.folder.root),
        },
    )
