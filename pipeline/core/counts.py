"""Tables of counts: a column of keys and the column `count`."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import polars as pl

_MANY = 1 << 18  # rows; more are added up a range of keys at a time
_RANGES = 16


def add_counts(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Add up the counts of at least one table by their keys; sorted by key.

    Millions of keys are added up a range at a time: grouping takes several times the memory of
    what it groups.
    """
    tables = list(tables)
    (key,) = (name for name in tables[0].columns if name != "count")
    if sum(map(len, tables)) < _MANY:
        return _add(tables, key)
    largest = max(tables, key=len)[key]
    some = largest.drop_nulls().gather_every(max(1, len(largest) // _RANGES**2)).sort()
    bounds = some.gather_every(_RANGES, offset=_RANGES).unique(maintain_order=True).to_list()
    return pl.concat(
        _add([table.filter(within) for table in tables], key) for within in _ranges(key, bounds)
    )


def _ranges(key: str, bounds: list[object]) -> Iterator[pl.Expr]:
    """Conditions that divide all keys at some of them, in ascending order; null is the first."""
    for low, high in pairwise([None, *bounds, None]):
        within = pl.lit(value=True) if low is None else pl.col(key) >= low
        below = within if high is None else within & (pl.col(key) < high)
        yield below.fill_null(low is None)


def _add(tables: list[pl.DataFrame], key: str) -> pl.DataFrame:
    return pl.concat(tables).group_by(key).agg(pl.col("count").sum()).sort(key)
