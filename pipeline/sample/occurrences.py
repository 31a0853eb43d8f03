"""How often an item stands in a piece of a column: in a user's list, or in what the log showed."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

UNKNOWN = -1
"""Code of an item that cannot be drawn."""


class Occurrences:
    """Counts a code between two positions of a column by binary search.

    Args:
        codes: (N,) the column; `UNKNOWN` is never counted.
    """

    def __init__(self, codes: Numbers) -> None:
        self._stride = len(codes) + 1
        known = np.flatnonzero(codes != UNKNOWN)
        order = known[np.argsort(codes[known], kind="stable")]
        self._keys = codes[order] * self._stride + order  # ascending

    def count(self, codes: Numbers, start: Numbers, stop: Numbers) -> Numbers:
        """How often `codes[i]` occurs at positions [start[i], stop[i])."""
        base = codes * self._stride
        return np.searchsorted(self._keys, base + stop) - np.searchsorted(self._keys, base + start)


def codes_of(values: pl.Series, items: pl.Series) -> Numbers:
    """(N,) places of the values in the sorted `items`; `UNKNOWN` for others."""
    if not len(items):
        return np.full(len(values), UNKNOWN)
    at = items.search_sorted(values).to_numpy().astype(np.int64)
    same = items.gather(np.minimum(at, len(items) - 1)) == values
    return np.where(same.fill_null(False).to_numpy(), at, UNKNOWN)
