"""Recognises logs whose rows are requests, with lists of what was shown, and unfolds them.

Of such a log, another column names the items of the list that were taken, or holds a 0 or 1 for
each, or each value ends in one (`N5-0 N8-1`).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from multigate.jobs.onboarding.tables.columns import decides
from multigate.jobs.onboarding.tables.raw import Table
from multigate.pipeline.read.derive import as_lists, member, row_for_each, with_lists
from multigate.pipeline.read.json_lines import as_text

_MARKS = ("|", " ", ",", ";")
_LEAST = 0.95
_MARKED = r"^(.+)[-:=_]([01])$"


def unfold(table: Table) -> Table:
    """Make one row for each item that a request showed; a table of other rows stays as it is.

    Args:
        table: the log.
    """
    for name, mark, lists in _lists(table):
        tokens = lists.list.explode().drop_nulls()
        if float(tokens.str.contains(_MARKED).mean() or 0.0) > _LEAST:
            return _unfolded(table, [name], mark, _marked(table, name))
        others = [(other, found) for other, at, found in _lists(table) if (other, at) != (name, "")]
        beside = [other for other, found in others if other != name and _alike(lists, found)]
        if any(_is_flags(found) for other, found in others if other in beside):
            return _unfolded(table, list(dict.fromkeys([name, *beside])), mark, {})
        taken = {
            other: {"member": name, "of": other, **_separator(mark)}
            for other in table.frame.columns
            if other != name
            and _is_part(as_lists(table.frame[other], mark or "|"), lists)
            # A list that repeats with it is a property, such as tags beside a kind.
            and decides(_texts(table, name, other), name, other) < _LEAST
        }
        if taken:
            return _unfolded(table, [name], mark, taken)
    return table


def _separator(mark: str) -> dict[str, str]:
    return {"separator": mark} if mark not in ("", "|") else {}


def _lists(table: Table) -> Iterator[tuple[str, str, pl.Series]]:
    """Columns of several values a row, that of most values first: name, separator, (N,) lists."""
    found = []
    for name in table.frame.columns:
        column = table.frame[name]
        if isinstance(column.dtype, pl.List | pl.Array):
            found.append((name, "", as_lists(column, "|")))
        elif column.dtype == pl.String:
            for mark in _MARKS:
                if float(column.str.contains(mark, literal=True).mean() or 0.0) > 0.5:
                    found.append((name, mark, as_lists(column, mark)))
                    break
    several = [one for one in found if float(one[2].list.len().mean() or 0.0) >= 2]
    # Flags are of few values, the items of many.
    return iter(sorted(several, key=lambda one: -one[2].list.explode().n_unique()))


def _alike(one: pl.Series, other: pl.Series) -> bool:
    same = one.list.len().eq_missing(other.list.len())
    return float(same.mean() or 0.0) > 0.99


def _is_flags(lists: pl.Series) -> bool:
    values = set(lists.list.explode().drop_nulls().str.to_lowercase().unique())
    return values in ({"0", "1"}, {"false", "true"})


def _is_part(part: pl.Series, whole: pl.Series) -> bool:
    """Whether a column's values are in the row's list, and not always its first one."""
    rows = pl.DataFrame({"part": part, "whole": whole}).drop_nulls()
    rows = rows.filter(pl.col("part").list.len() > 0)
    if len(rows) < 30:
        return False
    inside = rows.select(pl.col("part").list.set_difference("whole").list.len() == 0).to_series()
    same = rows.select(pl.col("part").list.len() == pl.col("whole").list.len()).to_series()
    return float(inside.mean() or 0.0) > _LEAST and float(same.mean() or 0.0) < 0.5


def _texts(table: Table, *names: str) -> pl.DataFrame:
    return table.frame.select(as_text(table.frame[name]).alias(name) for name in names)


def _marked(table: Table, name: str) -> dict[str, dict[str, Any]]:
    names = {*table.frame.columns}
    item, taken = (_free(f"{name}_{end}", names) for end in ("item", "taken"))
    return {
        item: {"extract": name, "pattern": "^(.+)[-:=_][01]$"},
        taken: {"extract": name, "pattern": "[-:=_]([01])$"},
    }


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _unfolded(
    table: Table, columns: list[str], mark: str, derive: dict[str, dict[str, Any]]
) -> Table:
    first, frame = columns[0], table.frame
    frame = with_lists(frame, columns, mark or "|")
    each = float(frame[first].list.len().mean() or 0.0)
    place = _free("place", {*frame.columns, *derive})
    frame = row_for_each(frame, columns, place)
    for name, rule in derive.items():
        if "member" in rule:
            made = member(frame[first], frame[name], mark or "|")
        else:
            made = frame[first].str.extract(rule["pattern"], 1)
        frame = frame.with_columns(made.alias(name))
    if any("extract" in rule for rule in derive.values()):
        frame = frame.drop(first)
    return replace(
        table,
        frame=frame,
        rows=round(table.rows * each),
        derive=table.derive | derive | {place: {"place_in": first}},
        explode={"columns": columns, **_separator(mark)},
    )
