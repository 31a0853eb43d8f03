"""Counters: how many events a user or an item had, and how long ago, as of a point in time.

Nothing at or after the query's time counts: when an impression is scored, it has not happened yet.
"""

from datetime import timedelta
from typing import Literal

import numpy as np
import polars as pl

from multigate.features.earlier import Timeline
from multigate.features.past_labels import PastLabels


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
    start, stop = timeline.before(queries, within)
    counts = pl.Series("count", (stop - start).astype(np.float64))
    return _unless(queries["time"].is_null(), counts)


def event_rate(
    events: pl.DataFrame,
    per: pl.DataFrame,
    queries: pl.DataFrame,
    key: str,
    within: timedelta | None = None,
) -> pl.Series:
    """Divide two counts of each query's user or item, such as clicks by impressions.

    Args:
        events: what is counted; as for `count_events`.
        per: what it is divided by; as for `count_events`.
        queries: columns `key` and `time`.
        key: `user` or `item`.
        within: how far back both are counted; without limit where None.

    Returns:
        (B,) count(events) / count(per), float64; null where the latter is 0 or the query has no
        time. Above 1 where there is more of the former.
    """
    counted = count_events(events, queries, key, within)
    divisor = count_events(per, queries, key, within)
    return _unless(divisor.is_null() | (divisor == 0), (counted / divisor).alias("rate"))


def seconds_since(
    events: pl.DataFrame,
    queries: pl.DataFrame,
    key: str,
    which: Literal["last", "first"] = "last",
    within: timedelta | None = None,
) -> pl.Series:
    """Measure the time from each user's or item's last (first) event to the query.

    Args:
        events: as for `count_events`.
        queries: columns `key` and `time`.
        key: `user` or `item`.
        which: `last` gives the recency, `first` the age.
        within: only events at most so long before; without limit where None.

    Returns:
        (B,) seconds, float64, above 0; null where there was no event before.
    """
    events = events.filter(pl.col(key).is_not_null())
    timeline = Timeline(events, [key])
    start, stop = timeline.before(queries, within)
    found = stop > start
    at = np.where(found, stop - 1 if which == "last" else start, 0)
    if not len(timeline.rows):
        return pl.Series("since", [None] * len(queries), dtype=pl.Float64)
    then = events["time"].gather(timeline.rows[at]).dt.cast_time_unit("us")
    passed = queries["time"].dt.cast_time_unit("us") - then
    seconds = passed.dt.total_microseconds().cast(pl.Float64) / 1e6
    return _unless(pl.Series(~found), seconds.alias("since"))


def mean_value(
    events: pl.DataFrame, queries: pl.DataFrame, key: str, within: timedelta | None = None
) -> pl.Series:
    """Mean of the values of each query's user's or item's past events.

    Args:
        events: as for `count_events`, and `value`; events without a value do not count.
        queries: columns `key` and `time`.
        key: `user` or `item`.
        within: how far back; without limit where None.

    Returns:
        (B,) float64; null where there was no value before. The sums are exact, see `PastLabels`.

    Raises:
        ValueError: a value is beyond 2**32.
    """
    past = PastLabels(events.filter(pl.col("value").is_not_null()), key)
    totals = past.totals("value", past.closed(queries, timedelta(0), within))
    none = pl.Series(totals.counts == 0)
    return _unless(none, pl.Series("mean", totals.sums / np.maximum(totals.counts, 1)))


def largest_value(
    events: pl.DataFrame, queries: pl.DataFrame, key: str, within: timedelta | None = None
) -> pl.Series:
    """Largest value of each query's user's or item's past events.

    Args:
        events: as for `count_events`, and `value`; events without a value do not count.
        queries: columns `key` and `time`.
        key: `user` or `item`.
        within: how far back; without limit where None.

    Returns:
        (B,) float64; null where there was no value before.
    """
    events = events.filter(pl.col(key).is_not_null() & pl.col("value").is_not_null())
    timeline = Timeline(events, [key])
    start, stop = timeline.before(queries, within)
    values = events["value"].cast(pl.Float64).gather(timeline.rows).to_numpy()
    found = stop > start
    result = np.full(len(start), np.nan)
    # Level n holds the largest of each run of 2**n values. Two runs cover a window whose length is
    # between theirs and twice theirs.
    lengths = np.maximum(stop - start, 1)
    levels = np.frexp(lengths)[1] - 1  # floor(log2(length))
    for level in range(int(levels[found].max(initial=-1)) + 1):
        if level:
            half = 1 << (level - 1)
            values = np.maximum(values[:-half], values[half:])
        at = np.flatnonzero(found & (levels == level))
        result[at] = np.maximum(values[start[at]], values[stop[at] - (1 << level)])
    return _unless(pl.Series(~found), pl.Series("max", result))


def _unless(absent: pl.Series, values: pl.Series) -> pl.Series:
    """The values, null where `absent`."""
    return values.zip_with(~absent, pl.Series([None] * len(values), dtype=values.dtype))
