"""What each stage of the nightly run reads, does and writes.

stage        reads                               writes
pipeline     the log up to the date              examples/
guards       examples, facts of the last run     facts, in its record; or it stops the run
training     examples, the parent's weights      checkpoint/
export       checkpoint, examples                export/1/
evaluation   export, examples                    report.html, report.json
candidates_* see `jobs.night.candidate_stages`
decision     exports, versions in production     verdict (bless or refuse) and reasons
publication  exports                             the versions in the base folders
"""

import json
import logging
import math
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import RunError
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.configs.sections.run import RunConfig
from multigate.configs.version_folders import Trial
from multigate.jobs.night import candidate_stages, data_guards
from multigate.jobs.night.folder import all_runs, fingerprint_of
from multigate.jobs.night.night import Night
from multigate.jobs.night.records import Decision, GuardsResult, Published, StageResult
from multigate.jobs.publication.base_folder import Lineage
from multigate.serving.versions.folders import CONTRACT, EXTRA

_TOLD = ("cut_off", "rows", "examples")  # of the manifest, in the stage's record

_log = logging.getLogger(__name__)


def pipeline(night: Night) -> StageResult:
    """Make the examples from the log up to the end of the date."""
    from multigate.pipeline import job
    from multigate.pipeline.window import parse_instant

    if night.config.run.daily:
        return _join_days(night)
    config, days = night.config, night.config.run.days
    end = parse_instant(str(night.day + timedelta(days=1)), config.pipeline.log.time_zone)
    span = None if days is None else (end - timedelta(days=days), end)
    if span is None and config.pipeline.cut_off is None:
        options = config.pipeline.model_copy(update={"cut_off": end})
        config = config.model_copy(update={"pipeline": options})
    manifest = job.run(config, night.data, night.folder.examples, span=span)
    values = {key: manifest[key] for key in _TOLD}
    return StageResult(values, _fingerprint_of_examples(night))


def _join_days(night: Night) -> StageResult:
    """Make the day's examples, and join the last days'."""
    assert night.config.run.days is not None  # the configuration has been checked
    manifest, made = night.day_examples.make(
        night.day, night.config.run.days, night.folder.examples
    )
    values = {key: manifest[key] for key in _TOLD}
    values["days_made"] = [day.isoformat() for day in made]
    return StageResult(values, _fingerprint_of_examples(night))


def _fingerprint_of_examples(night: Night) -> str:
    files = ExamplesFolder(night.folder.examples)
    return fingerprint_of(files.manifest, files.contract, files.statistics)


def guards(night: Night) -> StageResult:
    """Stop the run if the examples are not fit to train on, unless the guard is accepted."""
    facts = data_guards.measure(night.config, night.folder.examples, night.day)
    last, last_date = None, None
    for earlier in all_runs(night.runs):
        record = earlier.record("guards")
        if (
            earlier.day < night.day
            and record is not None
            and data_guards.passed(cast(GuardsResult, record["result"]))
        ):
            last, last_date = record["result"]["facts"], earlier.day.isoformat()
    found = data_guards.violations(facts, last, night.config.run.guards)
    stopping = [one.line for one in found if one.guard not in night.accepted]
    if stopping:
        # The log may have changed by the next start.
        if night.config.run.daily:
            made = night.folder.result("pipeline")["days_made"]
            night.day_examples.remove([date.fromisoformat(day) for day in made])
        night.folder.invalidate("pipeline")
        raise RunError("\n".join(stopping))
    accepted = {
        guard: [one.seen for one in found if one.guard == guard] for guard in night.accepted
    }
    result: GuardsResult = {"compared_with": last_date, "facts": facts, "accepted": accepted}
    return StageResult(result)


def training(night: Night) -> StageResult:
    """Train, from scratch or from the parent's weights; go on with a training that was killed."""
    from multigate.model.training import train as trainer
    from multigate.model.training.warm_start import UnfitError

    checkpoint, why = night.starting_point()
    # These sections may change while a training is interrupted.
    others = {"run": RunConfig(), "candidates": CandidatesConfig()}
    config = night.config.model_copy(update=others)

    def train(start: Path | None) -> Mapping[str, Any]:
        folder = night.folder
        return trainer.train(
            config, folder.examples, folder.checkpoint, resume=True, start_from=start
        )

    try:
        result = train(checkpoint)
    except UnfitError as error:  # the section `model` has changed: told before the first step
        night.begin_from_scratch(str(error))
        checkpoint, why = night.starting_point()
        result = train(checkpoint)
    since = night.day.isoformat() if checkpoint is None else night.plan["full_since"]
    keys = (
        *("rows", "epochs", "best_epoch", "val_loss", "monitor", "monitored", "best_epochs"),
        *("warnings", "resumed", "started_from", "lines", "factors"),
    )
    started = {"start": "warm" if checkpoint else "full", "why": why, "full_since": since}
    files = ExamplesFolder(night.folder.checkpoint)
    weights = night.folder.checkpoint / "weights.h5"
    return StageResult(
        started | {key: result[key] for key in keys},
        fingerprint_of(weights, files.contract, files.statistics),
    )


