"""Reads ORC files stripe by stripe, as `parquet` does row groups."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import orc

_ROWS = 1 << 18


def open_orc(raw: Any) -> orc.ORCFile:
    """Open a file; raises `pa.ArrowInvalid` or OSError where it is damaged."""
    return orc.ORCFile(pa.PythonFile(raw, mode="r"))


def read_stripes(file: orc.ORCFile, columns: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a file, in parts of bounded size, with the number of their stripe."""
    for number in range(file.nstripes):
        stripe = file.read_stripe(number, columns=columns)
        for start in range(0, stripe.num_rows, _ROWS):
            yield number, stripe.slice(start, _ROWS)
