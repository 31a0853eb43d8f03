"""Logs in which no column names users, nor groups of them: each visit is of someone unknown."""

from collections.abc import Sequence

import polars as pl

from multigate.jobs.onboarding.tables.columns import DECIDES, Column, decides, look, ranks

STRANGER = "stranger"
_KINDS = 12  # values
_MEASURED = 20  # values
_TOLD = 0.8  # AUC
_ALL, _NONE = 0.95, 0.05  # of the rows


def with_strangers(
    frame: pl.DataFrame,
    columns: dict[str, Column],
    item: str,
    event: str | None,
    opens: Sequence[str],
) -> tuple[pl.DataFrame, dict[str, Column], str]:
    """Add a column of users of whom each has one visit.

    Args:
        frame: the log in the order of time.
        columns: of it.
        item: the column of items.
        event: the column of event types, of which rows of one item make visits; None where each
            row stands alone.
        opens: the types that begin a visit.

    Returns:
        The rows and the columns with one more, and its name.
    """
    name = STRANGER
    while name in columns:
        name += "_"
    number = pl.int_range(pl.len())
    if event is not None:
        number = pl.col(event).is_in(opens).cum_sum().over(item)
    of_item = pl.col(item) if event is not None else pl.lit("row")
    frame = frame.with_columns(pl.format("{} #{}", of_item, number).alias(name))
    return frame, {name: look(name, frame[name]), **columns}, name


def kinds_of_rows(
    frame: pl.DataFrame, columns: dict[str, Column], ids: Sequence[str]
) -> dict[str, str]:
    """Columns of words that say what a row is of, and the numbers that they tell -> why.

    A number that is another one in rows of another word, as seconds are of `play` and of `skip`, or
    that some words lack, belongs to what happened, and words for it are no groups of users. Where a
    flag says what came of a row, it is no event.

    Args:
        frame: the log in the order of time.
        columns: of it.
        ids: names of those that may name users or items.
    """
    if any(one.flag and not _is_owned(frame, one.name, ids) for one in columns.values()):
        return {}
    found = {}
    for name in ids:
        column = columns[name]
        if column.number is not None or column.distinct > _KINDS:
            continue
        others = [one for one in ids if one != name]
        for measure, number in columns.items():
            if number.number is None or number.distinct < _MEASURED or measure in ids:
                continue
            if _tells_number(frame, name, measure) and not _is_owned(frame, measure, others):
                found[name] = f"its words tell {measure!r} apart, so that they may be event types"
                found[measure] = f"it belongs to the words of {name!r}"
    return found


def _is_owned(frame: pl.DataFrame, name: str, ids: Sequence[str]) -> bool:
    return any(decides(frame, one, name) >= DECIDES for one in ids)


def _tells_number(frame: pl.DataFrame, words: str, measure: str) -> bool:
    """Whether a number is larger, or mostly lacking, in rows of one word, and within it differs."""
    number = frame[measure].cast(pl.Float64, strict=False)
    rows = pl.DataFrame({"word": frame[words], "x": number})
    lacks = rows.group_by("word").agg(pl.col("x").is_null().mean())["x"]
    if (lacks > _ALL).any() and (lacks < _NONE).any():
        return True
    areas = (ranks(number, frame[words] == one) for one in frame[words].drop_nulls().unique())
    return any(max(area, 1 - area) > _TOLD for area in areas)
