"""What each stage of the nightly run does, what it depends on and what it leaves.

stage        reads                               leaves
pipeline     the log up to the date              examples/
guards       examples, facts of the last run     facts, or the run stops
training     examples, the parent's weights      checkpoint/
export       checkpoint, examples                export/1/
evaluation   checkpoint, examples                report.html, report.json
candidates_* see `jobs.night.candidate_stages`
decision     exports, those in production        bless or refuse, with reasons
publication  exports                             the versions in the base folders
"""

import json
import math
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from multigate.configs.contract import FrozenContract
from multigate.configs.errors import RunError
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.sections.candidates import CandidatesConfig
from multigate.configs.sections.run import RunConfig
from multigate.jobs.night import candidate_stages, data_guards
from multigate.jobs.night.folder import all_runs, content
from multigate.jobs.night.night import Night, Values
from multigate.serving.versions.folders import CONTRACT, EXTRA


def pipeline(night: Night) -> tuple[Values, str]:
    """Make the examples from the log up to the end of the date."""
    from multigate.pipeline import job
    from multigate.pipeline.window import parse_instant

    config, days = night.config, night.config.run.days
    end = parse_instant(str(night.day + timedelta(days=1)), config.pipeline.log.time_zone)
    span = None if days is None else (end - timedelta(days=days), end)
    if span is None and config.pipeline.cut_off is None:
        options = config.pipeline.model_copy(update={"cut_off": end})
        config = config.model_copy(update={"pipeline": options})
    manifest = job.run(config, night.data, night.folder.examples, span=span)
    files = ExamplesFolder(night.folder.examples)
    result = {key: manifest[key] for key in ("cut_off", "rows", "examples")}
    return result, content(files.manifest, files.contract, files.statistics)


def guards(night: Night) -> tuple[Values, str]:
    """Stop the run where the examples are not fit to train on."""
    facts = data_guards.measure(night.config, night.folder.examples, night.day)
    last, of = None, None
    for earlier in all_runs(night.runs):
        record = earlier.record("guards")
        if earlier.day < night.day and record is not None:
            last, of = record["result"]["facts"], earlier.day.isoformat()
    found = data_guards.judge(facts, last, night.config.run.guards)
    if found:
        night.folder.forget("pipeline")  # the log may be another one at the next start
        raise RunError("\n".join(f"guard {line}" for line in found))
    return {"compared_with": of, "facts": facts}, ""


def training(night: Night) -> tuple[Values, str]:
    """Train, from scratch or from the parent's weights; a training that was killed goes on."""
    from multigate.model.training import train as trainer

    checkpoint, why = night.start()
    # These sections may change while a training is interrupted.
    others = {"run": RunConfig(), "candidates": CandidatesConfig()}
    config = night.config.model_copy(update=others)
    result: Mapping[str, Any] = trainer.train(
        config,
        night.folder.examples,
        night.folder.checkpoint,
        resume=True,
        start_from=checkpoint,
    )
    since = night.day.isoformat() if checkpoint is None else night.plan["full_since"]
    keys = ("rows", "epochs", "best_epoch", "val_loss", "resumed", "started_from")
    kept = {key: result[key] for key in keys}
    started = {"start": "warm" if checkpoint else "full", "why": why, "full_since": since}
    files = ExamplesFolder(night.folder.checkpoint)
    weights = night.folder.checkpoint / "weights.h5"
    return started | kept, content(weights, files.contract, files.statistics)


def export(night: Night) -> tuple[Values, str]:
    """Export a version, which is not published yet."""
    from multigate.jobs.export import export as write_version
    from multigate.model.checkpoints.checkpoint import CONFIG

    # Export reads its options from the checkpoint: they may have changed since it was trained.
    path = night.folder.checkpoint / CONFIG
    stored = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, stored | {"export": night.config.export.model_dump(mode="json")})
    write_version(night.folder.checkpoint, night.folder.examples, night.folder.exports, version=1)
    sparsity = json.loads((night.folder.export / EXTRA / "sparsity.json").read_text("utf-8"))
    return {"parity": sparsity["parity"]}, content(night.folder.export)


def evaluation(night: Night) -> tuple[Values, str]:
    """Evaluate on the test split; a page for people."""
    from multigate.model.assessment.assess import assess
    from multigate.model.report import page

    result = assess(night.folder.checkpoint, night.folder.examples, night.config.evaluation)
    page.write_report(night.folder.report, result)
    tasks = result["tasks"].items()
    told: Values = {
        "rows": result["rows"],
        "groups": result["groups"],
        "tasks": {name: found["value"] for name, found in tasks},
        "metrics": {name: found["metric"] for name, found in tasks},
    }
    return told, ""


