"""How many rows a file has, without reading all of it."""

import pyarrow.parquet as pq

from multigate.pipeline.read.sources import Shard

_COMPRESSED = 5  # usual size of a text, as a multiple of its compressed file


def count_rows(
    shard: Shard, width: float, is_parquet: bool, per_byte: float | None = None
) -> float:
    """The rows of a file: Parquet says it, of others the size is divided by a row's.

    Args:
        shard: the file.
        width: bytes of a row's text, without the end of its line.
        is_parquet: whether it is Parquet.
        per_byte: rows per byte of such files that were read to their end; None where none was.
    """
    if is_parquet:
        with shard.path.open("rb") as file:
            return float(pq.ParquetFile(file).metadata.num_rows)
    if per_byte is not None:
        return shard.size * per_byte
    return shard.size * (_COMPRESSED if shard.compressed else 1) / (width + 1)
