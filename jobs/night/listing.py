"""The lists of nightly runs and of published versions, for `multigate runs` and `publish`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from rich.table import Table

from multigate.configs.errors import RunError
from multigate.configs.sections.run import ALL_STAGES
from multigate.jobs.lock import is_held
from multigate.jobs.night.folder import LOCK, RunFolder, all_runs
from multigate.jobs.night.records import CandidateSummary, Outcome, RunSummary
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.jobs.publication.trial import last_verdict, trial_of
from multigate.jobs.show import say, show_table
from multigate.model.evaluation.measures.names import title


class ListedVersion(TypedDict):
    """One version of a base folder."""

    version: int
    withdrawn: bool
    run: str | None
    """Date of the run that published it; None where no run did."""
    candidates: NotRequired[int]
    """The candidate version that goes with it; absent where there is none."""


class BaseSummary(TypedDict):
    """What a base folder offers."""

    production: int | None
    rollback: int | None
    """The version that a rollback returns to."""
    versions: list[ListedVersion]
    """Newest first."""
    candidates: NotRequired[int]
    """The candidate version in production; absent where there is none."""
    trial: NotRequired[dict[str, Any]]
    """The version on trial, its percentages and the last verdict; absent where there is none."""


def list_runs(runs: Path) -> list[RunSummary]:
    """What became of every run, oldest first.

    Raises:
        RunError: there is no such folder.
    """
    if not runs.is_dir():
        raise RunError(f"{runs}: no such folder; expected what multigate run --out wrote")
    running = is_held(runs / LOCK)
    return [_summary(run, running) for run in all_runs(runs)]


def _summary(run: RunFolder, running: bool) -> RunSummary:
    records = {stage: run.record(stage) for stage in ALL_STAGES}
    results = {stage: record["result"] if record else {} for stage, record in records.items()}
    state, plan = run.state(), run.plan()
    # A run that says it is running, though nobody holds the lock, was killed.
    killed = state["state"] in ("running", "absent") and not running
    return {
        "date": run.day.isoformat(),
        "state": "killed" if killed else state["state"],
        "stage": state.get("stage"),
        "message": state.get("message", ""),
        "at": state.get("at"),
        "start": results["training"].get("why"),
        "parent": plan["parent"] if plan else None,
        "version": results["publication"].get("version"),
        "seconds": {stage: record["seconds"] for stage, record in records.items() if record},
        "tasks": results["evaluation"].get("tasks", {}),
        "groups": results["evaluation"].get("groups", {}),
        "reasons": results["decision"].get("reasons", []),
        "accepted": results["guards"].get("accepted", {}),
        "candidates": candidate_summary(results["decision"], results["publication"]),
    }


def candidate_summary(
    decision: dict[str, Any], publication: dict[str, Any]
) -> CandidateSummary | None:
    """What became of a run's candidate model.

    Args:
        decision: result of the stage; empty where it has not finished.
        publication: likewise.

    Returns:
        None where no candidate model was judged.
    """
    verdict = decision.get("candidates")
    if verdict is None:
        return None
    return {
        "version": publication.get("candidates"),
        "verdict": verdict["verdict"],
        "k": verdict["k"],
        "recall": verdict.get("recall"),
        "reasons": verdict["reasons"],
    }


def accepted_lines(accepted: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each guard that was lifted, and for each thing that it then let pass.

    Args:
        accepted: as in `records.GuardsResult`.
    """
    return [
        f"accepted {guard}: {one}"
        for guard, seen in accepted.items()
        for one in seen or ["it held all the same"]
    ]


def show_runs(runs: list[RunSummary]) -> None:
    """Print one row per run."""
    table = Table()
    for heading in ("date", "state", "version", "seconds"):
        table.add_column(heading, justify="right" if heading in ("version", "seconds") else "left")
    groups = sorted({group for run in runs for group in run["groups"]})
    for group in groups:
        table.add_column(f"{group}: AUC", justify="right")
    with_candidates = any(run["candidates"] is not None for run in runs)
    if with_candidates:
        table.add_column("candidates", overflow="fold")
    table.add_column("why", overflow="fold")
    for run in runs:
        areas = (run["groups"].get(group, {}).get("auc") for group in groups)
        failed = run["state"] in ("failed", "killed", "interrupted", "running")
        state = f"{run['state']} in {run['stage']}" if failed and run["stage"] else run["state"]
        why = run["message"] or "\n".join(run["reasons"]) or run["start"] or ""
        why = "\n".join([why, *accepted_lines(run["accepted"])]).strip()
        table.add_row(
            run["date"],
            state,
            "" if run["version"] is None else str(run["version"]),
            f"{sum(run['seconds'].values()):.0f}",
            *("" if area is None else f"{area:.4f}" for area in areas),
            *((_candidates_text(run["candidates"]),) if with_candidates else ()),
            why,
        )
    show_table(table)


