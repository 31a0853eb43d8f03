"""The nightly run: from the log up to a date to a version in production, or to a refusal.

If it is started again after a kill, it goes on with the first stage that has no record. If the date
is finished, it does nothing. Production changes by the last rename only, whatever fails before.

Luigi, Prefect and Airflow were considered: each brings a scheduler or a service of its own, where a
cron line and a folder of records are enough.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import cast

from multigate.candidates.pairs import positive_task
from multigate.configs import progress
from multigate.configs.baselines import require_library
from multigate.configs.config import Config
from multigate.configs.errors import MultigateError, RunError
from multigate.configs.sections.nearest import did_you_mean
from multigate.configs.sections.run import ALL_STAGES, GUARDS
from multigate.configs.storage import Place
from multigate.jobs.lock import locked
from multigate.jobs.night.folder import LOCK, RunFolder, all_runs, now
from multigate.jobs.night.listing import accepted_lines, candidate_summary
from multigate.jobs.night.night import Night
from multigate.jobs.night.notify import notify
from multigate.jobs.night.records import Decision, Outcome, StageRecord
from multigate.jobs.night.stages import ACTIONS, ON_TENSORFLOW
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.show import say

_log = logging.getLogger(__name__)


def run(
    config: Config,
    day: date,
    data: Place | str,
    runs: Path,
    *,
    base: Path | None = None,
    force: str | None = None,
    accept: Sequence[str] = (),
    import_tensorflow: Callable[[], None] | None = None,
) -> Outcome:
    """Do a night's run, or go on with one that was cut off.

    Args:
        config: the data set's configuration.
        day: the last day of the log to learn from, in the log's time zone.
        data: folder of the log's files, or its address.
        runs: folder of all runs; see `jobs.night.folder`.
        base: the base folder that servers follow; `runs/models/<name>` by default.
        force: the stage to repeat, with all after it.
        accept: guards that do not stop this run (`configs.sections.run.GUARDS`). Once the guards
            have passed, it changes nothing.
        import_tensorflow: called before the first stage that uses TensorFlow, to import it without
            its notices.

    Raises:
        MultigateError: a stage failed, a guard stopped the run, another run is under way, a stage
            had finished with another configuration, or the candidate model has no task to learn
            from. Production has not changed.
        OSError: the disk is full or read-only. Production has not changed, unless the disk failed
            between the last rename and its record; the next start then records it.
    """
    for guard in accept:
        if guard not in GUARDS:
            raise RunError(
                f"--accept {guard}: expected a guard; {did_you_mean(guard, GUARDS)}guards: "
                f"{', '.join(GUARDS)}"
            )
    accepted = tuple(dict.fromkeys(accept))
    night = Night(config, day, data, runs, Base(base or runs / "models" / config.name), accepted)
    stages, stage = config.stages, "lock"
    if force is not None and force not in stages:
        raise RunError(
            f"--force {force}: expected a stage of this configuration's run: {', '.join(stages)}"
        )
    try:
        # Else these mistakes would show after the ranker's training only.
        require_library(config.evaluation.rules.beats)
        if night.builds_candidates:
            positive_task(config)
        runs.mkdir(parents=True, exist_ok=True)
        with locked(runs / LOCK, f"multigate run --date {day}"):
            try:
                if force is not None:
                    night.folder.invalidate(force)
                    night.folder.remove_training()
                if night.folder.record(stages[-1]) is None:
                    with progress.bar("run", len(stages), "stages") as bar:
                        for stage in stages:
                            bar.step(stage)
                            _do(night, stage, import_tensorflow)
                    _remove_old_outputs(night)
                    outcome = outcome_of(night)
                    night.folder.set_state(outcome["state"])
                    event, version = outcome["state"], outcome["version"]
                    _notify(night, event, stages[-1], version, _message(outcome))
                else:
                    _check_configuration(night)
            except BaseException as error:
                _record_failure(night, stage, error)
                raise
            return outcome_of(night)
    except BaseException as error:
        event = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        _notify(night, event, stage, None, _reason(error))
        raise


def outcome_of(night: Night) -> Outcome:
    """What became of a run that is finished."""
    result = night.folder.result
    published = result("publication")
    version = published["version"]
    state = "refused" if version is None else "tried" if "trial" in published else "published"
    records = {stage: night.folder.record(stage) for stage in night.config.stages}
    found: Outcome = {
        "date": night.day.isoformat(),
        "state": state,
        "version": version,
        "production": night.base.production(),
        "start": result("training")["why"],
        "tasks": result("evaluation")["tasks"],
        "metrics": result("evaluation").get("metrics", {}),
        "reasons": result("decision")["reasons"],
        "accepted": result("guards").get("accepted", {}),
        "seconds": {stage: record["seconds"] for stage, record in records.items() if record},
    }
    if "trial" in published:
        found["trial"] = published["trial"]
    candidates = candidate_summary(result("decision"), published)
    if candidates is not None:
        found["candidates"] = {**candidates, "production": night.pair.candidates.production()}
    return found


def _do(night: Night, stage: str, import_tensorflow: Callable[[], None] | None) -> None:
    """Do a stage, unless it is finished."""
    folder = night.folder
    record = folder.record(stage)
    if record is not None and not _is_stale(night, record):
        _check_stage(night, record)
        return
    folder.invalidate(stage)
    folder.remove_output(stage)
    plan, identity = night.plan, night.training_identity()
    if folder.state().get("identity", identity) != identity:
        folder.remove_training()  # the one that was interrupted has another configuration
    folder.set_state("running", stage=stage, identity=identity)
    say(f"{night.day} {stage}")
    if stage in ON_TENSORFLOW and import_tensorflow is not None:
        import_tensorflow()
    began, started = now(), time.monotonic()
    result = ACTIONS[stage](night)
    configuration = {"configuration": night.configuration_of(stage)}
    folder.write_record(
        {
            "stage": stage,
            "inputs": configuration | _outputs_before(folder, stage) | dict(plan),
            "output": result.output,
            "result": dict(result.values),
            "started": began,
            "seconds": round(time.monotonic() - started, 3),
        }
    )


def _outputs_before(folder: RunFolder, stage: str) -> dict[str, str]:
    """Fingerprints of what earlier stages wrote."""
    records = {name: folder.record(name) for name in ALL_STAGES[: ALL_STAGES.index(stage)]}
    outputs = {name: record["output"] for name, record in records.items() if record}
    return {name: output for name, output in outputs.items() if output}


def _is_stale(night: Night, record: StageRecord) -> bool:
    """Whether a decision was about a version that is no longer in production."""
    if record["stage"] != "decision":
        return False
    decided, pair = cast(Decision, record["result"]), night.pair
    stale = decided["production"] != night.base.production()
    verdict = decided.get("candidates")
    if verdict is not None and verdict["production"] != pair.candidates.production():
        own = night.export_identity(night.folder.candidates_export)
        stale |= pair.candidates.number_of(own) is None
    # This run may itself have published, and been killed before it recorded that.
    return stale and night.base.number_of(night.identity) is None


def _check_stage(night: Night, record: StageRecord) -> None:
    """Refuse a record that was made with another configuration."""
    stage = record["stage"]
    if record["inputs"]["configuration"] != night.configuration_of(stage):
        raise RunError(
            f"{night.folder.root}: stage {stage} had finished with another configuration; start "
            f"the run with --force {stage} to repeat it, or with the earlier configuration"
        )


def _check_configuration(night: Night) -> None:
    """Refuse to call a date finished whose stages had another configuration."""
    for stage in night.config.stages:
        record = night.folder.record(stage)
        if record is None:
            raise RunError(
                f"{night.folder.root}: the run had finished without stage {stage}; start it with "
                f"--force {stage} to do it, or with the earlier configuration"
            )
        _check_stage(night, record)


def _remove_old_outputs(night: Night) -> None:
    """Remove the large outputs of old runs; if that fails, the run has still succeeded."""
    runs = all_runs(night.runs)
    days = night.config.run.days
    if night.config.run.daily and days is not None:
        # The examples of the runs that are kept are links to those of their days.
        oldest = runs[-night.config.run.keep_runs :][0].day
        try:
            night.day_examples.remove_old(oldest - timedelta(days=days - 1))
        except OSError as error:
            _log.warning("%s: old days not removed: %s", night.day_examples.root, error)
    for old in runs[: -night.config.run.keep_runs]:
        if old.day != night.day:
            try:
                old.remove_outputs()
            except OSError as error:
                _log.warning("%s: not removed: %s", old.root, error)


def _record_failure(night: Night, stage: str, error: BaseException) -> None:
    state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    try:
        identity = night.folder.state().get("identity", "")
        night.folder.set_state(state, stage=stage, message=_reason(error), identity=identity)
    except OSError as second:  # for example because the disk is full
        _log.error("%s: not recorded: %s", night.folder.root, second)


def _reason(error: BaseException) -> str:
    if isinstance(error, MultigateError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return f"{type(error).__name__}: {error}"


def _message(outcome: Outcome) -> str:
    """The notification's message."""
    accepted = accepted_lines(outcome["accepted"])
    if outcome["state"] == "refused":
        return "; ".join([*outcome["reasons"], *accepted])
    if "trial" in outcome:
        tried = f"version {outcome['version']} is on trial: {outcome['trial']}"
        return "; ".join([tried, *accepted])
    text = "; ".join([f"version {outcome['version']} is in production", *accepted])
    candidates = outcome.get("candidates")
    if candidates is None:
        return text
    if candidates["version"] is None:
        return f"{text}; the candidate model was refused: {'; '.join(candidates['reasons'])}"
    return f"{text}, and candidate version {candidates['version']}"


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
