"""Negatives that match the user's lists exactly as their positive does.

The match count of an item is how often its id stands in a list of the user: 0 for most, 1 or more
for an item that the user viewed lately and that is viewed again. Where a positive matches and its
negatives do not, a model need only look for the candidate in the history. So a positive that
matches draws its negatives among the other items of the same lists, with the same counts.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.features import Slices
from multigate.pipeline.core.hashing import combine, hash_column
from multigate.pipeline.label.split import uniform
from multigate.pipeline.sample.candidate_pool import CandidatePool
from multigate.pipeline.sample.occurrences import UNKNOWN, Numbers, Occurrences, codes_of

_AT_ONCE = 1 << 21  # list entries that are looked at together
_SALT = 0x4D41_5443_48  # so that these draws differ from those of the pool


class UserLists:
    """The lists of B positives that items are matched with.

    Args:
        lists: L of them, (B,) each.
        items: the pool's items, sorted; an item's code is its place.
    """

    def __init__(self, lists: Sequence[Slices], items: pl.Series) -> None:
        self._lists = lists
        self._codes = [codes_of(one.items, items) for one in lists]
        self._found = [Occurrences(codes) for codes in self._codes]

    def counts(self, rows: Numbers, items: Numbers) -> Numbers:
        """(B, L) match counts of item `items[i]` in the lists of positive `rows[i]`."""
        columns = [
            found.count(items, one.start[rows], one.stop[rows])
            for one, found in zip(self._lists, self._found, strict=True)
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)

    def alike(
        self, rows: Numbers, own: Numbers, counts: Numbers
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Find the items that match as positives do, some positives at a time.

        Args:
            rows: (M,) positives that match some list.
            own: (M,) codes of their items.
            counts: (M, L) their match counts.

        Yields:
            Pairs (place in `rows`, item code), each once; the positive's own item is left out.
        """
        if not len(rows):
            return
        lengths = np.stack([(one.stop - one.start)[rows] for one in self._lists], axis=1)
        # An item that matches alike stands in each list that the positive stands in: the shortest
        # of them holds all.
        shortest = np.where(counts > 0, lengths, np.iinfo(np.int64).max).argmin(axis=1)
        for at, (one, codes) in enumerate(zip(self._lists, self._codes, strict=True)):
            some = np.flatnonzero(shortest == at)
            for block in _blocks(some, lengths[some, at]):
                slices = one[rows[block]]
                places = np.repeat(block, lengths[block, at])
                positions = slices.flat()
                found = codes[positions]
                # Of an item that stands there twice, the last place counts.
                after = np.repeat(slices.stop, lengths[block, at])
                last = self._found[at].count(found, positions + 1, after) == 0
                kept = (found != UNKNOWN) & (found != own[places]) & last
                places, found = places[kept], found[kept]
                same = (self.counts(rows[places], found) == counts[places]).all(axis=1)
                yield places[same], found[same]


def draw_alike(
    rows: Numbers,
    own: Numbers,
    counts: Numbers,
    lists: UserLists,
    pool: CandidatePool,
    base: NDArray[np.uint64],
    items: pl.Series,
    per_positive: int,
    popularity: bool,
) -> tuple[Numbers, Numbers, Numbers]:
    """Draw negatives for positives that match.

    Every candidate gets a number: a hash of positive and item. The smallest ones are taken. For
    popularity, the number is exponential and its rate is how often the item was shown: that draws
    items one after the other in proportion to their impressions.

    Args:
        rows: (M,) the positives.
        own: (M,) codes of their items.
        counts: (M, L) their match counts.
        lists: of all positives.
        pool: of all positives.
        base: (B,) a hash for each of all positives.
        items: what codes stand for.
        per_positive: how many to draw, at most.
        popularity: in proportion to impressions, instead of evenly.

    Returns:
        Triples (positive, slot, item code).
    """
    drawn: list[tuple[Numbers, Numbers, Numbers]] = [_no_rows()]
    hashes = hash_column(items) if len(rows) else np.zeros(0, np.uint64)
    for found in lists.alike(rows, own, counts):
        weights = pool.weights(rows[found[0]], found[1])
        places, codes = (values[weights > 0] for values in found)
        key = uniform(combine(base[rows[places]] ^ np.uint64(_SALT), hashes[codes]))
        if popularity:
            key = -np.log1p(-key) / weights[weights > 0]
        order = np.lexsort((codes, key, places))
        slots = np.arange(len(places)) - np.searchsorted(places[order], places[order])
        taken = slots < per_positive
        drawn.append((rows[places[order][taken]], slots[taken], codes[order][taken]))
    first, second, third = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return first, second, third


def _no_rows() -> tuple[Numbers, Numbers, Numbers]:
    return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)


def _blocks(rows: Numbers, lengths: Numbers) -> Iterator[Numbers]:
    """The rows in blocks that hold some `_AT_ONCE` list entries."""
    ends = np.cumsum(lengths) // _AT_ONCE
    yield from (block for block in np.split(rows, np.flatnonzero(np.diff(ends)) + 1) if len(block))
