"""Parses records of JSON, one object a line."""

import json
from collections.abc import Collection
from typing import Any

import polars as pl

from multigate.pipeline.lines import REJECT, Lines

_FEW = 64


def parse_json(
    lines: Lines, wanted: list[str], single: Collection[str] = ()
) -> tuple[pl.DataFrame, Lines, pl.DataFrame]:
    """Parse JSON objects.

    Args:
        lines: records, (B,).
        wanted: the names to read. A list of values stays a list, and becomes a text with `|`
            between the values where the same name also holds plain values.
        single: those of them that hold no lists.

    Returns:
        The wanted columns that occur, (b, ...); the records they come from, (b,); and rejects.
    """
    pieces: list[tuple[pl.DataFrame, int, int]] = []
    rejects: list[pl.DataFrame] = []

    def visit(start: int, count: int) -> None:
        """Halve until the bad lines stand alone: the good ones go the fast way."""
        texts = lines.text.slice(start, count)
        frame = _fast(texts, wanted)
        if frame is not None:
            pieces.append((frame, start, count))
        elif count > _FEW:
            visit(start, count // 2)
            visit(start + count // 2, count - count // 2)
        else:
            for at in range(count):
                row = _slow(texts[at], wanted, single)
                if isinstance(row, str):
                    values = {"line": lines.number[start + at], "reason": row}
                    values["text"] = texts[at][:500]
                    rejects.append(pl.DataFrame([values], schema=REJECT))
                else:
                    pieces.append((row, start + at, 1))

    if len(lines.text):
        visit(0, len(lines.text))
    if not pieces:
        empty = Lines(lines.text.clear(), lines.number.clear(), lines.rejects)
        return pl.DataFrame(), empty, pl.concat([pl.DataFrame(schema=REJECT), *rejects])
    frame = _stack([piece for piece, _, _ in pieces], [count for _, _, count in pieces])
    kept = pl.concat([pl.int_range(s, s + n, eager=True) for _, s, n in pieces])
    source = Lines(lines.text.gather(kept), lines.number.gather(kept), lines.rejects)
    return frame, source, pl.concat([pl.DataFrame(schema=REJECT), *rejects])


def _fast(texts: pl.Series, wanted: list[str]) -> pl.DataFrame | None:
    """Parse with polars; None where that fails or changes the number of rows."""
    data = texts.str.join("\n").item().encode()
    try:
        frame = pl.read_ndjson(data, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    if len(frame) != len(texts):
        return None
    frame = frame.select([name for name in wanted if name in frame.columns])
    inner = [kind.inner if isinstance(kind, pl.List) else kind for kind in frame.dtypes]
    if any(kind.is_nested() for kind in inner):
        return None
    # One fraction makes floats of all integers beside it, which changes ids (12 to 12.0, and those
    # beyond 2**53 to others): such columns are read again as texts.
    mixed = {
        name: pl.List(pl.String) if isinstance(kind, pl.List) else pl.String()
        for name, kind in frame.schema.items()
        if _holds_integers(frame[name])
    }
    if mixed:
        frame = frame.with_columns(pl.read_ndjson(data, schema=mixed))
    # Among texts, polars makes texts of lists and objects as well: what looks like one is parsed
    # again, slowly.
    for name, kind in frame.schema.items():
        if kind == pl.String and frame[name].str.contains(r"^\s*[\[{]").any():
            return None
    return frame


def _holds_integers(column: pl.Series) -> bool:
    """Whether a column of floats, or of lists of them, holds any integer."""
    values = column.explode() if isinstance(column.dtype, pl.List) else column
    return values.dtype.is_float() and bool((values == values.floor()).any())


def _slow(text: str, wanted: list[str], single: Collection[str]) -> pl.DataFrame | str:
    """Parse one line; a text says why it cannot be used."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return "malformed line: not valid JSON"
    if not isinstance(row, dict):
        return "malformed line: expected a JSON object"
    values: dict[str, Any] = {}
    for name in wanted:
        value = row.get(name)
        if isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(x, dict | list) for x in value)
        ):
            return f"{name}: expected a value, received nested JSON"
        if isinstance(value, list) and name in single:
            return f"{name}: expected one value, received a list"
        if name in row:
            values[name] = [_plain(value)]
    frame = pl.DataFrame(values) if values else pl.DataFrame({"__none": [None]})
    return frame


def _plain(value: Any) -> Any:
    """Text for scalars, so that rows of any types stack."""
    if isinstance(value, list):
        return "|".join(str(_plain(x)) for x in value if x is not None)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # to JSON, 12.0 is 12
    return None if value is None else str(value)


def _stack(frames: list[pl.DataFrame], counts: list[int]) -> pl.DataFrame:
    """Concatenate; a column whose types differ between the frames becomes text."""
    names = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    kinds: dict[str, set[Any]] = {name: set() for name in names}
    for frame in frames:
        for name, kind in frame.schema.items():
            if kind != pl.Null:
                kinds[name].add(kind)
    columns = {}
    for name in names:
        kind = next(iter(kinds[name])) if len(kinds[name]) == 1 else pl.String
        parts = [
            as_text(frame[name])
            if kind == pl.String and name in frame.columns
            else frame[name].cast(kind)
            if name in frame.columns
            else pl.Series(name, [None] * count, dtype=kind)
            for frame, count in zip(frames, counts, strict=True)
        ]
        columns[name] = pl.concat(parts)
    return pl.DataFrame(columns).select([name for name in names if name != "__none"])


def as_text(column: pl.Series) -> pl.Series:
    """A column as text; the values of a list with `|` between them."""
    if isinstance(column.dtype, pl.List | pl.Array):
        return column.cast(pl.List(pl.String)).list.join("|", ignore_nulls=True)
    return column.cast(pl.String)
