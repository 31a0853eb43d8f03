"""Section of the report about the examples: what the pipeline's own report says of them."""

from collections.abc import Mapping
from html import escape
from typing import Any

from multigate.model.report.elements import percent, section, sentences, table

_LOOK, _ACT = 0.1, 0.25  # population stability index: the rule of thumb
_POPULAR = 10


def data(found: Mapping[str, Any]) -> str:
    """Rows, labels, features and popular items; empty where the examples have no report."""
    report = found["data"]
    if report is None:
        return ""
    return section(
        "data",
        "Data",
        "Of the logged impressions, sampled negatives left out. Drift is the population stability "
        "index against the run before: above 0.1 look, above 0.25 act.",
        sentences(drifted(report)),
        _splits(report.get("splits") or {}),
        _labels(report.get("labels") or {}),
        _features(report),
        _counts("Rows of the log", report.get("rows") or {}),
        _counts("Rejected, by reason", report.get("rejected") or {}),
        _popular(report.get("popular") or []),
    )


def drifted(report: Mapping[str, Any]) -> list[str]:
    """Features that are no longer what they were, in sentences."""
    features = (report.get("drift") or {}).get("features") or {}
    return [
        f"{name} has drifted since the run before: stability index {index:.2f}."
        for name, index in features.items()
        if index is not None and index > _ACT
    ]


def _splits(splits: Mapping[str, Any]) -> str:
    rows = [
        [
            escape(name),
            f"{split['rows']:,}",
            f"{split['impressions']:,}",
            escape((split["first"] or "")[:16].replace("T", " ")),
            escape((split["last"] or "")[:16].replace("T", " ")),
        ]
        for name, split in splits.items()
    ]
    heads = ("split", "rows", "impressions", "first", "last")
    return table("Splits", heads, rows) if rows else ""


def _labels(labels: Mapping[str, Any]) -> str:
    splits = list(next(iter(labels.values()), {}))
    rows = []
    for task, of_task in labels.items():
        cells = [escape(task)]
        for split in splits:
            found = of_task[split]
            mean = "" if found["mean"] is None else f"<b>{found['mean']:.4g}</b>"
            cells.append(f'{mean}<span class="range">{found["count"]:,} labels</span>')
        rows.append(cells)
    heads = ["task", *(f"mean label, {split}" for split in splits)]
    return table("Labels by split", heads, rows) if rows else ""


def _features(report: Mapping[str, Any]) -> str:
    drift = (report.get("drift") or {}).get("features") or {}
    vocabularies = report.get("vocabularies") or {}
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
                shown,
            ]
        )
    heads = ("feature", "kind", "has a value", "vocabulary", "drift")
    return table("Features", heads, rows) if rows else ""


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
