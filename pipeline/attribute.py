"""Attributes feedback to impressions: what the user did belongs to the view it followed."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl

from features import Timeline


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
    impressions: pl.DataFrame, feedback: pl.DataFrame, within: timedelta | None
) -> Attribution:
    """Give each feedback event to the user's latest impression of the item up to its time.

    Args:
        impressions: columns `user`, `item`, `time`; of two at the same time, the later row counts
            as the later one.
        feedback: columns `user`, `item`, `time` and more.
        within: later feedback is late and belongs to no impression; no limit where None.

    Returns:
        The attributed feedback. Feedback without an earlier impression, or without a time, is an
        orphan.
    """
    timeline = Timeline(impressions, ["user", "item"])
    start, stop, _ = timeline.earlier(feedback, inclusive=True)
    found = stop > start
    rows = timeline.rows[stop[found] - 1]
    given = feedback.filter(found)
    given = given.with_columns(
        impression=pl.Series(rows, dtype=pl.Int64),
        delay=(given["time"] - impressions["time"].gather(rows)).dt.total_microseconds(),
    )
    late = np.zeros(len(given), bool)
    if within is not None:
        late = (given["delay"] > within // timedelta(microseconds=1)).to_numpy()
    return Attribution(given.filter(~late), int(late.sum()), int((~found).sum()))
