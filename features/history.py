"""The user's last items: the history feature, for the pipeline and for clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
import pyarrow as pa

from multigate.features.earlier import Positions, Timeline


@dataclass(frozen=True)
class Slices:
    """Lists that share one column: row i's list is `items[start[i] : stop[i]]`."""

    items: pl.Series
    """(N,) all values, in any order that makes each list one piece."""
    start: Positions
    """(B,)"""
    stop: Positions
    """(B,)"""

    @classmethod
    def of(cls, lists: pl.Series) -> "Slices":
        """Slices of a column of lists; a missing list is an empty one."""
        lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
        stop = np.cumsum(lengths)
        return cls(lists.filter(lengths > 0).explode(), stop - lengths, stop)

    def __getitem__(self, rows: Positions | slice) -> "Slices":
        """The lists of some rows."""
        return Slices(self.items, self.start[rows], self.stop[rows])

    def coded(self) -> "Slices":
        """The same lists; texts as codes of the different ones, which are few and quick to copy."""
        if self.items.dtype != pl.String:
            return self
        different = pl.Enum(self.items.drop_nulls().unique())
        return Slices(self.items.cast(different), self.start, self.stop)

    def flat(self) -> Positions:
        """(sum of lengths,) positions in `items` of all values, one list after another."""
        lengths = self.stop - self.start
        before = np.cumsum(lengths) - lengths
        return np.arange(int(lengths.sum())) + np.repeat(self.start - before, lengths)

    def lists(self) -> pl.Series:
        """(B,) lists."""
        return self._lists(self.items.gather(self.flat()))

    def ages(self, times: pl.Series) -> pl.Series:
        """(B,) lists of whole seconds from each value, an instant, to the row's time."""
        now = np.repeat(_microseconds(times), self.stop - self.start)
        passed = now - _microseconds(self.items)[self.flat()]
        return self._lists(pl.Series(passed // 1_000_000))

    def _lists(self, values: pl.Series) -> pl.Series:
        """(B,) lists of the values of `flat`."""
        offsets = np.zeros(len(self.start) + 1, np.int64)
        np.cumsum(self.stop - self.start, out=offsets[1:])
        # As views of texts, which are not copied.
        plain = values.to_physical() if values.dtype == pl.Enum else values
        flat = plain.to_arrow(compat_level=pl.CompatLevel.newest())
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), flat)
        found = pl.Series("history", lists, dtype=pl.List(plain.dtype))
        return found if plain is values else found.list.eval(pl.element().cat.to(values.dtype))


def _microseconds(times: pl.Series) -> Positions:
    return times.dt.cast_time_unit("us").to_physical().fill_null(0).to_numpy()


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
    return last_slices(events, queries, last, within).lists()


def last_slices(
    events: pl.DataFrame, queries: pl.DataFrame, last: int, within: timedelta | None = None
) -> Slices:
    """Find the lists of `last_items` without copying them: 16 bytes for each query."""
    return last_entries(events, queries, last, within)["item"]


def last_entries(
    events: pl.DataFrame,
    queries: pl.DataFrame,
    last: int,
    within: timedelta | None = None,
    beside: Sequence[str] = (),
) -> dict[str, Slices]:
    """Find the lists of `last_items`, and lists of other columns of the same events.

    Events of one user, time and item are in the order of the columns `beside`.

    Returns:
        By column: `item`, `time` and those `beside`.
    """
    events = events.filter(pl.col("user").is_not_null())
    timeline = Timeline(events, ["user"])
    rows = _in_order(timeline, events.select("item", *beside))
    start, stop = timeline.before(queries, within)
    start = np.maximum(start, stop - last)
    return {
        name: Slices(events[name].gather(rows), start, stop) for name in ("item", "time", *beside)
    }


def _in_order(timeline: Timeline, columns: pl.DataFrame) -> Positions:
    """The timeline's rows; those of the same user and time in the order of the columns."""
    rows = timeline.rows.copy()
    at, same = timeline.tied()
    tied = columns[rows[at]].with_columns(__same=same, __row=rows[at])
    rows[at] = tied.sort("__same", *columns.columns, maintain_order=True)["__row"].to_numpy()
    return rows
