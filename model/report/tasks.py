"""Sections of the report about tasks, groups and ranked lists."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from multigate.model.assessment.results import AssessedGroup, AssessedTask, Assessment
from multigate.model.checkpoints import history as records
from multigate.model.checkpoints.history import Epoch
from multigate.model.evaluation.measures.bootstrap import Interval, limits
from multigate.model.evaluation.measures.names import title
from multigate.model.report import charts
from multigate.model.report.elements import (
    count,
    figure,
    legend,
    measured,
    number,
    percent,
    section,
    subject,
    table,
)

GROUPS = ("engagement", "satisfaction")
_UNMATCHED = "auc_unmatched"
_BINARY = (
    "auc",
    _UNMATCHED,
    "gauc",
    "log_loss",
    "normalised_entropy",
    "predicted_over_observed",
    "ece",
)
_REGRESSION = ("rmse", "mae", "r2", "spearman", "bias")
_QUANTILE = ("pinball", "coverage", "spearman")


def figures(found: Assessment) -> str:
    """The headline figures."""
    entries = []
    for name, group in sorted(found["groups"].items()):
        for value, interval, text in (
            (group["auc"], group["auc_interval"], "mean AUC"),
            (group["relative_rmse"], group["relative_rmse_interval"], "RMSE over deviation"),
        ):
            if value is not None:
                entries.append((f"{value:.4f}", f"{text}, {name}", _limits(interval)))
                break
    ndcg = found["ranking"]["measures"]["ndcg@10"]
    if ndcg["value"] is not None:
        entries.append((f"{ndcg['value']:.4f}", "NDCG@10 of the combined score", _limits(ndcg)))
    used = f"{found['experts_per_row']:.2f}"
    entries.append((used, f"experts evaluated per row, of {found['experts']}", ""))
    cells = "".join(
        f"<div><strong>{value}</strong><span>{escape(text)}</span>"
        f'<span class="range">{range_}</span></div>'
        for value, text, range_ in entries
    )
    return f'<div class="card figures">{cells}</div>'


def _limits(found: Interval | None) -> str:
    ends = limits(found)
    return "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"


def tasks(found: Assessment, best: Mapping[str, float]) -> str:
    """Every task's main measure as a bar, by group, and all measures in tables."""
    parts = []
    marks = [("span", "95 % interval")] + ([("tick", "best possible value")] if best else [])
    parts.append(legend(marks))
    for group in GROUPS:
        members = {n: t for n, t in found["tasks"].items() if t["group"] == group}
        if members:
            bars = "".join(_task(name, task, best.get(name)) for name, task in members.items())
            parts.append(
                f'<div class="card group {group}"><header><h3>{group.capitalize()}</h3>'
                f"<span>{escape(_summary(found['groups'][group]))}</span></header>{bars}</div>"
            )
    for kind, names in (("binary", _BINARY), ("regression", _REGRESSION), ("quantile", _QUANTILE)):
        chosen = {n: t for n, t in found["tasks"].items() if t["metric"] == names[0]}
        # Without a list that shares the candidate's vocabulary, no row is known to be unmatched.
        shown = [
            m
            for m in names
            if m != _UNMATCHED or any(m in task["measures"] for task in chosen.values())
        ]
        if chosen:
            rows = [
                [
                    subject(name, f"quantile {task['q']:g}") if "q" in task else escape(name),
                    *(measured(m, task["measures"].get(m)) for m in shown),
                    f"{task['rows']:,}",
                ]
                for name, task in chosen.items()
            ]
            caption = f"All measures of the {kind} tasks"
            parts.append(table(caption, ["task", *(title(m) for m in shown), "rows"], rows))
    return section(
        "tasks",
        "Tasks",
        "AUC bars run from 0.5, chance, to 1. RMSE is in the label's own units; its bars run from "
        "0 to the label's standard deviation, the error of always predicting the mean, and shorter "
        "is better. The bars of pinball loss, of a task that predicts a quantile, end at the loss "
        "of the best constant. Coverage is the share of the labels at or below the score, and near "
        "the quantile where the score is right. Rows with a masked label take no part. The smaller "
        f"numbers are 95 % intervals from {found['replicates']:,} resamples of the "
        f"{count(found['users'], 'user')}, each user with all rows. Below ten users there is no "
        "interval. Unmatched rows are those with a candidate that is in none of the user's lists: "
        "new to the user as far as they tell.",
        *parts,
    )


