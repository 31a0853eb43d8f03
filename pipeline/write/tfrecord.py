"""Writes examples as tf.Example records, for trainers that read those.

A record holds what the Parquet row holds, under the same names: features as the exported
`classify` reads them, labels as floats (absent where masked), `meta/time` in microseconds since
1970, `meta/sampled` as 0 or 1. Null values are absent. The wire format of protocol buffers is
written here by hand: TensorFlow's TFRecordWriter would bring TensorFlow into every worker for three
nested messages.
"""

import struct
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

_BYTES, _FLOATS, _INTS = 1, 2, 3  # the fields of Feature, one of which is set
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
_MASK = 0xA282EAD8  # TFRecord stores checksums rotated by 15 bits and shifted by this


def write_records(frame: pl.DataFrame, file: BinaryIO) -> None:
    """Append examples to a TFRecord file.

    Args:
        frame: examples, columns as in `columns.example_schema`.
        file: opened for writing bytes.
    """
    records = serialise(frame)
    heads = [struct.pack("<Q", len(record)) for record in records]
    pairs = zip(records, heads, masked_checksums(heads), masked_checksums(records), strict=True)
    for record, head, of_head, of_record in pairs:
        file.write(head + struct.pack("<I", of_head) + record + struct.pack("<I", of_record))


def serialise(frame: pl.DataFrame) -> list[bytes]:
    """Each row as a serialised tf.Example: Example{1: Features{1: map of name to Feature}}."""
    entries: list[list[bytes]] = [[] for _ in range(len(frame))]
    for name in frame.columns:
        key = _field(1, name.encode())
        for at, value in enumerate(_encoded(frame[name])):
            if value is not None:
                entries[at].append(_field(1, key + _field(2, value)))
    return [_field(1, b"".join(row)) for row in entries]


def _encoded(column: pl.Series) -> list[bytes | None]:
    """Each value as a Feature; None where there is none."""
    kind = column.dtype
    if isinstance(kind, pl.List):
        inner = kind.inner
        rows: list[Any] = column.to_list()
    else:
        inner = kind
        if isinstance(kind, pl.Datetime):
            column, inner = column.dt.cast_time_unit("us").to_physical(), pl.Int64()
        rows = [None if value is None else [value] for value in column.to_list()]
    if inner == pl.String:
        return [None if r is None else _field(_BYTES, _texts(r)) for r in rows]
    if inner in (pl.Float32, pl.Float64):
        return [None if r is None else _field(_FLOATS, _packed_floats(r)) for r in rows]
    return [None if r is None else _field(_INTS, _packed_ints(r)) for r in rows]


def _texts(values: list[str | None]) -> bytes:
    return b"".join(_field(1, (value or "").encode()) for value in values)


def _packed_floats(values: list[float]) -> bytes:
    return _field(1, struct.pack(f"<{len(values)}f", *values)) if values else b""


def _packed_ints(values: list[int]) -> bytes:
    return _field(1, b"".join(_varint(int(value) & (1 << 64) - 1) for value in values))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def masked_checksums(records: list[bytes]) -> list[int]:
    """The masked CRC-32C of each record, vectorised: one step per byte of the longest."""
    lengths = np.array([len(record) for record in records], np.int64)
    order = np.argsort(-lengths, kind="stable")
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(records), np.uint8)
    crc = np.full(len(records), 0xFFFFFFFF, np.uint32)
    places = np.arange(lengths.max(initial=0))
    longer = len(records) - np.searchsorted(np.sort(lengths), places, "right")
    for at, count in enumerate(longer.tolist()):
        rows = order[:count]  # those that have a byte here
        crc[rows] = _TABLE[(crc[rows] ^ data[starts[rows] + at]) & 0xFF] ^ (crc[rows] >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    rotated = (crc >> 15 | crc << 17).astype(np.uint64) + _MASK
    return (rotated & 0xFFFFFFFF).tolist()


def _table() -> NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(_POLYNOMIAL), crc >> 1)
    return crc


_TABLE = _table()
