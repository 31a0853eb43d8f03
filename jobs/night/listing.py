"""Nightly runs and published versions, as people and programs read them."""

from pathlib import Path
from typing import Any

from rich.table import Table

from multigate.configs.errors import RunError
from multigate.configs.sections.run import ALL_STAGES
from multigate.jobs.lock import is_held
from multigate.jobs.night.folder import LOCK, RunFolder, all_runs
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.jobs.show import say, show_table


def listed(runs: Path) -> list[dict[str, Any]]:
    """What became of every run, oldest first.

    Returns:
        By run: date, state (running, killed, failed, interrupted, published, refused), stage (that
        it is at, or failed in), message, start, parent, version, seconds (by finished stage),
        tasks (metric by task), groups, reasons, candidates (of `candidates_of`).

    Raises:
        RunError: there is no such folder.
    """
    if not runs.is_dir():
        raise RunError(f"{runs}: no such folder; expected what multigate run --out wrote")
    under_way = is_held(runs / LOCK)
    return [_describe(run, under_way) for run in all_runs(runs)]


def _describe(run: RunFolder, under_way: bool) -> dict[str, Any]:
    state, records = run.state(), {stage: run.record(stage) or {} for stage in ALL_STAGES}
    results = {stage: record.get("result", {}) for stage, record in records.items()}
    # A run that says it is running, though nobody holds the lock, was killed.
    killed = state["state"] in ("running", "absent") and not under_way
    return {
        "date": run.day.isoformat(),
        "state": "killed" if killed else state["state"],
        "stage": state.get("stage"),
        "message": state.get("message", ""),
        "at": state.get("at"),
        "start": results["training"].get("why"),
        "parent": (run.plan() or {}).get("parent"),
        "version": results["publication"].get("version"),
        "seconds": {stage: record["seconds"] for stage, record in records.items() if record},
        "tasks": results["evaluation"].get("tasks", {}),
        "groups": results["evaluation"].get("groups", {}),
        "reasons": results["decision"].get("reasons", []),
        "candidates": candidates_of(results),
    }


def candidates_of(results: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """What became of a run's candidate model.

    Args:
        results: of the run's stages; empty ones of those that have not finished.

    Returns:
        verdict, version (None where it was not published), k, recall (of candidate, production and
        popularity), reasons; None where none was judged.
    """
    judged = results["decision"].get("candidates")
    if judged is None:
        return None
    version = results["publication"].get("candidates")
    kept = {key: judged.get(key) for key in ("verdict", "k", "recall", "reasons")}
    return {"version": version} | kept


def show(runs: list[dict[str, Any]]) -> None:
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
        table.add_row(
            run["date"],
            state,
            "" if run["version"] is None else str(run["version"]),
            f"{sum(run['seconds'].values()):.0f}",
            *("" if area is None else f"{area:.4f}" for area in areas),
            *((_candidates_words(run["candidates"]),) if with_candidates else ()),
            why,
        )
    show_table(table)


def _candidates_words(found: dict[str, Any] | None) -> str:
    """Version, or that there is none, and recall."""
    if found is None:
        return ""
    state = f"version {found['version']}"
    if found["version"] is None:
        state = "refused" if found["verdict"] == "refuse" else "not published"
    ours = (found["recall"] or {}).get("candidate")
    return state if ours is None else f"{state}, recall@{found['k']} {ours:.4f}"


def show_outcome(result: dict[str, Any]) -> None:
    """Print what became of one run."""
    table = Table(title=f"run {result['date']}: {result['state']}", title_justify="left")
    table.add_column("")
    table.add_column("", overflow="fold")
    table.add_row("version in production", str(result["production"] or "none"))
    table.add_row("training", result["start"])
    for task, value in result["tasks"].items():
        words = f"{task}: {result['metrics'].get(task, '').upper()}".removesuffix(": ")
        table.add_row(words, "not measured" if value is None else f"{value:.4f}")
    for reason in result["reasons"]:
        table.add_row("reason", reason)
    candidates = result.get("candidates")
    if candidates is not None:
        table.add_row("candidate model", _candidates_words(candidates))
        table.add_row("candidates in production", str(candidates["production"] or "none"))
        for reason in candidates["reasons"]:
            table.add_row("candidate model: reason", reason)
    table.add_row("seconds", f"{sum(result['seconds'].values()):.1f}")
    show_table(table)


def show_base(base: Base) -> dict[str, Any]:
    """Print what a base folder offers.

    Returns:
        production, rollback (None where there is none), versions (number, withdrawn, run, and
        candidates, the candidate version that goes with it, where there is one), newest first;
        where there is a candidate model, candidates: its version in production.

    Raises:
        RunError: there is no such folder.
    """
    if not base.root.is_dir():
        raise RunError(f"{base.root}: no such folder; expected a model's base folder")
    production, rollback = base.production(), base.rollback_target()
    pair, withdrawn = Pair(base), base.withdrawn()
    numbers = sorted({**base.versions(), **withdrawn}, reverse=True)
    candidates = {number: pair.candidates_of(number) for number in numbers}
    paired = any(value is not None for value in candidates.values())
    table = Table(title=str(base.root), title_justify="left")
    for heading in ("version", "state", "run", "start", *(("candidates",) if paired else ())):
        table.add_column(heading)
    versions = []
    for number in numbers:
        lineage = base.lineage(number) or {}
        states = {production: "in production", rollback: "rollback returns to it"}
        state = "withdrawn" if number in withdrawn else states.get(number, "")
        with_it = [] if candidates[number] is None else [candidates[number]]
        row = (state, lineage.get("run", ""), lineage.get("start", ""))
        table.add_row(str(number), *row, *map(str, with_it))
        found = {"version": number, "withdrawn": number in withdrawn, "run": lineage.get("run")}
        versions.append(found | ({"candidates": with_it[0]} if with_it else {}))
    show_table(table)
    told = {"production": production, "rollback": rollback, "versions": versions}
    serving = pair.candidates.production()
    if serving is None:
        return told
    if production is not None and candidates[production] != serving:
        # Chosen on its own, or a rollback was killed half way.
        say(f"candidate version {serving} is in production")
    return told | {"candidates": serving}
