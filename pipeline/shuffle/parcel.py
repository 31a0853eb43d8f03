"""Parcels: how rows travel from stage to stage, behind one seam.

A `Parcel` is some rows of one kind, made by one shard or bucket. Beam carries parcels, keyed by the
bucket of users or items that they go to. Two carriers make them:

- `InBeam`: the rows travel inside the parcel as an Arrow table, encoded as Arrow IPC. Every runner
  can group them, and workers share nothing.
- `LocalFiles`: the rows lie in a local file and the parcel names it. Beam's local runner keeps all
  grouped elements in memory; names of files keep that memory flat.

The stages read `parcel.read()` and do not know which one they have. Beam's `RowCoder` and its Arrow
conversions were considered: they carry rows one at a time.
"""

import itertools
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

_LZ4, _PLAIN = pa.ipc.IpcWriteOptions(compression="lz4"), pa.ipc.IpcWriteOptions()
_HEADER = struct.Struct("<I")


@dataclass(frozen=True, eq=False, slots=True)  # a run holds one for each pair of buckets
class Parcel:
    """Some rows that travel together."""

    kind: str
    """What the rows are, such as `events`."""
    origin: int
    """The number of the shard or bucket that made it."""
    part: int
    """Its place among the parcels of its kind and origin."""
    rows: int
    size: int
    """Bytes of the rows in memory."""
    path: str = ""
    """The local file that holds the rows; empty where `table` does."""
    batch: int | None = None
    """Which record batch of the file; all of them where None."""
    table: Any = None

    @property
    def place(self) -> tuple[str, int, int]:
        """The sort key of parcels, which does not depend on their arrival."""
        return self.kind, self.origin, self.part

    def read(self, columns: list[str] | None = None) -> pl.DataFrame:
        """The rows; of all columns, or of these."""
        if self.table is not None:
            return pl.DataFrame(self.table if columns is None else self.table.select(columns))
        if self.batch is None:
            return pl.read_ipc(self.path, columns=columns)
        with pa.OSFile(self.path) as source:
            frame = pl.DataFrame(pa.ipc.open_file(source).get_batch(self.batch))
        return frame if columns is None else frame.select(columns)

    def encode(self) -> bytes:
        """A header in JSON and, where the rows travel along, an Arrow IPC stream (LZ4)."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "table"}
        header = json.dumps(values).encode()
        found = _HEADER.pack(len(header)) + header
        if self.table is None:
            return found
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema, options=_LZ4) as stream:
            stream.write_table(self.table)
        return found + sink.getvalue().to_pybytes()

    @staticmethod
    def decode(data: bytes) -> "Parcel":
        """Undo `encode`."""
        (length,) = _HEADER.unpack_from(data)
        start = _HEADER.size + length
        table = pa.ipc.open_stream(pa.py_buffer(data)[start:]).read_all() if data[start:] else None
        return Parcel(**json.loads(data[_HEADER.size : start]), table=table)

    def __reduce__(self) -> Any:
        """Pickled within other values, a parcel is encoded in the same way."""
        return Parcel.decode, (self.encode(),)


Bundle = dict[str, Parcel]
"""What a bucket hands on to its next stage, by kind."""


Output = tuple[str, Any]
"""What a stage yields: the name of one of its outputs, and an element of it."""


class Carrier(Protocol):
    """Makes parcels."""

    def whole(self, rows: pl.DataFrame, kind: str, origin: int) -> Parcel:
        """One parcel of all rows; a retry makes the same."""

    def shares(
        self,
        rows: pl.DataFrame,
        places: NDArray[np.int64],
        count: int,
        kind: str,
        origin: int,
        part: int = 0,
    ) -> list[tuple[int, Parcel]]:
        """Divide rows by their places, which are below `count`.

        Returns:
            Pairs (place, parcel), one for each place that has rows.
        """


@dataclass(frozen=True)
class InBeam:
    """Carrier: the rows travel through Beam."""

    def whole(self, rows: pl.DataFrame, kind: str, origin: int) -> Parcel:
        """See `Carrier`."""
        table = rows.to_arrow()
        return Parcel(kind, origin, 0, len(rows), table.nbytes, table=table)

    def shares(
        self,
        rows: pl.DataFrame,
        places: NDArray[np.int64],
        count: int,
        kind: str,
        origin: int,
        part: int = 0,
    ) -> list[tuple[int, Parcel]]:
        """See `Carrier`."""
        table, bounds = _sorted(rows, places, count)
        return [
            (at, Parcel(kind, origin, part, stop - start, share.nbytes, table=share))
            for at, (start, stop) in enumerate(itertools.pairwise(bounds))
            if stop > start
            for share in [table.slice(start, stop - start)]
        ]


@dataclass(frozen=True)
class LocalFiles:
    """Carrier: the rows lie in files of a folder on this machine.

    Attributes:
        folder: of the files.
        compressed: by LZ4: a third of the bytes, for a tenth more CPU time of the whole job.
    """

    folder: Path
    compressed: bool = True

    def whole(self, rows: pl.DataFrame, kind: str, origin: int) -> Parcel:
        """See `Carrier`."""
        path = self._path(kind, origin, 0)
        rows.write_ipc(path, compression="lz4" if self.compressed else "uncompressed")
        return Parcel(kind, origin, 0, len(rows), rows.estimated_size(), str(path))

    def shares(
        self,
        rows: pl.DataFrame,
        places: NDArray[np.int64],
        count: int,
        kind: str,
        origin: int,
        part: int = 0,
    ) -> list[tuple[int, Parcel]]:
        """See `Carrier`; the shares are the record batches of one file."""
        table, bounds = _sorted(rows, places, count)
        (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        path = self._path(kind, origin, part)
        found: list[tuple[int, int, int, int]] = []
        options = _LZ4 if self.compressed else _PLAIN
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=options) as file,
        ):
            for at, (start, stop) in enumerate(itertools.pairwise(bounds)):
                if stop > start:
                    share = batch.slice(start, stop - start)
                    file.write_batch(share)
                    found.append((at, len(found), stop - start, share.nbytes))
        return [
            (at, Parcel(kind, origin, part, rows_, size, str(path), number))
            for at, number, rows_, size in found
        ]

    def _path(self, kind: str, origin: int, part: int) -> Path:
        return self.folder / f"{kind.replace('/', '-')}-{origin:05d}-{part:05d}.arrow"


def _sorted(
    rows: pl.DataFrame, places: NDArray[np.int64], count: int
) -> tuple[pa.Table, list[int]]:
    """The rows as one record batch, sorted by place, and where each place begins and ends."""
    # NumPy sorts numbers of 16 bits by radix, ten times faster than longer ones.
    order = np.argsort(places.astype(np.min_scalar_type(count)), kind="stable")
    bounds = np.searchsorted(places[order], np.arange(count + 1)).tolist()
    return rows[order].to_arrow().combine_chunks(), bounds


def in_order(parcels: Iterable[Parcel], kind: str) -> list[Parcel]:
    """The parcels of one kind, in an order that does not depend on their arrival."""
    return sorted((one for one in parcels if one.kind == kind), key=lambda one: one.place)
