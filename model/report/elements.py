"""Pieces of HTML that the report's sections are made of; all text passes through here escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

SHOWN = {
    "auc": "AUC",
    "gauc": "AUC within users",
    "log_loss": "log loss",
    "normalised_entropy": "normalised entropy",
    "ece": "calibration error",
    "predicted_over_observed": "predicted / observed",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "spearman": "Spearman",
    "bias": "bias",
    "calibration": "predicted / observed",
    "ndcg@5": "NDCG@5",
    "ndcg@10": "NDCG@10",
    "recall@5": "recall@5",
    "recall@10": "recall@10",
    "mrr": "MRR",
}
"""Measures as people write them."""

_PRECISE = {"mae", "rmse", "bias"}  # in a label's own units: significant digits, not decimals


def section(key: str, title: str, note: str, *parts: str) -> str:
    """A section that can be linked to, with its explanation; empty without parts.

    Args:
        key: its anchor.
        title: text.
        note: text that explains it; HTML is escaped.
        parts: HTML.
    """
    body = "".join(parts)
    if not body:
        return ""
    heading = f'<h2>{escape(title)} <a class="anchor" href="#{key}" aria-label="link">#</a></h2>'
    explained = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section id="{key}">{heading}{explained}{body}</section>'


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table; the first cell of a row is its heading.

    Args:
        caption: read by screen readers.
        heads: text of the column headings.
        rows: cells, as HTML.
        kind: class of the table's card.
    """
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="card scroll {kind}" tabindex="0" role="region" '
        f'aria-label="{escape(caption)}"><table><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def sentences(lines: Sequence[str], kind: str = "") -> str:
    """A list of sentences."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="said {kind}">{items}</ul>' if lines else ""


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Explain a chart's marks: pairs of a mark's class and its text."""
    items = "".join(f'<span><i class="{mark}"></i>{escape(text)}</span>' for mark, text in entries)
    return f'<div class="legend">{items}</div>'


def figure(title: str, chart: str, hue: str | None = None) -> str:
    """A chart in a card, in the colour of a group where one is given."""
    style = f' style="--hue: var(--{escape(hue)})"' if hue else ""
    return f'<div class="card chart"{style}><h3>{escape(title)}</h3>{chart}</div>'


def subject(name: str, about: str) -> str:
    """What a row is about: a name, and below it the details."""
    return f'{escape(name)}<span class="range">{escape(about)}</span>'


def measured(name: str, found: Mapping[str, Any] | None, *, worse: bool = False) -> str:
    """A measure with its interval below it; marked where it is worse than it should be."""
    if found is None or found["value"] is None:
        return '<span class="soft">none</span>'
    value = f"<b>{number(name, found['value'])}</b>"
    if worse:
        value = f'<b class="worse">{number(name, found["value"])} ▼</b>'
    if found["low"] is None:
        return value
    limits = f"{number(name, found['low'])} to {number(name, found['high'])}"
    return f'{value}<span class="range">{limits}</span>'


def changed(found: Mapping[str, Any] | None, metric: str, wins: bool | None) -> str:
    """A difference with its interval, coloured where it is beyond chance."""
    if found is None or found["value"] is None:
        return '<span class="soft">none</span>'

    def show(value: float) -> str:
        return f"{100 * value:+.2f} %" if metric == "rmse" else f"{value:+.4f}"

    kind = "" if wins is None else "better" if wins else "worse"
    mark = "" if wins is None else " ▲" if wins else " ▼"
    value = f'<b class="{kind}">{show(found["value"])}{mark}</b>'
    if found["low"] is None:
        return value
    return f'{value}<span class="range">{show(found["low"])} to {show(found["high"])}</span>'


def number(name: str, value: float) -> str:
    """A measure's value as text."""
    if name in _PRECISE:
        return f"{value:.4g}"
    if name in {"predicted_over_observed", "calibration"}:
        return f"{value:.3f}"
    return f"{value:.4f}"


def count(amount: int, noun: str) -> str:
    """An amount with its noun."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"
