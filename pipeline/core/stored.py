"""Reads Parquet files wherever they lie: in a local folder, or in a store."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from polars.io.plugins import register_io_source

from multigate.configs.storage import Address, Place, plain_failures


def read_parquet(path: Place) -> pl.DataFrame:
    """All rows of a file."""
    with path.open("rb") as file:
        return pl.read_parquet(file)


def count_rows(path: Place) -> int:
    """How many rows a file has."""
    with path.open("rb") as file:
        return int(pq.read_metadata(file).num_rows)


def size(path: Place) -> int:
    """Bytes of a file that a listing found."""
    return path.size if isinstance(path, Address) else path.stat().st_size


def scan(parts: Sequence[Place]) -> pl.LazyFrame:
    """The rows of files of one schema.

    A query reads the columns that it needs, some row groups at a time, and copies no file: what a
    store holds may be larger than this machine's memory and disk.
    """
    if isinstance(parts[0], Path):
        return pl.scan_parquet(list(parts))
    dataset = parts[0].dataset([part for part in parts if isinstance(part, Address)])
    schema = pl.DataFrame(dataset.schema.empty_table()).schema
    return register_io_source(partial(_batches, parts[0], dataset), schema=schema)


def _batches(
    first: Address,
    dataset: Any,
    columns: list[str] | None,
    predicate: pl.Expr | None,
    rows: int | None,
    _size: int | None,
) -> Iterator[pl.DataFrame]:
    """The rows in order; called by polars."""
    with plain_failures(first, "read"):
        for batch in dataset.to_batches(columns=columns):
            found = pl.DataFrame(batch)
            if rows is not None:
                found = found.head(rows)
                rows -= len(found)
            yield found if predicate is None else found.filter(predicate)
            if rows == 0:
                return
