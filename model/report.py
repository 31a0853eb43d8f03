"""The report: one HTML file about one model, which needs no network and no JavaScript."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from configs.config import Config
from configs.files import write_text
from model.report_charts import curves, heatmap
from model.report_style import STYLE

GROUPS = ("engagement", "satisfaction")


def write_report(
    path: Path,
    evaluation: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    config: Config,
    extras: Mapping[str, Any] | None = None,
) -> None:
    """Write the report.

    Args:
        path: the HTML file; its folder exists.
        evaluation: what `evaluation.evaluate` returned.
        history: epochs as `training.train` recorded them; its section is left out without any.
        config: of the run.
        extras: `title`; `created`, a date as text; `best`, best possible value by task (None
            where unknown); `facts`, name -> text, listed at the end.  All optional.
    """
    extras = extras or {}
    best = {name: value for name, value in extras.get("best", {}).items() if value is not None}
    title = extras.get("title") or config.name
    sections = [
        _header(title, evaluation, history, config, extras.get("created")),
        _figures(evaluation, config),
        _tasks(evaluation, best),
        _gates(evaluation),
        _labels(evaluation),
        _losses(evaluation, history),
        _footer(config, extras.get("facts", {})),
    ]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: evaluation</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )
    write_text(path, page)


def _header(
    title: str,
    evaluation: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    config: Config,
    created: str | None,
) -> str:
    trained = ""
    if history:
        best = min(history, key=lambda epoch: epoch["val_loss"])["epoch"]
        trained = f" Trained for {_count(len(history), 'epoch')}; epoch {best} was kept."
    experts = config.model.experts
    names = {gate["gate"] for gate in evaluation["gates"].values()}
    return (
        f'<p class="eyebrow">{escape(" · ".join(filter(None, ["Evaluation", created])))}</p>'
        f"<h1>{escape(title)}</h1>"
        f'<p class="lead">{evaluation["rows"]:,} rows of the {escape(evaluation["split"])} split, '
        f"{_count(len(evaluation['tasks']), 'task')}. {_count(experts.count, 'shared expert')} of "
        f"{' and '.join(map(str, experts.units))} units behind {escape(', '.join(sorted(names)))} "
        f"gates.{trained}</p>"
    )


def _figures(evaluation: Mapping[str, Any], config: Config) -> str:
    figures = []
    for name, group in sorted(evaluation["groups"].items()):
        if group["auc"] is not None:
            figures.append((f"{group['auc']:.4f}", f"mean AUC, {name}"))
        elif group["relative_rmse"] is not None:
            figures.append((f"{group['relative_rmse']:.3f}", f"RMSE over deviation, {name}"))
    figures.append((f"{evaluation['loss']:.4f}", "weighted loss over the tasks"))
    figures.append(
        (
            f"{evaluation['experts_per_row']:.2f}",
            f"experts evaluated per row, of {config.model.experts.count}",
        )
    )
    cells = "".join(f"<div><strong>{v}</strong><span>{escape(t)}</span></div>" for v, t in figures)
    return f'<div class="card figures">{cells}</div>'


def _tasks(evaluation: Mapping[str, Any], best: Mapping[str, float]) -> str:
    legend = '<span><i class="tick"></i>best possible value</span>' if best else ""
    parts = [
        "<h2>Tasks</h2>",
        '<p class="note">AUC bars run from 0.5, chance, to 1. RMSE is in the label\'s own units; '
        "its bars run from 0 to the label's standard deviation, the error of always predicting "
        "the mean, and shorter is better. Rows whose label is masked take no part.</p>",
        f'<div class="legend">{legend}</div>' if legend else "",
    ]
    for group in GROUPS:
        members = {n: t for n, t in evaluation["tasks"].items() if t["group"] == group}
        if not members:
            continue
        rows = "".join(_task(name, task, best.get(name)) for name, task in members.items())
        parts.append(
            f'<section class="card group {group}"><header><h3>{group.capitalize()}</h3>'
            f"<span>{escape(_summary(evaluation['groups'][group]))}</span></header>{rows}</section>"
        )
    return "".join(parts)


def _summary(group: Mapping[str, Any]) -> str:
    parts = []
    if group["auc"] is not None:
        parts.append(f"mean AUC {group['auc']:.4f}")
    if group["relative_rmse"] is not None:
        parts.append(f"RMSE {group['relative_rmse']:.3f} of the deviation")
    if group["measured"] < group["tasks"]:
        parts.append(f"{group['tasks'] - group['measured']} of {group['tasks']} not measurable")
    return ", ".join(parts)


def _task(name: str, task: Mapping[str, Any], best: float | None) -> str:
    facts = [_count(task["rows"], "row")]
    if task["type"] == "binary":
        if task["rate"] is not None:
            facts.append(f"{_percent(task['rate'])} positive")
            facts.append(f"log loss {task['log_loss']:.4f}")
    elif task["value"] is not None:
        facts.append(f"MAE {task['mae']:.4g}")
        facts.append(f"MSE {task['mse']:.4g}")
        if scale := task.get("trained_on"):
            facts.append(f"{scale['scale']}: RMSE {scale['rmse']:.4g}, SD {scale['label_std']:.4g}")
    if best is not None:
        facts.append(f"best {best:.4f}")
    metric = task["metric"].upper()
    head = f'<span class="name">{escape(name)}</span><span class="metric">{metric}</span>'
    tail = '<span class="facts">' + " ".join(f"<span>{escape(f)}</span>" for f in facts) + "</span>"
    if task["value"] is None:
        reason = f'<span class="none">{escape(task["reason"])}</span>'
        return f'<div class="task">{head}{reason}{tail}</div>'
    tick = "" if best is None else f'<b style="left: {_share(task, best):.1f}%"></b>'
    return (
        f'<div class="task">{head}<span class="value">{_value(task)}</span>'
        f'<div class="bar"><i style="width: {_share(task, task["value"]):.1f}%"></i>{tick}</div>'
        f"{tail}</div>"
    )


def _value(task: Mapping[str, Any]) -> str:
    return f"{task['value']:.4f}" if task["type"] == "binary" else f"{task['value']:.4g}"


def _share(task: Mapping[str, Any], value: float) -> float:
    """Length of a value's bar, in percent."""
    if task["type"] == "binary":
        share = (value - 0.5) / 0.5
    else:
        share = value / task["label_std"] if task["label_std"] else 1.0
    return 100 * min(max(share, 0.0), 1.0)


