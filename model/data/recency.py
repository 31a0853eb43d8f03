"""Recency weights: a training row counts half as much for each half-life that it is older.

weight = 2^(-(time of the newest training row - time of the row) / half-life)
"""

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.errors import DataError
from multigate.configs.files import TIME

_MICROSECOND = timedelta(microseconds=1)


def newest_time(paths: Iterable[Path]) -> int:
    """Time of the newest row of some Parquet files with rows, in microseconds since 1970.

    Raises:
        DataError: a row has no time.
    """
    newest = []
    for path in paths:
        times = pq.read_table(path, columns=[TIME])[TIME]
        if times.null_count:
            raise DataError(
                f"{path}: column {TIME!r}: expected the time of every row for train.recency, "
                f"received {times.null_count} rows without one; remove train.recency"
            )
        if len(times):
            newest.append(int(_microseconds(times).max()))
    return max(newest)


def recency_weights(times: pa.ChunkedArray, newest: int, half_life: timedelta) -> np.ndarray:
    """Weights (N,) float32 of rows with these times; 0 where they are too small for it."""
    age = (newest - _microseconds(times)).astype(np.float64)
    weights: np.ndarray = np.exp2(-age / (half_life / _MICROSECOND)).astype(np.float32)
    return weights


def _microseconds(times: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = pc.cast(times, pa.timestamp("us", times.type.tz)).cast("int64").to_numpy()
    return found