def calibration(found: Assessment) -> str:
    """Reliability of binary tasks, reliability and residuals of regression tasks."""
    parts = []
    for name, task in found["tasks"].items():
        if task["reliability"]:
            chart = charts.reliability(
                f"Mean label by score of {name}",
                task["reliability"],
                share=task["type"] == "binary",
            )
            parts.append(figure(name, chart, task["group"]))
        if task.get("residuals"):
            chart = charts.residuals(f"Label minus score of {name}", task["residuals"])
            parts.append(figure(f"{name}: label minus score", chart, task["group"]))
    return section(
        "calibration",
        "Calibration",
        "Bins of equally many rows by score: mean score to the right, mean label upward, with its "
        "95 % interval. The points of a calibrated model lie on the dashed line. Residuals show "
        "the median and the range of eight in ten rows. Noise alone makes the calibration error "
        "positive: its interval allows for that, its value does not.",
        f'<div class="charts">{"".join(parts)}</div>' if parts else "",
    )


def ranking(found: Assessment) -> str:
    """Measures of the ranked lists."""
    ranked = found["ranking"]
    if not ranked["lists"]:
        return ""
    rows = [
        [title(name), measured(name, measure), f"{measure['rows']:,}"]
        for name, measure in ranked["measures"].items()
    ]
    return section(
        "ranking",
        "Ranked lists",
        "The combined score within each request and user. A row's gain is its labels, combined by "
        "the contract's rule as scores are, less what labels of 0 combine to. "
        f"{ranked['lists']:,} of {count(ranked['of'], 'list')} have more than one row and a row "
        "with a gain; the others take no part. Recall is always 1 in lists shorter than its "
        "cut-off.",
        table("Measures of the combined score", ["measure", "mean over lists", "rows"], rows),
    )


def trade_off(found: Assessment) -> str:
    """Engagement against satisfaction."""
    traded = found["tradeoff"]
    if traded is None:
        return ""
    points = traded["points"]
    title = "NDCG@10 of satisfaction, upward, against that of engagement, to the right"
    rows = [
        [
            ("satisfaction alone" if p["ratio"] is None else f"{p['ratio']:g}")
            + (" (now)" if p["chosen"] else ""),
            measured("ndcg@10", p["engagement"]),
            measured("ndcg@10", p["satisfaction"]),
            "yes" if p["front"] else "",
        ]
        for p in points
    ]
    heads = ["weight ratio", "engagement", "satisfaction", "front"]
    return section(
        "trade-off",
        "Engagement against satisfaction",
        "The score weights of the satisfaction tasks are multiplied by a ratio, those of "
        "engagement stay; lists are then judged by what each group's labels say is relevant "
        "(NDCG@10). Only points on the front are worth choosing: elsewhere one group could "
        "gain at no cost to the other. The front is that of these rows: confirm a choice on "
        "later ones.",
        legend([("dot-mark chosen", "the weights of the contract"), ("", "Pareto front")]),
        '<div class="pair">',
        figure("Satisfaction by engagement", charts.pareto(title, points)),
        table("Trade-off by weight ratio", heads, rows),
        "</div>",
    )


def labels(found: Assessment) -> str:
    """Number of labels, their mean, and the mean score."""
    rows = []
    for name, task in found["tasks"].items():
        total = task["rows"] + task["masked"]
        binary = task["type"] == "binary"
        mean = task.get("rate") if binary else task.get("label_mean")
        show = percent if binary else "{:.4g}".format
        rows.append(
            [
                escape(name),
                f"{task['rows']:,}",
                percent(task["masked"] / total if total else 0.0),
                "" if mean is None else show(mean),
                "" if task["mean_score"] is None else show(task["mean_score"]),
            ]
        )
    heads = ("task", "rows with a label", "masked", "mean label", "mean score")
    return section("labels", "Labels", "", table("Labels of every task", heads, rows))


