"""The report's charts: pure functions from numbers to SVG, and a grid of weights.

Altair with vl-convert, and matplotlib, looked as good. But Altair's demo report has 255 kB instead
of 128 (matplotlib's 275), its 28 charts take 3.2 s of CPU instead of 0.01 (1.5), it adds 93 MB to
an environment, colours that follow the reader's preference must be patched into the finished SVG,
and the text under the pointer is lost.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 320
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 24


class Frame:
    """Axes with round ticks around a drawing.

    Args:
        x: values that the horizontal axis covers.
        y: values that the vertical axis covers.
        height: of the picture, which is 320 wide.
        share: both axes show shares, on one scale from 0.
    """

    def __init__(
        self, x: Sequence[float], y: Sequence[float], height: int = 200, share: bool = False
    ) -> None:
        if share:
            x = y = [0.0, *x, *y]
        self.height = height
        self.x_low, self.x_high, self.x_ticks = axis(x)
        self.y_low, self.y_high, self.y_ticks = axis(y)

    def x(self, value: float) -> float:
        """Place of a value on the horizontal axis."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Place of a value on the vertical axis."""
        share = (self.y_high - value) / (self.y_high - self.y_low)
        return TOP + share * (self.height - TOP - BOTTOM)

    def line(self, kind: str, a: tuple[float, float], b: tuple[float, float]) -> str:
        """A straight line between two points."""
        return (
            f'<line class="{kind}" x1="{self.x(a[0]):.1f}" y1="{self.y(a[1]):.1f}" '
            f'x2="{self.x(b[0]):.1f}" y2="{self.y(b[1]):.1f}"/>'
        )

    def path(self, kind: str, points: Sequence[tuple[float, float]], style: str = "") -> str:
        """A line through points."""
        places = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        given = f' style="{style}"' if style else ""
        return f'<polyline class="{kind}"{given} points="{places}"/>'

    def dot(self, kind: str, x: float, y: float, radius: float = 3, title: str = "") -> str:
        """A point, with a text that shows under the pointer."""
        named = f"<title>{escape(title)}</title>" if title else ""
        return (
            f'<circle class="{kind}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:g}">'
            f"{named}</circle>"
        )

    def draw(self, title: str, *parts: str, whole_x: bool = False, stride: int = 1) -> str:
        """The picture.

        Args:
            title: for screen readers.
            parts: SVG.
            whole_x: label the horizontal axis at whole numbers only.
            stride: label one tick in `stride`.
        """
        grid = [
            f'<line class="grid-line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(tick):.1f}" '
            f'y2="{self.y(tick):.1f}"/><text x="{LEFT - 6}" y="{self.y(tick) + 4:.1f}" '
            f'text-anchor="end">{tick:.4g}</text>'
            for tick in self.y_ticks
        ]
        grid += [
            f'<text x="{min(self.x(tick), WIDTH - 3.8 * len(f"{tick:.4g}")):.1f}" '
            f'y="{self.height - 6}" text-anchor="middle">{tick:.4g}</text>'
            for tick in self.x_ticks[::stride]
            if not whole_x or float(tick).is_integer()
        ]
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(title)}">'
            f"{''.join(grid)}{''.join(parts)}</svg>"
        )


def curves(
    title: str,
    series: Mapping[str, Sequence[float]],
    best: int | None = None,
    height: int = 150,
) -> str:
    """Values by epoch, one line per name, counted from 1.

    Args:
        title: for screen readers.
        series: values by CSS class of the line: "train", "validation", or "of-0" to "of-7".
        best: index of the kept epoch, marked on the last line.
        height: of the picture.
    """
    epochs = max(len(values) for values in series.values())
    frame = Frame([1, max(epochs, 2)], [v for values in series.values() for v in values], height)
    frame.x_low, frame.x_high = (1.0, float(epochs)) if epochs > 1 else (0.5, 1.5)
    step = math.ceil(epochs / 8)
    frame.x_ticks = [float(epoch) for epoch in range(1, epochs + 1, step)]
    parts = [
        frame.path(f"line {kind}", [(i + 1, value) for i, value in enumerate(values)])
        for kind, values in series.items()
    ]
    if best is not None:
        parts.append(frame.dot("dot", best + 1, list(series.values())[-1][best], 4))
    return frame.draw(title, *parts)


