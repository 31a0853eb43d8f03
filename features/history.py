"""The user's last items: the history feature, for the pipeline and for clients."""

from datetime import timedelta

import numpy as np
import polars as pl
import pyarrow as pa

from multigate.features.earlier import Positions, Timeline


def last_items(
    events: pl.DataFrame, queries: pl.DataFrame, last: int, within: timedelta | None = None
) -> pl.Series:
    """List the items of each user's last events strictly before each query's time.

    Events at the query's very time are not visible: when an impression is scored, they have not
    happened yet. Events of one user at the same time are in the order of their items, so that the
    order in which a caller holds them makes no difference.

    Args:
        events: columns `user`, `time`, `item`; already filtered to the events that count.
            Events without a time are in no history.
        queries: columns `user`, `time`; a query without a time has an empty history.
        last: how many items to keep, at least 1.
        within: how far back; without limit where None.

    Returns:
        One list per query, oldest first, empty where there is nothing: (B,) lists of up to `last`.
    """
    events = events.filter(pl.col("user").is_not_null())
    timeline = Timeline(events, ["user"])
    rows = _by_item(timeline, events["item"])
    start, stop = timeline.before(queries, within)
    start = np.maximum(start, stop - last)
    offsets = np.zeros(len(start) + 1, np.int64)
    np.cumsum(stop - start, out=offsets[1:])
    # Positions start[i], start[i] + 1, ..., stop[i] - 1 of every query, one after another.
    flat = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], stop - start)
    # As views of texts, which are not copied.
    items = events["item"].gather(rows[flat]).to_arrow(compat_level=pl.CompatLevel.newest())
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), items)
    return pl.Series("history", lists, dtype=pl.List(events.schema["item"]))


def _by_item(timeline: Timeline, items: pl.Series) -> Positions:
    """The timeline's rows; those of the same user and time in the order of their items."""
    rows = timeline.rows.copy()
    at, same = timeline.tied()
    tied = pl.DataFrame({"same": same, "item": items.gather(rows[at]), "row": rows[at]})
    rows[at] = tied.sort("same", "item", maintain_order=True)["row"].to_numpy()
    return rows