def training(found: Assessment, history: Sequence[Epoch]) -> str:
    """Loss by epoch, and each task's quality at the kept epoch and at its best."""
    if not history:
        return ""
    kept = records.kept(history)
    best = history.index(kept)
    monitor = records.monitor(history)
    parts = [figure("All tasks, weighted", _losses("all tasks", history, best))]
    for name, task in found["tasks"].items():
        if all(name in epoch["tasks"] for epoch in history):
            entries = [epoch["tasks"][name] for epoch in history]
            parts.append(figure(name, _losses(name, entries, best), task["group"]))
    return section(
        "training",
        "Training",
        "Loss by epoch. The training loss includes dropout and the gates' noise, and in the "
        "weighted sum their regularisation. The validation loss is that of the model as it is "
        "served. The dot is the kept epoch. Quality is AUC, or on the scale of training explained "
        "variance, or of a quantile the share of the best constant's pinball loss that it saves. "
        f"{_MONITORS.get(monitor, f'The quality of {monitor} alone')} decided which "
        "epoch was kept.",
        legend([("train", "training"), ("", "validation")]),
        f'<div class="charts">{"".join(parts)}</div>',
        _qualities(history, kept),
    )


_MONITORS = {"quality": "The mean of the tasks' qualities", "loss": "The validation loss"}


def _qualities(history: Sequence[Epoch], kept: Epoch) -> str:
    """Each task's quality on validation rows at the kept epoch, and at its own best epoch."""
    rows = []
    for name, epoch in records.best_epochs(history).items():
        here, there = (one["tasks"][name].get("val_quality") for one in (kept, history[epoch - 1]))
        if here is not None and there is not None:
            rows.append([escape(name), f"{here:.4f}", f"{there:.4f}", str(epoch)])
    if not rows:
        return ""
    heads = ("task", f"quality of epoch {kept['epoch']}, which was kept", "best", "best epoch")
    return table("Validation quality of every task", heads, rows)


def _losses(name: str, entries: Sequence[Mapping[str, Any]], best: int) -> str:
    series = {
        "train": [entry["loss"] for entry in entries],
        "validation": [entry["val_loss"] for entry in entries],
    }
    return charts.curves(f"Loss of {name}", series, best)


def _summary(group: AssessedGroup) -> str:
    parts = []
    if group["auc"] is not None:
        parts.append(f"mean AUC {group['auc']:.4f}")
    if group["relative_rmse"] is not None:
        parts.append(f"RMSE {group['relative_rmse']:.3f} of the deviation")
    if group["measured"] < group["tasks"]:
        parts.append(f"{group['tasks'] - group['measured']} of {group['tasks']} not measurable")
    return ", ".join(parts)


def _task(name: str, task: AssessedTask, best: float | None) -> str:
    facts = [count(task["rows"], "row")]
    rate = task.get("rate")
    if rate is not None:
        facts.append(f"{percent(rate)} positive")
    if scale := task.get("trained_on"):
        on_scale = scale["pinball"] if "q" in task else scale["rmse"]
        facts.append(f"{scale['scale']}: {title(task['metric'])} {on_scale:.4g}")
    if task.get("coverage") is not None:
        facts.append(f"coverage {task['coverage']:.3f} of {task['q']:g}")
    if best is not None:
        facts.append(f"best {number(task['metric'], best)}")
    head = (
        f'<span class="name">{escape(name)}</span>'
        f'<span class="metric">{title(task["metric"])}</span>'
    )
    tail = '<span class="facts">' + " ".join(f"<span>{escape(f)}</span>" for f in facts) + "</span>"
    if task["value"] is None:
        reason = f'<span class="none">{escape(task["reason"])}</span>'
        return f'<div class="task">{head}{reason}{tail}</div>'
    tick = "" if best is None else f'<b style="left: {_share(task, best):.1f}%"></b>'
    ends = limits(task["measures"][task["metric"]])
    if ends is not None:
        left, right = (_share(task, end) for end in ends)
        tick += f'<u style="left: {left:.1f}%; width: {max(right - left, 0.3):.1f}%"></u>'
    value = number(task["metric"], task["value"])
    return (
        f'<div class="task">{head}<span class="value">{value}</span>'
        f'<div class="bar"><i style="width: {_share(task, task["value"]):.1f}%"></i>{tick}</div>'
        f"{tail}</div>"
    )


def _share(task: AssessedTask, value: float) -> float:
    """Length of a value's bar, in percent."""
    if task["type"] == "binary":
        share = (value - 0.5) / 0.5
    else:
        most = task["pinball_of_constant"] if "q" in task else task.get("label_std")
        share = value / most if most else 1.0
    return 100 * min(max(share, 0.0), 1.0)