def decision(night: Night) -> tuple[Values, str]:
    """Decide whether the night's models replace those in production, on the same rows."""
    from multigate.model.evaluation import comparison

    found = _decide(night)
    if night.builds_candidates:
        judged = candidate_stages.judge(night)
        found["candidates"] = judged
        if judged["verdict"] == comparison.REFUSE and judged["alone"]:
            reasons = [f"candidate model: {reason}" for reason in judged["reasons"]]
            found["verdict"] = comparison.REFUSE
            found["reasons"] = [*found["reasons"], *reasons, judged["alone"]]
    elif found["verdict"] == comparison.BLESS and (alone := candidate_stages.alone(night)):
        # Whoever takes the section out may mean it: told, not refused.
        why = f"{alone}, and this night builds none: servers recommend popular items"
        found["reasons"] = [*found["reasons"], why]
    return found, ""


def _decide(night: Night) -> Values:
    """Whether the night's ranker replaces the one in production."""
    from multigate.model.evaluation import comparison

    production = night.base.production()
    found: Values = {"production": production}
    if production is not None:
        lineage = night.base.lineage(production)
        if lineage is not None and date.fromisoformat(lineage["run"]) > night.day:
            reason = f"version {production} in production is of a later date, {lineage['run']}"
            return found | {"verdict": comparison.REFUSE, "reasons": [reason]}
    options = night.config.evaluation
    rival = None if production is None else night.base.versions()[production]
    gone = [] if rival is None else _gone(night, rival)
    if gone:
        rival = None
    verdict = comparison.compare(
        night.folder.export,
        rival,
        night.folder.examples,
        options.rules,
        replicates=options.replicates,
        seed=options.seed,
    )
    found |= {key: verdict[key] for key in ("verdict", "reasons", "tasks", "ranking")}
    if gone:
        kept = found["reasons"] if verdict["verdict"] == comparison.REFUSE else []
        found["reasons"] = [
            *kept,
            f"version {production} in production reads {', '.join(gone)}, which this contract has "
            "no more: it was not compared, and the candidate is judged as a first version",
        ]
    if rival is None and verdict["verdict"] == comparison.BLESS:
        report = night.folder.report.with_suffix(".json")
        reasons = first_version(json.loads(report.read_text(encoding="utf-8"))["tasks"])
        if reasons:
            found |= {"verdict": comparison.REFUSE, "reasons": reasons}
    return found


def _gone(night: Night, version: Path) -> list[str]:
    """Features that a version reads and the night's examples do not have."""
    read = FrozenContract.read(version / CONTRACT).contract.of_side("user", "item", "context")
    ours = dict(night.config.contract.of_side("user", "item", "context"))
    return [name for name, _ in read if name not in ours]


def first_version(tasks: Values) -> list[str]:
    """What speaks against a version that has nothing to replace.

    Some task's loss on the test split has to be below that of the best constant score: the label's
    rate for binary tasks, its mean for regression. Luck alone takes an AUC above 0.5.

    Args:
        tasks: of `model.evaluation.evaluate.task_metrics`.

    Returns:
        The reasons; none where it may be published.
    """
    for task in tasks.values():
        if not task["rows"]:
            continue
        if task["type"] == "binary":
            loss, rate = task["log_loss"], task["rate"]
            constant = -sum(p * math.log(p) for p in (rate, 1 - rate) if p > 0)
        else:
            scale = task.get("trained_on", task)
            loss, constant = scale["mse"], scale["label_std"] ** 2
        if loss < constant:  # false where it is not finite
            return []
    return ["No task's loss on the test split is below that of a constant score."]


def publication(night: Night) -> tuple[Values, str]:
    """Publish what was blessed, then remove what is no longer kept."""
    from multigate.model.evaluation import comparison

    decided = (night.folder.record("decision") or {})["result"]
    if decided["verdict"] != comparison.BLESS:
        return {"version": None}, ""
    if content(night.folder.export) != night.output("export"):
        raise RunError(
            f"{night.folder.export}: its files changed since they were exported; repeat the run "
            "with --force export"
        )
    trained = (night.folder.record("training") or {})["result"]
    lineage = {
        "run": night.day.isoformat(),
        "candidate": night.candidate,
        "parent": night.plan["parent"],
        "compared_with": decided["production"],
        "start": trained["start"],
        "full_since": trained["full_since"],
    }
    folder, over = night.folder, decided["production"]
    judged = decided.get("candidates")
    candidate = None
    if judged is not None and judged["verdict"] == comparison.BLESS:
        candidate = candidate_stages.candidate(night, judged)
    version, candidates = night.pair.publish(
        folder.export, folder.checkpoint, lineage, over, candidate
    )
    removed, removed_candidates = night.pair.tidy(night.config.run.keep_versions)
    found: Values = {"version": version, "removed": removed}
    if judged is not None:
        found |= {"candidates": candidates, "removed_candidates": removed_candidates}
    return found, ""


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
"""Stages that import TensorFlow in this process; those of the candidate model have their own."""
