"""Spreads rows over buckets by a hash of the user (or of the item), through files.

All events of a user are in one bucket, so that attribution, histories and sampled negatives need
only that bucket. Beam's local runner keeps grouped elements in memory. So Beam groups names of
spilled pieces, not rows: each spill is one Arrow file with one record batch per bucket.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from multigate.pipeline.hashing import hash_column

_HELD = 64 << 20
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4")


class Piece(NamedTuple):
    """A bucket's share of one spill: which record batch of which file, and its bytes in memory."""

    path: str
    batch: int
    size: int


def spill(
    rows: pl.DataFrame, buckets: int, folder: Path, prefix: str, key: str = "user"
) -> list[tuple[int, Piece]]:
    """Write each bucket's share of the rows as a record batch of one Arrow file.

    Args:
        rows: a table, (B, ...).
        buckets: over how many buckets users (items) are spread.
        folder: where to write.
        prefix: of the file's name; unique, and the same when a stage is retried.
        key: column of the user or of the item.

    Returns:
        Pairs (bucket, piece), one for each bucket that got rows.
    """
    return _write(rows, place(rows[key], buckets), buckets, spilled_path(folder, prefix))


class SpillBuffer:
    """Spill buffer: collects rows until they make a file worth writing, then spills them.

    Args:
        buckets: over how many buckets users are spread.
        folder: where to write.
        prefix: of the files' names.
    """

    def __init__(self, buckets: int, folder: Path, prefix: str) -> None:
        self._buckets, self._folder, self._prefix = buckets, folder, prefix
        self._rows: list[pl.DataFrame] = []
        self._files = 0

    def add(self, rows: pl.DataFrame) -> list[tuple[int, Piece]]:
        """Take rows. Returns pairs (bucket, piece) where this wrote a file."""
        if len(rows):
            self._rows.append(rows)
        return self.flush() if sum(r.estimated_size() for r in self._rows) > _HELD else []

    def flush(self) -> list[tuple[int, Piece]]:
        """Write all rows in the buffer."""
        if not self._rows:
            return []
        rows, self._rows = pl.concat(self._rows), []
        self._files += 1
        prefix = f"{self._prefix}-{self._files:05d}"
        return spill(rows, self._buckets, self._folder, prefix)


def subdivide(
    number: int, pieces: Iterable[Piece], buckets: int, limit: int, folder: Path
) -> list[tuple[int, list[Piece]]]:
    """Divide a bucket that is too large, by another part of the user's hash.

    Args:
        number: the bucket's.
        pieces: of the bucket.
        buckets: over how many buckets users are spread.
        limit: bytes that a bucket may hold. The events of one user stay together.
        folder: where to write.

    Returns:
        Pairs (bucket, pieces): the bucket itself where it is small enough, else the buckets
        `number + i * buckets` that replace it.
    """
    ordered = sorted(pieces)
    parts = parts_of(sum(piece.size for piece in ordered), limit)
    if parts == 1:
        return [(number, ordered)]
    divided: dict[int, list[Piece]] = {}
    for at, piece in enumerate(ordered):
        rows = read_piece(Path(piece.path), piece.batch)
        path = spilled_path(folder, f"divided-{number:05d}-{at:05d}")
        for part, share in _write(rows, place(rows["user"], buckets, parts), parts, path):
            divided.setdefault(number + part * buckets, []).append(share)
    return sorted(divided.items())


def parts_of(size: int, limit: int) -> int:
    """How many parts of about `limit` bytes rows of `size` bytes need."""
    return max(1, -(-size // limit))


def place(ids: Any, buckets: int, parts: int | None = None) -> NDArray[np.int64]:
    """The bucket of each id; with `parts`, its part within the bucket."""
    hashes = hash_column(ids)
    return (hashes % buckets if parts is None else hashes // buckets % parts).astype(np.int64)


def _write(
    rows: pl.DataFrame, places: NDArray[np.int64], count: int, path: Path
) -> list[tuple[int, Piece]]:
    # NumPy sorts numbers of 16 bits by radix, ten times faster than longer ones.
    order = np.argsort(places.astype(np.min_scalar_type(count)), kind="stable")
    bounds = np.searchsorted(places[order], np.arange(count + 1)).tolist()
    table = rows[order].to_arrow().combine_chunks()
    batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    pieces = []
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=_WRITE) as file,
    ):
        # Empty shares are written, too: batch i belongs to bucket i.
        for batch, (start, stop) in enumerate(itertools.pairwise(bounds)):
            share = batches[0].slice(start, stop - start)
            file.write_batch(share)
            if stop > start:
                pieces.append((batch, Piece(str(path), batch, share.nbytes)))
    return pieces


def spilled_path(folder: Path, prefix: str) -> Path:
    """Where `spill` writes."""
    return folder / f"{prefix}.arrow"


def read_piece(path: Path, batch: int, *more: int) -> pl.DataFrame:
    """Read one bucket's share of a spill, or several buckets'."""
    with pa.OSFile(str(path)) as source:
        file = pa.ipc.open_file(source)
        return pl.DataFrame(pa.Table.from_batches(map(file.get_batch, (batch, *more))))


def piece_rows(path: Path, batch: int) -> int:
    """Count the rows of a bucket's share of a spill, without reading them."""
    nothing = pa.ipc.IpcReadOptions(included_fields=[])
    with pa.OSFile(str(path)) as source:
        return int(pa.ipc.open_file(source, options=nothing).get_batch(batch).num_rows)


def gather(pieces: list[Piece]) -> pl.DataFrame:
    """Read a bucket's events and sort them by user, time and fingerprint.

    This order does not depend on the order of files and rows: rows that agree in all three are
    duplicates. Events without a time come first.
    """
    events = pl.concat([read_piece(Path(piece.path), piece.batch) for piece in sorted(pieces)])
    return events.sort("user", "time", "fingerprint", nulls_last=False)


def deduplicate(events: pl.DataFrame) -> pl.DataFrame:
    """Keep the first of the events with the same fingerprint, or with the same event id.

    Args:
        events: in the order of `gather`.
    """
    # Such rows follow one another. The other columns tell two rows of one hash apart.
    known = [n for n in ("user", "time", "fingerprint", "item", "event") if n in events.columns]
    again = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in known)
    events = events.filter(~again)
    if "event_id" not in events.columns:
        return events
    first = pl.struct("user", "event_id", "identity").is_first_distinct()
    return events.filter(pl.col("event_id").is_null() | first)
