"""Counters: how many events a user or an item had, and how long ago, as of a point in time.

Nothing at or after the query's time counts: when an impression is scored, it has not happened yet.
"""

from datetime import timedelta
from typing import Literal

import numpy as np
import polars as pl

from features.earlier import Timeline

_MICROSECOND = timedelta(microseconds=1)


def count_events(
    events: pl.DataFrame, queries: pl.DataFrame, key: str, within: timedelta | None = None
) -> pl.Series:
    """Count the events of each query's user or item in [time - within, time).

    Args:
        events: columns `key` and `time` (an instant); already filtered to the events that count.
            Events without a key or a time count for nobody.
        queries: columns `key` and `time`.
        key: name of the column that says whose events: `user` or `item`.
        within: how far back; without limit where None.

    Returns:
        (B,) whole numbers as float64, 0 where there is none; null where the query has no time.
    """
    timeline = Timeline(events.filter(pl.col(key).is_not_null()), [key])
    start, stop, _ = timeline.earlier(queries)
    if within is not None:
        microseconds = pl.duration(microseconds=within // _MICROSECOND, time_unit="us")
        early = queries.select(key, pl.col("time").dt.cast_time_unit("us") - microseconds)
        _, start, _ = timeline.earlier(early)
    counts = pl.Series("count", (stop - start).astype(np.float64))
    return _unless(queries["time"].is_null(), counts)


def seconds_since(
    events: pl.DataFrame,
    queries: pl.DataFrame,
    key: str,
    which: Literal["last", "first"] = "last",
) -> pl.Series:
    """Measure the time from each user's or item's last (first) event to the query.

    Args:
        events: as for `count_events`.
        queries: columns `key` and `time`.
        key: `user` or `item`.
        which: `last` gives the recency, `first` the age.

    Returns:
        (B,) seconds, float64, above 0; null where there was no event before.
    """
    events = events.filter(pl.col(key).is_not_null())
    timeline = Timeline(events, [key])
    start, stop, _ = timeline.earlier(queries)
    found = stop > start
    at = np.where(found, stop - 1 if which == "last" else start, 0)
    if not len(timeline.rows):
        return pl.Series("since", [None] * len(queries), dtype=pl.Float64)
    then = events["time"].gather(timeline.rows[at]).dt.cast_time_unit("us")
    passed = queries["time"].dt.cast_time_unit("us") - then
    seconds = passed.dt.total_microseconds().cast(pl.Float64) / 1e6
    return _unless(pl.Series(~found), seconds.alias("since"))


def _unless(absent: pl.Series, values: pl.Series) -> pl.Series:
    """The values, null where `absent`."""
    return values.zip_with(~absent, pl.Series([None] * len(values), dtype=values.dtype))