def reliability(title: str, bins: Sequence[Mapping[str, Any]], share: bool = True) -> str:
    """Mean label against mean score of each bin, with intervals; the diagonal is perfect."""
    scores = [entry["score"] for entry in bins]
    labels = [
        value
        for entry in bins
        for value in (entry["label"]["value"], entry["label"]["low"], entry["label"]["high"])
        if value is not None
    ]
    frame = Frame(scores, [*labels, *scores], share=share)
    low = max(frame.x_low, frame.y_low)
    high = min(frame.x_high, frame.y_high)
    parts = [frame.line("ideal", (low, low), (high, high))]
    for entry in bins:
        label = entry["label"]
        if label["low"] is not None:
            ends = (entry["score"], label["low"]), (entry["score"], label["high"])
            parts.append(frame.line("whisker", *ends))
        text = f"score {entry['score']:.4g}, label {label['value']:.4g}, {label['rows']:,} rows"
        parts.append(frame.dot("dot", entry["score"], label["value"], title=text))
    return frame.draw(title, *parts)


def residuals(title: str, bins: Sequence[Mapping[str, Any]]) -> str:
    """Median of label - score by score, with the range of eight in ten rows."""
    frame = Frame(
        [entry["score"] for entry in bins],
        [0.0, *(entry[key] for entry in bins for key in ("low", "high"))],
    )
    parts = [frame.line("ideal", (frame.x_low, 0), (frame.x_high, 0))]
    for entry in bins:
        x = entry["score"]
        parts.append(frame.line("whisker", (x, entry["low"]), (x, entry["high"])))
        text = f"score {x:.4g}, median of label - score {entry['median']:.4g}"
        parts.append(frame.dot("dot", x, entry["median"], title=text))
    return frame.draw(title, *parts)


def pareto(title: str, points: Sequence[Mapping[str, Any]]) -> str:
    """Satisfaction against engagement: a line joins the front, the contract's weights stand out."""
    places = [(p["engagement"]["value"], p["satisfaction"]["value"]) for p in points]
    frame = Frame([x for x, _ in places], [y for _, y in places], height=220)
    parts = [frame.path("line soft-line", places)]
    front = sorted(place for place, p in zip(places, points, strict=True) if p["front"])
    parts.append(frame.path("line", front))
    for place, point in zip(places, points, strict=True):
        ratio = "satisfaction alone" if point["ratio"] is None else f"ratio {point['ratio']:g}"
        kind = "dot chosen" if point["chosen"] else "dot" if point["front"] else "dot faint"
        text = f"{ratio}: engagement {place[0]:.4f}, satisfaction {place[1]:.4f}"
        parts.append(frame.dot(kind, *place, 6 if point["chosen"] else 3.5, text))
    return frame.draw(title, *parts, stride=2)


def heatmap(
    title: str,
    rows: Mapping[str, Sequence[float]],
    heads: Sequence[str],
    side: Mapping[str, float] | None = None,
    top: float | None = None,
) -> str:
    """Shares as shades, a row per name.

    Args:
        title: for screen readers.
        rows: by name, one share per column.
        heads: of the columns.
        side: by name, a number at the end of the row.
        top: share of the darkest shade; the largest share where None.
    """
    largest = top or max((max(row) for row in rows.values()), default=0.0) or 1.0
    width = (11 if side else 7.5) + 1.7 * len(heads)
    narrow = len(heads) > 16  # numbers fit only where cells are wide enough
    kind = " named" if max(map(len, heads)) > 3 else ""
    parts = [
        f'<table class="heat{kind}" style="min-width: {width:.0f}rem">',
        f'<caption class="hidden">{escape(title)}</caption><thead><tr><td class="first"></td>',
        *(f'<th scope="col">{escape(head)}</th>' for head in heads),
        '<th scope="col" class="side">per row</th>' if side else "",
        "</tr></thead><tbody>",
    ]
    for name, row in rows.items():
        parts.append(f'<tr><th scope="row">{escape(name)}</th>')
        for head, share in zip(heads, row, strict=True):
            shade = share / largest
            kind = "unused" if share == 0 else "strong" if shade > 0.55 else ""
            text = f"{100 * share:.0f}" if share >= 0.005 and not narrow else ""
            label = f"{name}, {head}: {share:.4f}"
            parts.append(
                f'<td class="cell {kind}" style="--w: {100 * shade:.0f}%" '
                f'title="{escape(label)}">{text}</td>'
            )
        parts.append(f'<td class="side">{side[name]:.2f}</td></tr>' if side else "</tr>")
    return "".join(parts) + "</tbody></table>"


def axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Limits and round ticks of an axis that covers `values`."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 3))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    return first * step, last * step, [n * step for n in range(first, last + 1)]
