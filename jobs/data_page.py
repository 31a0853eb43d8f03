"""The data report as HTML: a page of its own, or a section of another."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from multigate.configs.files import write_text
from multigate.model.report.elements import percent, section, sentences, table
from multigate.model.report.style import STYLE

_LOOK, _ACT = 0.1, 0.25  # of a feature's stability index: the usual rule of thumb
_NONE = '<span class="soft">none</span>'


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write a data report as one HTML file that needs no network.

    Args:
        path: the file; its folder exists.
        report: what `pipeline.data_report.report` returned.
    """
    title = escape(f"{report['name']}: data")
    write_text(
        path,
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{title}</h1>{sections(report)}</main></body></html>\n",
    )


def sections(report: Mapping[str, Any]) -> str:
    """The report's sections."""
    return "".join(
        [_warnings(report), _rows(report), _labels(report), _features(report), _items(report)]
    )


def _warnings(report: Mapping[str, Any]) -> str:
    drift = report["drift"] or {"features": {}}
    moved = [
        f"{name} has changed: stability index {value:.3f}"
        for name, value in drift["features"].items()
        if value is not None and value > _ACT
    ]
    empty = [
        f"{name} is always missing"
        for name, feature in report["features"].items()
        if feature["coverage"] == 0
    ]
    return section("warnings", "What to look at", "", sentences([*empty, *moved], "warned"))


def _rows(report: Mapping[str, Any]) -> str:
    rows = [[escape(n.replace("_", " ")), f"{c:,}"] for n, c in report["rows"].items()]
    splits = [
        [
            name,
            f"{split['rows']:,}",
            f"{split['impressions']:,}",
            escape(split["first"] or ""),
            escape(split["last"] or ""),
        ]
        for name, split in report["splits"].items()
    ]
    rejected = [[escape(reason), f"{count:,}"] for reason, count in report["rejected"].items()]
    kept = report["negatives_kept"]
    return section(
        "rows",
        "Rows",
        f"The log is whole up to {report['cut_off'] or 'an unknown time'}."
        + (f" The training split holds {percent(kept)} of the negatives." if kept < 1 else ""),
        table("what became of the log's rows", ["of the log", "rows"], rows),
        table("splits", ["split", "examples", "impressions", "first", "last"], splits),
        table("rejects", ["rejected", "rows"], rejected) if rejected else "",
    )


def _labels(report: Mapping[str, Any]) -> str:
    drift = (report["drift"] or {"labels": {}})["labels"]
    rows = [
        [
            escape(task),
            *(_label(splits[name]) for name in ("train", "validation", "test")),
            _change(drift.get(task)),
        ]
        for task, splits in report["labels"].items()
    ]
    return section(
        "labels",
        "Labels",
        "Means of the logged impressions' labels, and the share that is masked.",
        table("labels", ["task", "train", "validation", "test", "since the previous run"], rows),
    )


def _label(split: Mapping[str, Any]) -> str:
    rows = split["count"] + split["masked"]
    if split["mean"] is None:
        return _NONE
    return f"{split['mean']:.4g} <small>{percent(split['masked'] / rows)} masked</small>"


def _change(found: Mapping[str, Any] | None) -> str:
    if found is None or not found["before"] or found["now"] is None:
        return _NONE
    return f"{100 * (found['now'] / found['before'] - 1):+.1f} %"


def _features(report: Mapping[str, Any]) -> str:
    drift = (report["drift"] or {"features": {}})["features"]
    rows = []
    for name, feature in report["features"].items():
        index = drift.get(name)
        shown = _NONE if index is None else f"{index:.3f}"
        if index is not None and index > _LOOK:
            shown = f"<b>{shown}</b>"
        size = report["vocabularies"].get(name)
        coverage = feature["coverage"]
        rows.append(
            [
                escape(name),
                escape(feature["kind"]),
                _NONE if coverage is None else percent(coverage),
                _NONE if size is None else f"{size:,}",
                shown,
            ]
        )
    return section(
        "features",
        "Features",
        "How many impressions have a value, and how far the values are from the previous run's: "
        f"the population stability index, above {_LOOK} worth a look, above {_ACT} a change.",
        table("features", ["feature", "kind", "covered", "vocabulary", "stability index"], rows),
    )


def _items(report: Mapping[str, Any]) -> str:
    rows = [
        [escape(str(found["item"])), f"{found['positives']:,}", f"{found['impressions']:,}"]
        for found in report["popular"][:10]
    ]
    return section(
        "popular",
        "Popular items",
        "Those with most impressions that have a positive label.",
        table("popular items", ["item", "positives", "impressions"], rows) if rows else "",
    )
