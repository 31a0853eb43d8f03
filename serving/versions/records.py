"""Reads TFRecord files, in which export writes the warm-up requests.

A record is its length (8 bytes, little endian), the length's checksum (4), the data, and the data's
checksum (4).  The checksums are not compared: a damaged request cannot be parsed, or fails.
TensorFlow's reader would need its Python.
"""

from collections.abc import Iterator
from pathlib import Path

_CHECKSUM = 4


def read_records(path: Path) -> Iterator[bytes]:
    """The data of each record.

    Raises:
        ValueError: the file ends within a record.
    """
    left = path.stat().st_size
    with path.open("rb") as file:
        while head := file.read(8 + _CHECKSUM):
            left -= len(head)
            size = int.from_bytes(head[:8], "little") + _CHECKSUM
            if len(head) < 8 + _CHECKSUM or size > left:
                raise ValueError(f"expected a record of {size} bytes, received {left}: truncated")
            left -= size
            yield file.read(size)[:-_CHECKSUM]
