"""HTML elements of the report's sections, with all text escaped.

Jinja2 was considered: most of what stands here chooses a number's precision and marks, which would
be Python beside the templates as well.
"""

from collections.abc import Iterable, Sequence
from html import escape

from multigate.model.evaluation.measures.bootstrap import Interval, limits
from multigate.model.evaluation.paired import RELATIVE
from multigate.model.report.style import STYLE

_IN_LABEL_UNITS = {"mae", "rmse", "bias", "pinball"}
"""Shown with four significant digits, not four decimals."""


def document(title: str, content: str) -> str:
    """A whole HTML page.

    Args:
        title: text.
        content: HTML.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{content}</main></body></html>\n"
    )


def section(key: str, title: str, note: str, *parts: str) -> str:
    """A section with a link to itself; empty without parts.

    Args:
        key: its anchor.
        title: text.
        note: explains the section; text.
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
    """Explains a chart's marks: pairs of a mark's class and its text."""
    items = "".join(f'<span><i class="{mark}"></i>{escape(text)}</span>' for mark, text in entries)
    return f'<div class="legend">{items}</div>'


def figure(title: str, chart: str, hue: str | None = None) -> str:
    """A chart in a card, in the colour of a group where one is given."""
    style = f' style="--hue: var(--{escape(hue)})"' if hue else ""
    return f'<div class="card chart"{style}><h3>{escape(title)}</h3>{chart}</div>'


def subject(name: str, about: str) -> str:
    """Heading of a table row: a name, and details below it."""
    return f'{escape(name)}<span class="range">{escape(about)}</span>'


def measured(name: str, found: Interval | None, *, worse: bool = False) -> str:
    """A measure with its interval below it; marked where it is `worse`."""
    if found is None or found["value"] is None:
        return '<span class="soft">none</span>'
    value = f"<b>{number(name, found['value'])}</b>"
    if worse:
        value = f'<b class="worse">{number(name, found["value"])} ▼</b>'
    ends = limits(found)
    if ends is None:
        return value
    text = f"{number(name, ends[0])} to {number(name, ends[1])}"
    return f'{value}<span class="range">{text}</span>'


def changed(found: Interval | None, metric: str, wins: bool | None) -> str:
    """A difference with its interval, coloured where it is beyond chance."""
    if found is None or found["value"] is None:
        return '<span class="soft">none</span>'

    def show(value: float) -> str:
        return f"{100 * value:+.2f} %" if metric in RELATIVE else f"{value:+.4f}"

    kind = "" if wins is None else "better" if wins else "worse"
    mark = "" if wins is None else " ▲" if wins else " ▼"
    value = f'<b class="{kind}">{show(found["value"])}{mark}</b>'
    ends = limits(found)
    if ends is None:
        return value
    return f'{value}<span class="range">{show(ends[0])} to {show(ends[1])}</span>'


def number(name: str, value: float) -> str:
    """A measure's value as text."""
    if name in _IN_LABEL_UNITS:
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