def export(night: Night) -> StageResult:
    """Export a version; a later stage publishes it."""
    from multigate.jobs.export import export as write_version
    from multigate.model.checkpoints.checkpoint import CONFIG

    # Export reads its options from the checkpoint; they may have changed since the training.
    path = night.folder.checkpoint / CONFIG
    stored = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, stored | {"export": night.config.export.model_dump(mode="json")})
    write_version(night.folder.checkpoint, night.folder.examples, night.folder.exports, version=1)
    sparsity = json.loads((night.folder.export / EXTRA / "sparsity.json").read_text("utf-8"))
    return StageResult({"parity": sparsity["parity"]}, fingerprint_of(night.folder.export))


def evaluation(night: Night) -> StageResult:
    """Evaluate the exported version on the test split, as it is served, and write the report."""
    from multigate.model.assessment.assess import assess
    from multigate.model.report import page

    result = assess(night.folder.export, night.folder.examples, night.config.evaluation)
    page.write_report(night.folder.report, result)
    tasks = result["tasks"].items()
    values: dict[str, Any] = {
        "rows": result["rows"],
        "groups": result["groups"],
        "tasks": {name: found["value"] for name, found in tasks},
        "metrics": {name: found["metric"] for name, found in tasks},
    }
    return StageResult(values)


def decision(night: Night) -> StageResult:
    """Decide whether the night's models replace those in production, on the same test rows."""
    from multigate.model.evaluation import comparison

    decided = _decide_on_ranker(night)
    if night.builds_candidates:
        verdict = candidate_stages.judge(night)
        decided["candidates"] = verdict
        if verdict["verdict"] == comparison.REFUSE and verdict["alone"]:
            reasons = [f"candidate model: {reason}" for reason in verdict["reasons"]]
            decided["verdict"] = comparison.REFUSE
            decided["reasons"] = [*decided["reasons"], *reasons, verdict["alone"]]
    elif decided["verdict"] == comparison.BLESS and (
        objection := candidate_stages.objection_to_ranker_alone(night)
    ):
        # The section may have been removed on purpose: report it, do not refuse.
        why = f"{objection}, and this night builds none: servers recommend popular items"
        decided["reasons"] = [*decided["reasons"], why]
    return StageResult(decided)


def _decide_on_ranker(night: Night) -> Decision:
    """Decide whether the night's ranker replaces the one in production."""
    from multigate.model.evaluation import comparison

    production = night.base.production()
    if production is not None:
        lineage = night.base.lineage(production)
        if lineage is not None and date.fromisoformat(lineage["run"]) > night.day:
            reason = f"version {production} in production is of a later date, {lineage['run']}"
            return {"production": production, "verdict": comparison.REFUSE, "reasons": [reason]}
    if objection := _objection_to_trial(night, production):
        return {"production": production, "verdict": comparison.REFUSE, "reasons": [objection]}
    options = night.config.evaluation
    rival = None if production is None else night.base.versions()[production]
    removed = [] if rival is None else _removed_features(night, rival)
    if removed:
        rival = None
    report = json.loads(night.folder.report.with_suffix(".json").read_text(encoding="utf-8"))
    verdict = comparison.compare(
        night.folder.export,
        rival,
        night.folder.examples,
        options.rules,
        replicates=options.replicates,
        seed=options.seed,
        baseline=report["baseline"],
    )
    decided: Decision = {
        "production": production,
        "verdict": verdict["verdict"],
        "reasons": verdict["reasons"],
        "tasks": verdict["tasks"],
        "ranking": verdict["ranking"],
    }
    if "baseline" in verdict:
        decided["baseline"] = verdict["baseline"]
    if removed:
        kept = verdict["reasons"] if verdict["verdict"] == comparison.REFUSE else []
        decided["reasons"] = [
            *kept,
            f"version {production} in production reads {', '.join(removed)}, which this contract "
            "has no more: it was not compared, and the candidate is judged as a first version",
        ]
    if rival is None and verdict["verdict"] == comparison.BLESS:
        objections = objections_to_first_version(report["tasks"])
        if objections:
            decided["verdict"], decided["reasons"] = comparison.REFUSE, objections
    return decided


