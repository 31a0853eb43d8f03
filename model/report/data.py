"""Section of the report about the examples: what the pipeline's own report says of them."""

from collections.abc import Mapping
from html import escape
from typing import Any

from multigate.model.assessment.results import Assessment
from multigate.model.report.elements import percent, section, sentences, table

_LOOK, _ACT = 0.1, 0.25  # population stability index: the usual rule of thumb
_POPULAR = 10


def data(found: Assessment) -> str:
    """Rows, labels, features and popular items; empty where the examples have no report."""
    return "" if found["data"] is None else report_section(found["data"])


def report_section(report: Mapping[str, Any]) -> str:
    """The section of a data report.

    Args:
        report: what `pipeline.data_report.report` returned; any part may be absent.
    """
    kept = report.get("negatives_kept", 1.0)
    cut_off = _minute(report.get("cut_off"))
    return section(
        "data",
        "Data",
        "Of the logged impressions, without sampled negatives. Drift compares with the previous "
        f"run by the population stability index: above {_LOOK} look, above {_ACT} act."
        + (f" The log is whole up to {cut_off}." if cut_off else "")
        + (f" The training split holds {percent(kept)} of the negatives." if kept < 1 else ""),
        sentences(stands_out(report)),
        _splits(report.get("splits") or {}),
        _labels(report),
        _features(report),
        _counts("Rows of the log", report.get("rows") or {}),
        _counts("Rejected, by reason", report.get("rejected") or {}),
        _popular(report.get("popular") or []),
    )


def stands_out(report: Mapping[str, Any]) -> list[str]:
    """Features without values, with unknown ids or with drift, a sentence each."""
    empty = [
        f"{name} is always missing."
        for name, feature in (report.get("features") or {}).items()
        if feature["coverage"] == 0
    ]
    drifted = [
        f"{name} has drifted since the previous run: stability index {index:.2f}."
        for name, index in _drift(report, "features").items()
        if index is not None and index > _ACT
    ]
    return [*empty, *(report.get("advice") or []), *drifted]


def _drift(report: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Drift of the features or the labels; empty without a previous run."""
    return (report.get("drift") or {}).get(part) or {}


def _minute(time: str | None) -> str:
    """An ISO time to the minute."""
    return (time or "")[:16].replace("T", " ")


def _splits(splits: Mapping[str, Any]) -> str:
    rows = [
        [
            escape(name),
            f"{split['rows']:,}",
            f"{split['impressions']:,}",
            escape(_minute(split["first"])),
            escape(_minute(split["last"])),
        ]
        for name, split in splits.items()
    ]
    heads = ("split", "rows", "impressions", "first", "last")
    return table("Splits", heads, rows) if rows else ""


def _labels(report: Mapping[str, Any]) -> str:
    labels = report.get("labels") or {}
    drift = _drift(report, "labels")
    splits = list(next(iter(labels.values()), {}))
    rows = [
        [
            escape(task),
            *(_label(of_task[split]) for split in splits),
            *([_change(drift.get(task))] if drift else []),
        ]
        for task, of_task in labels.items()
    ]
    heads = ["task", *(f"mean label, {split}" for split in splits)]
    if drift:
        heads.append("since the previous run")
    return table("Labels by split", heads, rows) if rows else ""


def _label(split: Mapping[str, Any]) -> str:
    """Mean label; below it how many there are, and the share without one."""
    mean = "" if split["mean"] is None else f"<b>{split['mean']:.4g}</b>"
    rows = split["count"] + split["masked"]
    masked = f", {percent(split['masked'] / rows)} masked" if split["masked"] else ""
    return f'{mean}<span class="range">{split["count"]:,} labels{masked}</span>'


def _change(found: Mapping[str, Any] | None) -> str:
    """Relative change of a label's mean, which may be below 0: above 0 where it rose."""
    if found is None or not found["before"] or found["now"] is None:
        return ""
    change = (found["now"] - found["before"]) / abs(found["before"])
    return f"{100 * change:+.1f} %"


def _features(report: Mapping[str, Any]) -> str:
    drift = _drift(report, "features")
    vocabularies = report.get("vocabularies") or {}
    unknown = report.get("unknown") or {}
    rows = []
    for name, feature in (report.get("features") or {}).items():
        index = drift.get(name)
        shown = ""
        if index is not None:
            shown = f'<b class="worse">{index:.3f}</b>' if index > _LOOK else f"{index:.3f}"
        rows.append(
            [
                escape(name),
                escape(str(feature["kind"])),
                "" if feature["coverage"] is None else percent(feature["coverage"]),
                f"{vocabularies[name]:,}" if name in vocabularies else "",
                _unknown(unknown.get(name)),
                shown,
            ]
        )
    heads = ("feature", "kind", "has a value", "vocabulary", "unknown ids", "drift")
    return table("Features", heads, rows) if rows else ""


def _unknown(shares: Mapping[str, float | None] | None) -> str:
    """Share of validation's ids that the vocabulary lacks; below it training's share."""
    if shares is None or shares["validation"] is None:
        return ""
    train = "" if shares["train"] is None else f"{percent(shares['train'])} in training"
    return f'<b>{percent(shares["validation"])}</b><span class="range">{train}</span>'


def _counts(caption: str, counts: Mapping[str, int]) -> str:
    rows = [[escape(name.replace("_", " ")), f"{count:,}"] for name, count in counts.items()]
    return table(caption, (caption.lower(), "count"), rows) if rows else ""


def _popular(items: list[Mapping[str, Any]]) -> str:
    rows = [
        [escape(str(item["item"])), f"{item['positives']:,}", f"{item['impressions']:,}"]
        for item in items[:_POPULAR]
    ]
    heads = ("item with most positives", "positives", "impressions")
    return table("Items with most positives", heads, rows) if rows else ""
