"""Adds the columns that the configuration derives from a file's own columns."""

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from multigate.configs.sections.derive import Derived
from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.parse import parse_time
from multigate.pipeline.read.sources import Chunk


def derive(
    chunk: Chunk, rules: Mapping[str, Derived], unit: str, unknown: int | None, zone: str
) -> Chunk:
    """Add derived columns to raw rows.

    Args:
        chunk: rows with the file's columns. A column that it lacks is null everywhere.
        rules: by the derived column's name, which may be that of a column of the file.
        unit: of columns of times; see `times.parse_time`.
        unknown: the number that means an unknown time.
        zone: of the hours and weekdays, and of times that name none.

    Returns:
        The rows with the derived columns in the place of those of the same names. `columns` keeps
        the file's names.
    """
    if not rules or not chunk.columns:
        return chunk

    def raw(name: str) -> pl.Series:
        if name in chunk.frame.columns:
            return chunk.frame[name]
        return pl.Series(name, [None] * len(chunk.line), dtype=pl.String)

    def time(name: str) -> pl.Series:
        """Local times; null where none can be read."""
        return parse_time(raw(name), unit, unknown, zone).values.dt.convert_time_zone(zone)

    made = []
    for name, rule in rules.items():
        if rule.join is not None:
            values = _joined([_filled(raw(one)) for one in rule.join], rule.separator)
        elif rule.lower is not None:
            values = _filled(raw(rule.lower)).str.to_lowercase()
        elif rule.extract is not None:
            values = _filled(raw(rule.extract)).str.extract(str(rule.pattern), 1)
        elif rule.hour_of is not None:
            values = time(rule.hour_of).dt.hour().cast(pl.Int64)
        else:
            values = time(str(rule.weekday_of)).dt.weekday().cast(pl.Int64)
        made.append(values.alias(name))
    kept = [column for column in chunk.frame if column.name not in rules]
    return replace(chunk, frame=pl.DataFrame([*kept, *made]))


def _filled(column: pl.Series) -> pl.Series:
    """The column's texts without blanks around them; null where nothing is left."""
    return as_text(column).str.strip_chars().replace("", None)


def _joined(texts: list[pl.Series], separator: str) -> pl.Series:
    frame = pl.DataFrame([text.alias(str(at)) for at, text in enumerate(texts)])
    joined = pl.concat_str(pl.all().fill_null(""), separator=separator)
    return frame.select(pl.when(~pl.all_horizontal(pl.all().is_null())).then(joined)).to_series()
