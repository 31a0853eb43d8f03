"""Tables of counts: a column of keys and the column `count`."""

from collections.abc import Iterable

import polars as pl


def add_counts(tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Add up the counts of at least one table by their keys; sorted by key."""
    found = pl.concat(tables)
    (key,) = (name for name in found.columns if name != "count")
    return found.group_by(key).agg(pl.col("count").sum()).sort(key)
