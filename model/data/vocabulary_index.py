"""Places of ids in a vocabulary, by a hash table that is built once.

pyarrow's `index_in` was considered: it hashes the whole vocabulary at every call, 0.6 s for ten
million ids.  A cast to polars' `Enum` builds its table once and is exact too, but looks up 0.4
million ids/s; polars' hash of a column, used here, takes 2 ns for each id.
"""

from functools import cached_property

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

_SEED = 0x6D67  # of polars' hash, which need not be the same in another process


class VocabularyIndex:
    """Open addressing with linear probing, on polars' 64-bit hashes, all ids at a time.

    An id that is found is compared with the vocabulary's, so the result is exact.  Beside the
    vocabulary it takes 28 to 36 bytes for each id.

    Args:
        values: (N,) the vocabulary: different texts or integers, without nulls.
    """

    def __init__(self, values: pa.Array) -> None:
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()  # hashes are of the values, not of their places
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def find(self, ids: pa.Array) -> np.ndarray:
        """Place (M,) int32 of each id in the vocabulary; -1 where it is null or not in it."""
        if not len(self.values) or not len(ids):
            return np.full(len(ids), -1, np.int32)
        column = pl.Series(ids)
        hashes = _hashes(column)
        found = self._probe(hashes)
        known = np.flatnonzero(found >= 0)
        same = self._column.gather(found[known]).eq_missing(
            column if len(known) == len(ids) else column.gather(known)
        )
        if not same.all():  # nulls, or different ids of one hash
            wrong = known[~same.to_numpy()]
            others = pc.index_in(ids.take(pa.array(wrong)), value_set=self.values)
            found[wrong] = np.asarray(others.fill_null(-1))
        return found

    def _probe(self, hashes: np.ndarray) -> np.ndarray:
        """Place (M,) of the first entry with each hash; -1 where there is none."""
        of_entry, slots, shift = self._table
        slot = (hashes >> shift).astype(np.int64)
        entry = slots[slot]
        hit = (entry >= 0) & (of_entry[entry] == hashes)
        found = np.where(hit, entry, np.int32(-1))
        left = np.flatnonzero((entry >= 0) & ~hit)
        while len(left):
            slot[left] = (slot[left] + 1) & (len(slots) - 1)
            entry = slots[slot[left]]
            hit = (entry >= 0) & (of_entry[entry] == hashes[left])
            found[left[hit]] = entry[hit]
            left = left[(entry >= 0) & ~hit]
        return found

    @cached_property
    def _column(self) -> pl.Series:
        return pl.Series(self.values)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray, np.uint64]:
        """Hashes (N,) of the entries; entries by slot, -1 for a free one; shift from hash to slot.

        The number of slots is a power of two.
        """
        hashes = _hashes(self._column)
        bits = int(2 * len(hashes)).bit_length()  # between a quarter and a half is in use
        shift = np.uint64(64 - bits)
        slots = np.full(1 << bits, -1, np.int32)
        slot = (hashes >> shift).astype(np.int64)
        left = np.arange(len(hashes), dtype=np.int32)
        while len(left):
            here = slot[left]
            free = slots[here] < 0
            slots[here[free]] = left[free]  # of several entries one gets the slot
            left = left[slots[here] != left]
            slot[left] = (slot[left] + 1) & (len(slots) - 1)
        return hashes, slots, shift


def _hashes(column: pl.Series) -> np.ndarray:
    """64-bit hash (N,) of each id."""
    return column.hash(_SEED).to_numpy()