def _objection_to_trial(night: Night, production: int | None) -> str:
    """Why the night's version cannot be put on trial; "" where it can, or goes into production."""
    if night.config.run.trial is None or production is None:
        return ""
    base, again = night.base, f"multigate run --date {night.day} --force decision"
    tried = base.tried()
    if tried and base.number_of(night.identity) not in tried:
        return f"{base.trial_under_way()}, and {again} then decides on this night's version"
    theirs = FrozenContract.read(base.versions()[production] / CONTRACT).schema_fingerprint
    if theirs != FrozenContract.read(night.folder.export / CONTRACT).schema_fingerprint:
        return (
            f"version {production} in production has another schema, and servers try no version "
            f"beside one of another schema: leave run.trial out and start {again}, which decides "
            "on production"
        )
    return ""


def _removed_features(night: Night, version: Path) -> list[str]:
    """Features that a version reads and the night's examples do not have."""
    read = FrozenContract.read(version / CONTRACT).contract.of_side("user", "item", "context")
    ours = dict(night.config.contract.of_side("user", "item", "context"))
    return [name for name, _ in read if name not in ours]


def objections_to_first_version(tasks: dict[str, Any]) -> list[str]:
    """Reasons not to publish a version that replaces nothing.

    At least one task's loss on the test split must be below that of the best constant score: the
    label's rate for a binary task, its mean or its quantile for a regression task. An AUC above 0.5
    is not enough: half of all random models have one.

    Args:
        tasks: of `model.evaluation.evaluate.task_metrics`.

    Returns:
        The reasons; empty where the version may be published.
    """
    for task in tasks.values():
        if not task["rows"]:
            continue
        if task["type"] == "binary":
            loss, rate = task["log_loss"], task["rate"]
            constant = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        else:
            scale = task.get("trained_on", task)
            if "q" in task:
                loss, constant = scale["pinball"], scale["pinball_of_constant"]
            else:
                loss, constant = scale["mse"], scale["label_std"] ** 2
        if loss < constant:  # false where it is not finite
            return []
    return ["No task's loss on the test split is below that of a constant score."]


def publication(night: Night) -> StageResult:
    """Publish what was blessed, then remove old versions."""
    from multigate.model.evaluation import comparison

    decided = cast(Decision, night.folder.result("decision"))
    if decided["verdict"] != comparison.BLESS:
        return StageResult({"version": None})
    if fingerprint_of(night.folder.export) != night.output("export"):
        raise RunError(
            f"{night.folder.export}: its files changed since they were exported; repeat the run "
            "with --force export"
        )
    trained = night.folder.result("training")
    lineage: Lineage = {
        "run": night.day.isoformat(),
        "candidate": night.identity,
        "parent": night.plan["parent"],
        "compared_with": decided["production"],
        "start": trained["start"],
        "full_since": trained["full_since"],
    }
    folder, replaces = night.folder, decided["production"]
    verdict = decided.get("candidates")
    candidate = None
    if verdict is not None and verdict["verdict"] == comparison.BLESS:
        candidate = candidate_stages.candidate_export(night, verdict)
    shares = None if replaces is None else night.config.run.trial
    if shares is None:
        version, candidates = night.pair.publish(
            folder.export, folder.checkpoint, lineage, replaces, candidate
        )
    else:
        candidates, trial = None, (shares.canary, shares.shadow)
        with night.base.copies(folder.export, folder.checkpoint) as copies:
            version = night.base.publish_copies(copies, lineage, replaces, trial=trial)
    removed, removed_candidates = _remove_old_versions(night)
    published: Published = {"version": version, "removed": removed}
    if shares is not None and version in night.base.tried():
        published["trial"] = Trial(version, *trial).words()
    if verdict is not None:
        published["candidates"] = candidates
        published["removed_candidates"] = removed_candidates
    return StageResult(published)


def _remove_old_versions(night: Night) -> tuple[list[int], list[int]]:
    """As `Pair.remove_old`; if that fails, the night's version is in production all the same."""
    try:
        return night.pair.remove_old(night.config.run.keep_versions)
    except (OSError, RunError) as error:
        _log.warning("%s: old versions are not removed: %s", night.base.root, error)
        return [], []


ACTIONS = {
    "pipeline": pipeline,
    "guards": guards,
    "training": training,
    "export": export,
    "evaluation": evaluation,
    "candidates_training": candidate_stages.training,
    "candidates_export": candidate_stages.export,
    "candidates_report": candidate_stages.report,
    "decision": decision,
    "publication": publication,
}

ON_TENSORFLOW = {"training", "export", "evaluation", "decision", "publication"}
"""Stages that import TensorFlow in this process; those of the candidate model run in others."""
