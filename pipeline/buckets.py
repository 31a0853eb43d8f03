"""Spreads rows over buckets by a hash of the user (or of the item), through files.

All events of a user are in one bucket, so that attribution, histories and sampled negatives need
no other. Beam's local runner keeps grouped elements in memory; therefore the elements that it
groups are paths of spilled tables.
"""

from pathlib import Path

import polars as pl

from pipeline.hashing import hash_column


def spill(
    rows: pl.DataFrame, buckets: int, folder: Path, prefix: str, key: str = "user"
) -> list[tuple[int, str]]:
    """Write each bucket's share of the rows as an Arrow file.

    Args:
        rows: a table, (B, ...).
        buckets: over how many buckets users (items) are spread.
        folder: where to write.
        prefix: makes the files' names unique, and the same when the work is done again.
        key: column of the user or of the item.

    Returns:
        Pairs (bucket, path), one for each bucket that got rows.
    """
    number = pl.Series("bucket", hash_column(rows[key]) % buckets, dtype=pl.Int64)
    spilled = []
    parts = rows.with_columns(number).partition_by("bucket", as_dict=True, include_key=False)
    for (bucket,), part in sorted(parts.items()):
        path = spilled_path(folder, prefix, int(bucket))
        part.write_ipc(path, compression="lz4")
        spilled.append((int(bucket), str(path)))
    return spilled


def spilled_path(folder: Path, prefix: str, bucket: int) -> Path:
    """Where `spill` writes a bucket's share; there is no file where the share is empty."""
    return folder / f"{prefix}-{bucket:05d}.arrow"


def gather(paths: list[str]) -> pl.DataFrame:
    """Read a bucket's events and put them in their one order: user, time, hash of the row.

    The order does not depend on that of the files or of the rows in them: rows that agree in all
    three are the same row. Events without a time come first.
    """
    events = pl.concat([pl.read_ipc(path) for path in sorted(paths)])
    return events.sort("user", "time", "row", nulls_last=False)


def deduplicate(events: pl.DataFrame) -> pl.DataFrame:
    """Keep the first of the events that are the same: same full row, or same event id and user.

    Args:
        events: in the order of `gather`.
    """
    scalars = [name for name in ("user", "time", "row", "item", "event") if name in events.columns]
    events = events.unique(scalars, keep="first", maintain_order=True)
    if "event_id" not in events.columns:
        return events
    again = pl.col("event_id").is_not_null() & ~pl.struct("user", "event_id").is_first_distinct()
    return events.filter(~again)
