"""Logs in which no column names users, nor groups of them: each visit is of someone unknown."""

from collections.abc import Sequence

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column, look

STRANGER = "stranger"


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
