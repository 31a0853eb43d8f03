"""Which rows of a group came before a point in time: the one primitive of point-in-time features.

History, attribution, dwell and "the item's latest earlier value" all ask the same question of a
table sorted by group and time: for a query (group, time), where do the group's rows begin, and how
many of them are earlier? Binary search answers it for all queries at once.
"""

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Positions = NDArray[np.int64]

_MICROSECOND = timedelta(microseconds=1)
_LARGEST = 1 << 62


class Timeline:
    """Rows of groups in the order of time, ready to be searched.

    Args:
        rows: a table; rows of the same group and time keep the order they have in it.
        keys: columns that name a row's group; none of them null.
        time: column of the time; rows without a time are left out.
    """

    def __init__(self, rows: pl.DataFrame, keys: list[str], time: str = "time") -> None:
        self._keys, self._time = keys, time
        self._groups = rows.select(keys).unique(maintain_order=True).with_row_index("__group")
        known = rows.select(time, *keys).with_row_index("__row")
        known = known.filter(pl.col(time).is_not_null()).join(
            self._groups, on=keys, how="left", maintain_order="left"
        )
        times = _integers(known[time])
        groups = known["__group"].to_numpy().astype(np.int64)
        # One sortable number for a group and a time: group * stride + the time since the first one.
        # Where that would need more than 64 bits, the time's rank replaces the time.
        self._times: Positions | None = None
        self._first = int(times.min(initial=_LARGEST))
        self._stride = max(int(times.max(initial=-_LARGEST)) - self._first, 0) + 2
        if len(self._groups) * self._stride > _LARGEST:
            self._times = np.unique(times)
            self._stride = len(self._times) + 1
        search = groups * self._stride + self._ranks(times, inclusive=False)
        order = np.argsort(search, kind="stable")  # fast where most rows are in order already
        self.rows: Positions = known["__row"].to_numpy().astype(np.int64)[order]
        """The row numbers of `rows`, sorted by group and time."""
        self._search = search[order]
        self._bounds = np.searchsorted(groups[order], np.arange(len(self._groups) + 1))

    def earlier(
        self, queries: pl.DataFrame, time: str | None = None, *, inclusive: bool = False
    ) -> tuple[Positions, Positions, Positions]:
        """Find each query's group and how much of it is earlier.

        Args:
            queries: a table with the key columns and a time column.
            time: the queries' time column, where its name differs.
            inclusive: whether rows at the query's very time count as earlier.

        Returns:
            `start`, `stop`, `end`, each (B,), positions in `self.rows`: the group occupies
            [start, end), its earlier rows are [start, stop). A query without a time or of an
            unknown group has three equal positions.
        """
        time = time or self._time
        asked = queries.select(time, *self._keys).join(
            self._groups, on=self._keys, how="left", maintain_order="left"
        )
        unknown = (asked["__group"].is_null() | asked[time].is_null()).to_numpy()
        groups = asked["__group"].fill_null(0).to_numpy().astype(np.int64)
        instants = _integers(asked[time])
        ranks = self._ranks(instants, inclusive)
        start = self._bounds[groups]
        # The bounds have one entry more than there are groups, at least one.
        end = self._bounds[np.minimum(groups + 1, len(self._groups))]
        stop = np.searchsorted(self._search, groups * self._stride + ranks)
        return start, np.where(unknown, start, stop), np.where(unknown, start, end)

    def _ranks(self, instants: Positions, inclusive: bool) -> Positions:
        """The number within their group that earlier rows are below, (B,)."""
        if self._times is not None:
            return np.searchsorted(self._times, instants, side="right" if inclusive else "left")
        return np.clip(instants - self._first + inclusive, 0, self._stride - 1)

    def tied(self) -> tuple[Positions, Positions]:
        """Find rows that share group and time with others.

        Returns:
            Their positions in `self.rows`, ascending, and for each a number that those of the same
            group and time share, ascending.
        """
        same = self._search[1:] == self._search[:-1]
        at = np.flatnonzero(np.append(same, False) | np.append(False, same))
        return at, self._search[at]

    def before(
        self, queries: pl.DataFrame, within: timedelta | None = None
    ) -> tuple[Positions, Positions]:
        """Find each query's rows in [time - within, time), or before its time where None.

        Args:
            queries: a table with the key columns and the time column, an instant.
            within: how far back.

        Returns:
            `start` and `stop`, each (B,), positions in `self.rows`.
        """
        start, stop, _ = self.earlier(queries)
        if within is not None:
            span = pl.duration(microseconds=within // _MICROSECOND, time_unit="us")
            early = pl.col(self._time).dt.cast_time_unit("us") - span
            _, start, _ = self.earlier(queries.select(*self._keys, early))
        return start, stop


def _integers(times: Any) -> NDArray[np.int64]:
    """Times as numbers of one unit (microseconds, where they are instants); null becomes 0."""
    if isinstance(times.dtype, pl.Datetime):
        times = times.dt.cast_time_unit("us")
    return times.to_physical().cast(pl.Int64).fill_null(0).to_numpy()
