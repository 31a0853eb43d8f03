"""Which items a user had touched by the time of a positive: they are no negatives of it."""

from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.pipeline.sample.candidate_pool import ALWAYS, NEVER

_MICROSECOND = timedelta(microseconds=1)


class TouchedBefore:
    """Tells whether a positive's user had touched an item up to the positive's time.

    Args:
        positives: columns `user`, `time`.
        touched: columns `user`, `item`, `time` (first time), `unknown` (whether the time of any
            event of the pair is unknown: then it counts as touched at all times).
        items: the pool's items, sorted; an item's code is its place.
        ever: whether items that the user touches later count too.
    """

    def __init__(
        self, positives: pl.DataFrame, touched: pl.DataFrame, items: pl.Series, ever: bool
    ) -> None:
        users = touched["user"].unique().sort()
        known = touched.filter(pl.col("item").is_in(items.implode()))
        self._items = len(items)
        owner = users.search_sorted(known["user"]).to_numpy().astype(np.int64)
        keys = owner * self._items + items.search_sorted(known["item"]).to_numpy()
        since = known["time"].to_physical().fill_null(ALWAYS).to_numpy().copy()
        since[known["unknown"].to_numpy() | ever] = ALWAYS
        order = np.argsort(keys)
        self._keys = np.append(keys[order], np.iinfo(np.int64).max)
        self._since = np.append(since[order], NEVER)
        self._user = users.search_sorted(positives["user"]).to_numpy().astype(np.int64)
        self._time = positives["time"].to_physical().fill_null(NEVER - 1).to_numpy()

    def __call__(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the user of positive `rows[i]` had touched item `items[i]`; they broadcast."""
        keys = self._user[rows] * self._items + items
        at = np.searchsorted(self._keys, keys)
        return (self._keys[at] == keys) & (self._since[at] <= self._time[rows])


class TouchedWithin:
    """Tells whether a positive's user had touched an item in [time - within, time].

    Args:
        positives: columns `user`, `time`; times are known.
        touched: columns `user`, `item`, `time`: every event of the users.
        items: the pool's items, sorted; an item's code is its place.
        within: how far back.
    """

    def __init__(
        self, positives: pl.DataFrame, touched: pl.DataFrame, items: pl.Series, within: timedelta
    ) -> None:
        users = touched["user"].unique().sort()
        known = touched.filter(pl.col("item").is_in(items.implode()))
        self._items, self._span = len(items), within // _MICROSECOND
        owner = users.search_sorted(known["user"]).to_numpy().astype(np.int64)
        pairs = owner * self._items + items.search_sorted(known["item"]).to_numpy()
        self._pairs, group = np.unique(pairs, return_inverse=True)
        times = known["time"].dt.cast_time_unit("us").to_physical().to_numpy()
        order = np.lexsort((times, group))
        self._times, self._group = times[order], group[order]
        self._instants = np.unique(times)
        # One sortable number for a pair and a time, as of `features.Timeline`.
        self._stride = len(self._instants) + 1
        ranks = np.searchsorted(self._instants, self._times)
        self._search = self._group * self._stride + ranks
        self._user = users.search_sorted(positives["user"]).to_numpy().astype(np.int64)
        self._time = positives["time"].dt.cast_time_unit("us").to_physical().to_numpy()

    def __call__(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the user of positive `rows[i]` had touched item `items[i]`; they broadcast."""
        pairs, times = self._user[rows] * self._items + items, self._time[rows]
        if not len(self._pairs):
            return np.zeros(np.broadcast(rows, items).shape, bool)
        group = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        rank = np.searchsorted(self._instants, times, side="right")
        last = np.searchsorted(self._search, group * self._stride + rank) - 1
        same = (self._pairs[group] == pairs) & (last >= 0) & (self._group[last] == group)
        return same & (self._times[last] >= times - self._span)
