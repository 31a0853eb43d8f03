"""The report's section about gates: which task uses which expert, how much, and since when."""

from collections.abc import Mapping, Sequence
from html import escape

from multigate.model.assessment.gates import choosable, expert_names
from multigate.model.assessment.results import Assessment, Stability
from multigate.model.checkpoints.history import Epoch
from multigate.model.evaluation.measures.names import title
from multigate.model.evaluation.results import GateSummary
from multigate.model.report import charts
from multigate.model.report.elements import figure, number, section, sentences, table

_MOST = 16  # experts; with more, the lines of the trajectories cannot be told apart


def gates(found: Assessment) -> str:
    """All about the gates."""
    if not found["gates"]:
        return ""
    every, experts = found["gates"], found["experts"]
    heads = expert_names(every, experts)
    used = {task: gate["experts_per_row"] for task, gate in every.items()}
    weights = charts.heatmap(
        "Mean weight of each expert by task",
        {task: gate["weights"] for task, gate in every.items()},
        heads,
        used,
    )
    load = {task: gate["load"] for task, gate in every.items()}
    load["any task"] = found["union"]
    loads = charts.heatmap("Share of rows that use each expert", load, heads, top=1.0)
    parts = [
        sentences(found["findings"]),
        f'<h3 class="sub">Mean weight, percent</h3>{_card("Weights of the experts", weights)}',
        f'<h3 class="sub">Rows that use the expert, percent</h3>{_card("Load", loads)}',
        _overlap(every),
        _numbers(every),
        _trajectories(found, found["history"]),
        _stability(found["stability"]),
    ]
    return section(
        "gates",
        "Gates",
        "Experts are counted from 1, a task's own under its name. The number at the end of a line "
        "says how many experts the task uses per row; over all tasks, "
        f"{found['experts_per_row']:.2f} of {experts} are evaluated per row. A dashed cell is a "
        "weight of exactly 0 on every row.",
        *parts,
    )


def _card(label: str, content: str) -> str:
    return (
        f'<div class="card scroll" tabindex="0" role="region" aria-label="{label}">{content}</div>'
    )


def _overlap(every: Mapping[str, GateSummary]) -> str:
    if len(every) < 2 or not all("overlap" in gate for gate in every.values()):
        return ""
    rows = {a: [1.0 if a == b else gate["overlap"][b] for b in every] for a, gate in every.items()}
    grid = charts.heatmap("Overlap of the tasks' experts", rows, list(every), top=1.0)
    return (
        '<h3 class="sub">Overlap between tasks: experts that both use over experts that either '
        f"uses (Jaccard), percent, mean over the rows</h3>{_card('Overlap', grid)}"
    )


def _numbers(every: Mapping[str, GateSummary]) -> str:
    rows = [
        [
            escape(task),
            escape(gate["gate"]),
            f"{gate['experts_per_row']:.2f}",
            f"{gate['entropy']:.3f}" if "entropy" in gate else "",
            str(sum(gate["load"][e] == 0 for e in choosable(every, task, len(gate["load"])))),
        ]
        for task, gate in every.items()
    ]
    heads = ("task", "gate", "experts per row", "entropy, nats", "unused experts")
    return table("Gates of the tasks", heads, rows)


def _trajectories(found: Assessment, history: Sequence[Epoch]) -> str:
    """Weights, or loads where weights were not kept, of each expert by epoch."""
    if len(history) < 2 or found["experts"] > _MOST:
        return ""
    parts = []
    kind = "weights" if "weights" in next(iter(history[0]["gates"].values())) else "load"
    for task in found["gates"]:
        if not all(task in epoch["gates"] for epoch in history):
            continue
        by_epoch = [epoch["gates"][task][kind] for epoch in history]
        series = {
            f"of-{e % 8}{' dashed' if e >= 8 else ''} e{e}": [values[e] for values in by_epoch]
            for e in range(found["experts"])
        }
        title = f"{'Weight' if kind == 'weights' else 'Load'} of each expert by epoch, {task}"
        parts.append(figure(task, charts.curves(title, series)))
    what = "Mean weight of each expert" if kind == "weights" else "Rows that use each expert"
    names = "".join(
        f'<span><i class="of-{e % 8}{" dashed" if e >= 8 else ""}"></i>{escape(name)}</span>'
        for e, name in enumerate(expert_names(found["gates"], found["experts"]))
    )
    return (
        f'<h3 class="sub">{what}, by epoch, validation split</h3>'
        f'<div class="legend">{names}</div><div class="charts">{"".join(parts)}</div>'
        if parts
        else ""
    )


def _stability(stable: Stability | None) -> str:
    if stable is None:
        return ""
    rows = [
        [
            escape(name),
            title(task["metric"]),
            number(task["metric"], task["mean"]),
            number(task["metric"], task["deviation"]),
            "" if task["experts_per_row"] is None else f"{task['experts_per_row']:.2f}",
        ]
        for name, task in stable["tasks"].items()
    ]
    heads = ("task", "metric", "mean", "deviation over seeds", "experts per row")
    said = list(stable["differences"])
    if stable["overlap"] is not None:
        said.append(
            f"Which tasks share experts varies by {stable['overlap']:.2f} (mean deviation of "
            "the overlap over the seeds)."
        )
    return (
        f'<h3 class="sub">Over {stable["runs"]} seeds</h3>'
        f"{sentences(said)}{table('Stability over seeds', heads, rows)}"
    )
