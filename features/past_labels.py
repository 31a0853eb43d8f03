"""Past labels: how a task came out for a user or an item so far, as of a point in time.

A label counts from the instant at which it closes, strictly before the query's time.  So the row's
own label, which closes later, is never part of its features.
"""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.features.earlier import Positions, Timeline

_MICROSECOND = timedelta(microseconds=1)
_BITS = 24  # of a word; the words of a label are multiples of 1, 2**-24 and 2**-48
_WORDS = 3
_LARGEST = 2.0**32

Window = tuple[Positions, Positions]
"""(B,) and (B,): where each query's impressions begin and end in the timeline."""


@dataclass(frozen=True)
class Totals:
    """What `PastLabels.totals` returns of B queries."""

    sums: NDArray[np.float64]
    """(B,) sums of the labels."""
    counts: NDArray[np.float64]
    """(B,) how many labels there were."""

    def mean(self, strength: float, prior: float) -> NDArray[np.float64]:
        """(B,) smoothed means: (sum + strength * prior) / (count + strength)."""
        # Written so that it is exactly the prior where there are no labels.
        return prior + (self.sums - self.counts * prior) / (self.counts + strength)


class PastLabels:
    """The labels of impressions, sorted by user (or item) and time, ready to be added up.

    Sums are exact to 2**-48, so that they depend on neither the order of the rows nor on what
    other rows there are.

    Args:
        impressions: columns of the keys, `time` (of the impression) and the labels, null where
            masked. Impressions without a key or a time count for nobody.
        keys: names of the columns that say whose labels: `user`, `item`, or a user and a category.
    """

    def __init__(self, impressions: pl.DataFrame, *keys: str) -> None:
        self._rows = impressions.filter(pl.all_horizontal(pl.col(keys).is_not_null()))
        self._timeline = Timeline(self._rows, list(keys))
        self._sums: dict[str, tuple[list[NDArray[np.int64]], NDArray[np.int64]]] = {}

    def closed(
        self, queries: pl.DataFrame, wait: timedelta, within: timedelta | None = None
    ) -> Window:
        """Find the impressions with labels that closed in [time - within, time).

        Args:
            queries: columns of the keys, and `time`.
            wait: how long after its impression a label closes.
            within: how far back; without limit where None.
        """
        # It closed at impression + wait < time: the impression was before time - wait.
        span = pl.duration(microseconds=wait // _MICROSECOND, time_unit="us")
        earlier = queries.with_columns(pl.col("time").dt.cast_time_unit("us") - span)
        return self._timeline.before(earlier, within)

    def totals(self, label: str, closed: Window) -> Totals:
        """Add up the labels of a column over the impressions that `closed` found.

        Raises:
            ValueError: a label is beyond 2**32 or not finite.
        """
        start, stop = closed
        words, present = self._cumulated(label)
        sums = np.zeros(len(start))
        for place, word in reversed(list(enumerate(words))):
            sums += (word[stop] - word[start]).astype(np.float64) * 2.0 ** (-_BITS * place)
        return Totals(sums, (present[stop] - present[start]).astype(np.float64))

    def _cumulated(self, label: str) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Running sums of a label's words and of its presence over the timeline, (R + 1,) each."""
        if label not in self._sums:
            values = self._rows[label].cast(pl.Float64).gather(self._timeline.rows)
            given = values.is_not_null().to_numpy()
            left = values.fill_null(0).to_numpy()
            if not (np.abs(left) <= _LARGEST).all():
                raise ValueError(
                    f"{label}: expected numbers of at most 2**32 to take a mean of, received "
                    f"{left[np.argmax(~(np.abs(left) <= _LARGEST))]:g}"
                )
            words: list[NDArray[np.int64]] = []
            while left.any() and len(words) < _WORDS:
                whole = np.floor(left)
                words.append(_running(whole.astype(np.int64)))
                left = (left - whole) * 2.0**_BITS
            self._sums[label] = words, _running(given.astype(np.int64))
        return self._sums[label]


def _running(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """(R + 1,) sums of the first 0, 1, ... values; differences are exact even beyond 64 bits."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
