"""Attributes feedback to impressions: what the user did belongs to the view it followed."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.features import Timeline


@dataclass(frozen=True)
class Attribution:
    """What `attribute` returns.

    `feedback`: the attributed events, with columns `impression` (row number of the impression)
    and `delay` (microseconds since it) beside their own; and how many found none.
    """

    feedback: pl.DataFrame
    late: int
    orphans: int


def attribute(
    impressions: pl.DataFrame,
    feedback: pl.DataFrame,
    within: timedelta | None,
    by: Literal["latest", "request"] = "latest",
) -> Attribution:
    """Give each feedback event to the user's latest impression of the item up to its time.

    Args:
        impressions: columns `user`, `item`, `time`; of two at the same time, the later row counts
            as the later one.
        feedback: columns `user`, `item`, `time` and more.
        within: later feedback is late and belongs to no impression; no limit where None.
        by: under `request`, feedback that names a request belongs to the impression of that
            request, though the item may have been shown again since; column `request` of both.

    Returns:
        The attributed feedback. Feedback without an earlier impression, or without a time, is an
        orphan.
    """
    rows = _latest(impressions, feedback, ["user", "item"])
    if by == "request":
        named = feedback["request"].is_not_null().to_numpy()
        rows = np.where(named, _latest(impressions, feedback, ["user", "item", "request"]), rows)
    found = rows >= 0
    rows = rows[found]
    given = feedback.filter(found)
    given = given.with_columns(
        impression=pl.Series(rows, dtype=pl.Int64),
        delay=(given["time"] - impressions["time"].gather(rows)).dt.total_microseconds(),
    )
    late = np.zeros(len(given), bool)
    if within is not None:
        late = (given["delay"] > within // timedelta(microseconds=1)).to_numpy()
    return Attribution(given.filter(~late), int(late.sum()), int((~found).sum()))


def _latest(
    impressions: pl.DataFrame, feedback: pl.DataFrame, keys: list[str]
) -> NDArray[np.int64]:
    """(B,) row of the latest impression of the same keys up to each event; -1 where none is."""
    known = impressions.with_row_index("__at").drop_nulls(keys)
    timeline = Timeline(known, keys)
    start, stop, _ = timeline.earlier(feedback, inclusive=True)
    found = stop > start
    rows = np.full(len(feedback), -1, np.int64)
    rows[found] = known["__at"].to_numpy()[timeline.rows[stop[found] - 1]]
    return rows