def _candidates_text(summary: CandidateSummary | None) -> str:
    """The candidate model's version or state, and its recall."""
    if summary is None:
        return ""
    state = f"version {summary['version']}"
    if summary["version"] is None:
        state = "refused" if summary["verdict"] == "refuse" else "not published"
    recall = (summary["recall"] or {}).get("candidate")
    return state if recall is None else f"{state}, recall@{summary['k']} {recall:.4f}"


def show_outcome(result: Outcome) -> None:
    """Print what became of one run."""
    table = Table(title=f"run {result['date']}: {result['state']}", title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("version in production", str(result["production"] or "none"))
    if "trial" in result:
        table.add_row("version put on trial", f"{result['version']}, {result['trial']}")
    table.add_row("training", result["start"])
    for task, value in result["tasks"].items():
        label = f"{task}: {title(result['metrics'].get(task, ''))}".removesuffix(": ")
        table.add_row(label, "not measured" if value is None else f"{value:.4f}")
    for reason in result["reasons"]:
        table.add_row("reason", reason)
    for line in accepted_lines(result["accepted"]):
        table.add_row("guard", line)
    candidates = result.get("candidates")
    if candidates is not None:
        table.add_row("candidate model", _candidates_text(candidates))
        table.add_row("candidates in production", str(candidates.get("production") or "none"))
        for reason in candidates["reasons"]:
            table.add_row("candidate model: reason", reason)
    table.add_row("seconds", f"{sum(result['seconds'].values()):.1f}")
    show_table(table)


def show_base(base: Base) -> BaseSummary:
    """Print and return what a base folder offers.

    Raises:
        RunError: there is no such folder.
    """
    if not base.root.is_dir():
        raise RunError(f"{base.root}: no such folder; expected a model's base folder")
    production, rollback = base.production(), base.rollback_target()
    pair, withdrawn, trial = Pair(base), base.withdrawn(), trial_of(base)
    numbers = sorted({**base.versions(), **withdrawn, **base.tried()}, reverse=True)
    candidates = {number: pair.candidates_of(number) for number in numbers}
    paired = any(value is not None for value in candidates.values())
    table = Table(title=str(base.root), title_justify="left")
    for heading in ("version", "state", "run", "start", *(("candidates",) if paired else ())):
        table.add_column(heading)
    versions: list[ListedVersion] = []
    for number in numbers:
        lineage = base.lineage(number)
        run, start = (lineage.get("run"), lineage.get("start")) if lineage else (None, None)
        states = {production: "in production", rollback: "rollback returns to it"}
        state = "withdrawn" if number in withdrawn else states.get(number, "")
        if trial is not None and number == trial.version:
            state = f"on trial: {trial.words()}"
        version: ListedVersion = {"version": number, "withdrawn": number in withdrawn, "run": run}
        cells = [str(number), state, run or "", start or ""]
        candidate = candidates[number]
        if candidate is not None:
            version["candidates"] = candidate
            cells.append(str(candidate))
        table.add_row(*cells)
        versions.append(version)
    show_table(table)
    summary: BaseSummary = {"production": production, "rollback": rollback, "versions": versions}
    if trial is not None:
        judged = last_verdict(base, trial)
        verdict = None if judged is None else judged["verdict"]
        summary["trial"] = {
            "version": trial.version,
            "canary": trial.canary,
            "shadow": trial.shadow,
            "verdict": verdict,
        }
        say(f"version {trial.version} is on trial; last verdict: {verdict or 'none yet'}")
    serving = pair.candidates.production()
    if serving is not None:
        summary["candidates"] = serving
        if production is not None and candidates[production] != serving:
            # Chosen on its own, or a rollback was killed half way.
            say(f"candidate version {serving} is in production")
    return summary
