"""Pieces of the report that are drawn: loss curves as SVG, gate weights as a grid."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 40, 8, 8, 22


def curves(title: str, train: Sequence[float], validation: Sequence[float], best: int) -> str:
    """Loss over the epochs, training dotted and validation solid.

    Args:
        title: what the reader of the picture's text alternative is told.
        train: one value per epoch.
        validation: one value per epoch.
        best: index of the epoch whose weights are kept; marked by a dot.
    """
    low, high, ticks = _axis([*train, *validation])

    def x(epoch: float) -> float:
        span = max(len(validation) - 1, 1)
        offset = 0.5 if len(validation) == 1 else epoch / span
        return LEFT + offset * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    parts.extend(
        f'<line class="grid-line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" '
        f'y2="{y(tick):.1f}"/><text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">'
        f"{tick:.4g}</text>"
        for tick in ticks
    )
    step = math.ceil(len(validation) / 8)
    parts.extend(
        f'<text x="{x(epoch):.1f}" y="{HEIGHT - 5}" text-anchor="middle">{epoch + 1}</text>'
        for epoch in range(0, len(validation), step)
    )
    for name, values in (("train", train), ("validation", validation)):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
        parts.append(f'<polyline class="line {name}" points="{points}"/>')
    parts.append(f'<circle class="dot" cx="{x(best):.1f}" cy="{y(validation[best]):.1f}" r="4"/>')
    return "".join(parts) + "</svg>"


def heatmap(weights: Mapping[str, Sequence[float]], used: Mapping[str, float]) -> str:
    """Mean weight of each expert, a row per task, a column per expert.

    Args:
        weights: by task, (E,).
        used: by task, mean number of experts with a weight per row.
    """
    experts = len(next(iter(weights.values())))
    columns = f"fit-content(9rem) repeat({experts}, minmax(1.5rem, 1fr)) 3.25rem"
    parts = [f'<div class="heat" role="table" style="grid-template-columns: {columns}">']
    parts.append("<span></span>")
    parts.extend(f'<span class="head">{e + 1}</span>' for e in range(experts))
    parts.append('<span class="head">per row</span>')
    largest = max(max(row) for row in weights.values()) or 1.0
    for task, row in weights.items():
        parts.append(f"<span>{escape(task)}</span>")
        for expert, weight in enumerate(row):
            share = weight / largest
            kind = "unused" if weight == 0 else "strong" if share > 0.55 else ""
            # Numbers fit only where cells are wide enough.
            text = f"{100 * weight:.0f}" if experts <= 16 and weight >= 0.005 else ""
            parts.append(
                f'<span class="cell {kind}" style="--w: {100 * share:.0f}%" '
                f'title="{escape(task)}, expert {expert + 1}: {weight:.4f}">{text}</span>'
            )
        parts.append(f'<span class="side">{used[task]:.2f}</span>')
    return "".join(parts) + "</div>"


def _axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Limits and round tick values that cover `values`."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    unit = 10 ** math.floor(math.log10(span / 3))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= 4)
    first, last = math.floor(low / step), math.ceil(high / step)
    last = max(last, first + 1)
    return first * step, last * step, [n * step for n in range(first, last + 1)]