def _losses(evaluation: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return ""
    best = min(range(len(history)), key=lambda i: history[i]["val_loss"])
    charts = [_chart("All tasks, weighted", "", history, best, None)]
    for name, task in evaluation["tasks"].items():
        charts.append(_chart(name, f"--hue: var(--{task['group']})", history, best, name))
    return (
        "<h2>Training</h2>"
        '<p class="note">Loss by epoch. Training includes dropout and the gates\' noise, and in '
        "the weighted sum their regularisation; validation is the model as it is served. The dot "
        "is the epoch that was kept.</p>"
        '<div class="legend"><span><i class="train"></i>training</span>'
        "<span><i></i>validation</span></div>"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _chart(
    title: str, style: str, history: Sequence[Mapping[str, Any]], best: int, task: str | None
) -> str:
    entries = [epoch["tasks"][task] if task else epoch for epoch in history]
    svg = curves(
        f"Loss of {title}", [e["loss"] for e in entries], [e["val_loss"] for e in entries], best
    )
    return f'<div class="card chart" style="{style}"><h3>{escape(title)}</h3>{svg}</div>'


def _gates(evaluation: Mapping[str, Any]) -> str:
    gates = evaluation["gates"]
    experts = evaluation["experts"]
    idle = [
        str(e + 1)
        for e in range(experts)
        if all(gate["weights"][e] == 0 for gate in gates.values())
    ]
    found = (
        f"No task uses expert {', '.join(idle)}."
        if len(idle) == 1
        else f"No task uses experts {', '.join(idle)}."
        if idle
        else "Every expert is used by some task."
    )
    grid = heatmap(
        {task: gate["weights"] for task, gate in gates.items()},
        {task: gate["experts_per_row"] for task, gate in gates.items()},
    )
    return (
        "<h2>Gates</h2>"
        '<p class="note">Mean weight of each expert over the rows, in percent, and how many '
        f"experts a task uses per row. Over all tasks, {evaluation['experts_per_row']:.2f} of "
        f"{experts} experts are evaluated per row. {escape(found)}</p>"
        f'<div class="card scroll">{grid}</div>'
    )


def _labels(evaluation: Mapping[str, Any]) -> str:
    rows = []
    for name, task in evaluation["tasks"].items():
        total = task["rows"] + task["masked"]
        mean = task["rate"] if task["type"] == "binary" else task["label_mean"]
        show = _percent if task["type"] == "binary" else "{:.4g}".format
        cells = [
            escape(name),
            f"{task['rows']:,}",
            _percent(task["masked"] / total if total else 0.0),
            "" if mean is None else show(mean),
            "" if task["mean_score"] is None else show(task["mean_score"]),
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ("task", "rows with a label", "masked", "mean label", "mean score")
    return (
        "<h2>Labels</h2>"
        '<p class="note">A calibrated model\'s mean score is close to the mean label.</p>'
        '<div class="card scroll"><table><thead><tr>'
        + "".join(f"<th>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _footer(config: Config, facts: Mapping[str, Any]) -> str:
    train = config.train
    lines = {
        "configuration": config.name,
        "training": f"Adam, learning rate {train.learning_rate:g}, batches of {train.batch_size}, "
        f"seed {train.seed}",
    } | dict(facts)
    items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in lines.items())
    return f"<footer><dl>{items}</dl></footer>"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
