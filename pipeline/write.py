"""Writes tables as Parquet files whose bytes depend on their rows alone."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

_ROWS = 1 << 16


def write_parquet(frame: pl.DataFrame, path: Path, schema: pa.Schema) -> None:
    """Write a table with exactly this schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = frame.select(schema.names).to_arrow().cast(schema)
    pq.write_table(table, path, compression="zstd", row_group_size=_ROWS)


def part(folder: Path, number: int) -> Path:
    """Name of one part among many."""
    return folder / f"part-{number:05d}.parquet"
