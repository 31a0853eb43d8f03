"""The candidate pool: the items that a positive draws its negatives from, shown by then.

The pool is a table of impressions (time, item), sorted by both. Which of its rows a positive draws
from, and in which order, depends on what came before the positive alone: more log changes no
earlier draw.
"""

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs.sections.pipeline import Negatives
from multigate.pipeline.sample.occurrences import Occurrences

Numbers = NDArray[np.int64]

_MICROSECOND = timedelta(microseconds=1)
NEVER, ALWAYS = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def thin(shown: pl.DataFrame, negatives: Negatives) -> pl.DataFrame:
    """Keep the impressions that draws need; thinning parts first gives the same.

    Args:
        shown: columns `time`, `item` and maybe more, which are those of the kept impressions.
        negatives: how items are drawn.

    Returns:
        For popularity, every row. For uniform draws, each item's first impression; with `recent`,
        its first and its last one in each span of that length, counted from 1970.
    """
    if negatives.sampling == "popularity":
        return shown
    keys = [pl.col("item")]
    if negatives.recent is not None:
        span = negatives.recent // _MICROSECOND
        keys.append((pl.col("time").to_physical() // span).alias("__span"))
    groups = shown.sort("time", "item", nulls_last=False).group_by(keys, maintain_order=True)
    kept = groups.first()
    if negatives.recent is not None:
        kept = pl.concat([kept, groups.last()]).unique(["item", "time"])
    return kept.select(shown.columns)


class CandidatePool:
    """What each of B positives draws from: its candidates.

    Without `recent`, the candidates are the pool's rows before the positive (all of them under
    `exclude: ever`). With it, they are the window [time - recent, time); for uniform draws of that,
    two ranges, one after the other: the items' last impressions of the span before the positive's,
    as far as they are in the window, and the items' first impressions in the positive's own span.
    Every item of the window is in the one or the other; an item in both is `repeated` in the
    former.

    Args:
        pool: thinned; sorted by time and item, unknown times first.
        codes: numbers of the pool's items.
        times: (B,) microseconds; `ALWAYS` where unknown.
        negatives: how items are drawn.
    """

    def __init__(self, pool: pl.DataFrame, codes: Numbers, times: Numbers, negatives: Negatives):
        at = pool["time"].to_physical().fill_null(ALWAYS).to_numpy()
        self._pool_codes = codes
        self._codes, self._times = codes, times
        self._again = np.full(len(pool), NEVER)
        self._first, self._stop = np.zeros_like(times), np.full_like(times, len(pool))
        self._more, more_stop = self._stop, self._stop
        if negatives.exclude == "past" or negatives.recent is not None:
            # Items of unknown time sort first; positives of unknown time find none earlier.
            hidden = pool["time"].null_count()
            self._first = self._first + hidden
            self._stop = np.maximum(np.searchsorted(at, times), hidden)
        self._window = self._first, self._stop
        if negatives.recent is not None:
            span = negatives.recent // _MICROSECOND
            since = np.where(times == ALWAYS, ALWAYS, times - span)
            begin = np.maximum(np.searchsorted(at, since), self._first)
            self._window = np.minimum(begin, self._stop), self._stop
            if negatives.sampling == "popularity":
                self._first = begin
            else:
                begin = np.where(times == ALWAYS, ALWAYS, times // span * span)
                lasts, firsts = _ends(codes, at, span)
                self._again = np.append(_next_times(codes, at)[lasts], np.full(len(firsts), NEVER))
                self._codes = np.append(codes[lasts], codes[firsts])
                self._first = np.searchsorted(at[lasts], since)
                self._stop = np.searchsorted(at[lasts], begin)
                self._more = np.searchsorted(at[firsts], begin) + len(lasts)
                more_stop = np.searchsorted(at[firsts], times) + len(lasts)
        self._first = np.minimum(self._first, self._stop)
        self._shown: Occurrences | None = None
        self.sizes = self._stop - self._first + more_stop - self._more
        """(B,) how many entries each positive draws from."""

    def items(self, rows: Any, numbers: Any) -> tuple[Numbers, NDArray[np.bool_]]:
        """Look up entries `numbers[i]` of the positives `rows[i]`; the two broadcast.

        Returns:
            Item codes, and whether the item is there a second time.
        """
        entry = self._first[rows] + numbers
        over = entry - self._stop[rows]
        entry = np.where(over >= 0, self._more[rows] + over, entry)
        return self._codes[entry], self._again[entry] < self._times[rows]

    def weights(self, rows: Any, items: Numbers) -> Numbers:
        """How often the pool shows item `items[i]` in the window of positive `rows[i]`.

        Above 0 where the item is among the positive's candidates; for popularity the number of its
        impressions.
        """
        if self._shown is None:
            self._shown = Occurrences(self._pool_codes)
        start, stop = self._window
        return self._shown.count(items, start[rows], stop[rows])


def _ends(codes: Numbers, times: Numbers, span: int) -> tuple[Numbers, Numbers]:
    """Rows that are their item's last, and first, in a span; unknown times are in none."""
    order = np.argsort(codes, kind="stable")
    order = order[times[order] != ALWAYS]
    code, number = codes[order], times[order] // span
    turn = (code[1:] != code[:-1]) | (number[1:] != number[:-1])
    edge = np.ones(min(1, len(order)), bool)
    return np.sort(order[np.append(turn, edge)]), np.sort(order[np.append(edge, turn)])


def _next_times(codes: Numbers, times: Numbers) -> Numbers:
    """When each row's item occurs next in the pool; `NEVER` if it does not."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    again = np.full(len(codes), NEVER)
    again[order[:-1][same]] = times[order[1:][same]]
    return again
