"""Recognises values that some rows spell otherwise than others: in capitals, or with blanks around.

To the pipeline they are several ids, of which each has a part of the rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from multigate.jobs.onboarding.tables.columns import (
    DECIDES,
    decides,
    holds_times,
    is_prose,
    look,
    separator,
)
from multigate.jobs.onboarding.tables.raw import Table

_IDS, _ROWS = 0.02, 0.01  # of which there are several spellings, and that have the rarer ones
_LETTERS = 3.0  # of a value: `a` and `A` may be two codes
_MIXED = 0.02  # of the ids with several spellings
_SHARED = 0.5  # of a column's values
_MANY = 20  # values


def one_spelling(log: Table, others: Sequence[Table]) -> tuple[Table, list[Table]]:
    """Spell each value of the log's texts in one way.

    Args:
        log: events or impressions.
        others: tables beside it; where a column of them has the values of such a column, it is
            spelled in the same way.

    Returns:
        The tables, with rules of `derive` for the pipeline.
    """
    found: dict[str, str] = {}
    for name in log.frame.columns:
        if name not in log.derive and log.frame[name].dtype == pl.String:
            how = _variants(log.frame, name)
            if how is not None:
                found[name] = how
    if not found:
        return log, list(others)
    spelled = log
    for name, how in found.items():
        given, values = log.frame[name].replace("", None), _spelled(log.frame[name], how)
        texts, left = (one.drop_nulls().n_unique() for one in (given, values))
        spelled = _spell(
            spelled,
            values,
            how,
            f"{texts} texts, which are {left} but for "
            + (
                "capitals and blanks: read in small letters, in which requests send them"
                if how == "lower"
                else "blanks around them, which are cut"
            ),
        )
    return spelled, [_alike(other, spelled, found) for other in others]


def _alike(table: Table, log: Table, found: dict[str, str]) -> Table:
    """Spell the columns of a side table as the log's columns whose values they have."""
    for name in table.frame.columns:
        if name in table.derive or table.frame[name].dtype != pl.String:
            continue
        for other, how in found.items():
            known = log.frame[other].drop_nulls().unique()
            values = _spelled(table.frame[name], how)
            keys = values.drop_nulls()
            if len(known) < _MANY or keys.n_unique() < _MANY:
                continue
            if float(known.is_in(keys.implode()).mean() or 0.0) > _SHARED:
                table = _spell(table, values, how, f"spelled as {other!r} of the log")
                break
    return table


def _spell(table: Table, values: pl.Series, how: str, why: str) -> Table:
    """The table with a column of these values, which a rule makes."""
    name = values.name
    rule: dict[str, Any] = {how: name}
    if how == "extract":
        rule["pattern"] = "(.+)"  # of a text without the blanks around it
    return replace(
        table,
        frame=table.frame.with_columns(values),
        derive=table.derive | {name: rule},
        spellings=table.spellings | {name: why},
    )


def _spelled(texts: pl.Series, how: str) -> pl.Series:
    cut = texts.str.strip_chars().replace("", None)
    return cut.str.to_lowercase() if how == "lower" else cut


def _variants(frame: pl.DataFrame, name: str) -> str | None:
    """The rule that gives each value one spelling; None where none is needed, or it is unclear."""
    column = look(name, frame[name])
    if column.number is not None or column.distinct < 3:
        return None
    for how in ("lower", "extract"):
        if not _merges(column.raw, how):
            continue
        if is_prose(column) or separator(column) is not None or holds_times(column):
            return None
        return how if _is_same(frame, name, how) else None
    return None


def _merges(raw: pl.Series, how: str) -> bool:
    """Whether a rule makes one value of several ones, in many rows.

    A word in capitals, in small letters or with a capital first is one word; of ids whose letters
    are drawn, several are mixed.
    """
    texts = raw.drop_nulls().str.strip_chars()
    given = texts if how == "lower" else raw.drop_nulls()
    pairs = pl.DataFrame({"text": given, "one": _spelled(texts, how)}).drop_nulls()
    pairs = pairs.group_by("one", "text").len()
    ids = pairs.group_by("one").agg(
        n=pl.len(), rows=pl.col("len").sum(), most=pl.col("len").max(), texts=pl.col("text")
    )
    several = ids.filter(pl.col("n") > 1)
    rarer = int((several["rows"] - several["most"]).sum())
    if not len(several) or len(several) < _IDS * len(ids) or rarer < _ROWS * len(given):
        return False
    if how == "extract":
        return True
    if float(several["one"].str.count_matches(r"\w").mean() or 0.0) < _LETTERS:
        return False
    text = pl.col("texts")
    each = several.select("one", "texts").explode("texts")
    plain = (text == pl.col("one")) | (text == text.str.to_uppercase())
    first = text.str.head(1).str.to_uppercase() + pl.col("one").str.slice(1)
    mixed = each.group_by("one").agg(mixed=(~(plain | (text == first))).sum())["mixed"]
    return float((mixed > 1).mean() or 0.0) <= _MIXED


def _is_same(frame: pl.DataFrame, name: str, how: str) -> bool:
    """Whether the values decide the same columns with one spelling as with several."""
    both = frame.with_columns(__one=_spelled(frame[name], how))
    return not any(
        decides(both, name, other) >= DECIDES > decides(both, "__one", other)
        for other in frame.columns
        if other != name and not isinstance(frame[other].dtype, pl.List | pl.Array)
    )
