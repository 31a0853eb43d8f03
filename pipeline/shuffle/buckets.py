"""Spreads rows over buckets by a hash of the user (or of the item).

All events of a user are in one bucket, so that attribution, histories and sampled negatives need
only that bucket. A bucket that is too large is divided before it is grouped.
"""

from collections.abc import Iterable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.pipeline.core.hashing import hash_column
from multigate.pipeline.shuffle.parcel import Carrier, Parcel

_HELD = 64 << 20

Keyed = tuple[int, Parcel]


def spread(
    carrier: Carrier,
    rows: pl.DataFrame,
    buckets: int,
    kind: str,
    origin: int,
    part: int = 0,
    key: str = "user",
) -> list[Keyed]:
    """Divide rows by the bucket of their user (item).

    Args:
        carrier: makes the parcels.
        rows: a table, (B, ...).
        buckets: over how many buckets users (items) are spread.
        kind: what the rows are.
        origin: the shard or bucket that made them.
        part: which of its parts this is; the same when a stage is retried.
        key: column of the user or of the item.

    Returns:
        Pairs (bucket, parcel), one for each bucket that got rows.
    """
    return carrier.shares(rows, place(rows[key], buckets), buckets, kind, origin, part)


class SpreadBuffer:
    """Write buffer: collects rows, then spreads them over buckets in parcels of some size.

    Args:
        carrier: makes the parcels.
        buckets: over how many buckets users are spread.
        kind: what the rows are.
        origin: the shard that made them.
    """

    def __init__(self, carrier: Carrier, buckets: int, kind: str, origin: int) -> None:
        self._carrier, self._buckets, self._kind, self._origin = carrier, buckets, kind, origin
        self._rows: list[pl.DataFrame] = []
        self._parts = 0

    def add(self, rows: pl.DataFrame) -> list[Keyed]:
        """Take rows. Returns pairs (bucket, parcel) once there are enough of them."""
        if len(rows):
            self._rows.append(rows)
        return self.flush() if sum(r.estimated_size() for r in self._rows) > _HELD else []

    def flush(self) -> list[Keyed]:
        """Spread all rows in the buffer."""
        if not self._rows:
            return []
        rows, self._rows = pl.concat(self._rows), []
        self._parts += 1
        return spread(self._carrier, rows, self._buckets, self._kind, self._origin, self._parts)


def divide(
    keyed: Keyed, size: int, buckets: int, limit: int, carrier: Carrier, key: str = "user"
) -> list[Keyed]:
    """Divide a bucket's parcel where the bucket is too large, by another part of the hash.

    Args:
        keyed: the bucket and one of its parcels.
        size: bytes of all the bucket's parcels.
        buckets: over how many buckets users (items) are spread.
        limit: bytes that a bucket may hold. The rows of one user (item) stay together.
        carrier: makes the parcels.
        key: column of the user or of the item.

    Returns:
        Pairs (bucket, parcel): the given one where the bucket is small enough, else those of the
        buckets `number + i * buckets` that replace it.
    """
    number, parcel = keyed
    parts = parts_of(size, limit)
    if parts == 1:
        return [keyed]
    rows = parcel.read()
    kind, origin = parcel.kind, parcel.origin * buckets + number
    shares = carrier.shares(
        rows, place(rows[key], buckets, parts), parts, f"{kind}/divided", origin, parcel.part
    )
    return [
        (number + part * buckets, _renamed(share, kind, parcel.origin)) for part, share in shares
    ]


def _renamed(parcel: Parcel, kind: str, origin: int) -> Parcel:
    return Parcel(
        kind, origin, parcel.part, parcel.rows, parcel.size, parcel.path, parcel.batch, parcel.table
    )


def parts_of(size: int, limit: int) -> int:
    """How many parts of about `limit` bytes rows of `size` bytes need."""
    return max(1, -(-size // limit))


def place(ids: pl.Series, buckets: int, parts: int | None = None) -> NDArray[np.int64]:
    """The bucket of each id; with `parts`, its part within the bucket."""
    hashes = hash_column(ids)
    return (hashes % buckets if parts is None else hashes // buckets % parts).astype(np.int64)


def gather(parcels: Iterable[Parcel]) -> pl.DataFrame:
    """Read a bucket's events and sort them by user, time and fingerprint.

    This order does not depend on the order of files and rows: rows that agree in all three are
    duplicates. Events without a time come first.
    """
    ordered = sorted(parcels, key=lambda one: one.place)
    events = pl.concat([parcel.read() for parcel in ordered])
    return events.sort(_ranks(events["user"]), "time", "fingerprint", nulls_last=False)


def _ranks(ids: pl.Series) -> pl.Series:
    """A column to sort by in the place of the ids: numbers in the order of texts, which are few."""
    return ids.cast(pl.Enum(ids.drop_nulls().unique().sort())) if ids.dtype == pl.String else ids


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
