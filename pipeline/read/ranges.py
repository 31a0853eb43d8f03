"""Divides large files among workers: plain lines by ranges of bytes, Parquet by row groups.

A range of bytes holds the lines that begin in it. Compressed files stay whole, because no reader
can start in their middle. So does CSV with quotes or escapes, where a line break may belong to a
field.
"""

import itertools
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.sections.log import CsvFormat, Format, JsonLinesFormat, ParquetFormat
from multigate.pipeline.read.sources import Shard

LONGEST = 32 << 20


def divide_shards(
    shards: list[Shard], form: Format, wanted: list[str], longest: int = LONGEST
) -> list[Shard]:
    """Divide the shards that are larger than `longest` bytes and can be divided.

    Of a Parquet file, only the `wanted` columns count.
    """
    divided = []
    for shard in shards:
        large = shard.size > longest and shard.member is None
        if large and isinstance(form, ParquetFormat):
            divided += _by_row_groups(shard, set(wanted), longest)
        elif large and not shard.compressed and _plain_lines(form):
            bounds = [*range(0, shard.size, longest), shard.size]
            divided += [
                replace(shard, start=start, stop=stop, size=stop - start)
                for start, stop in itertools.pairwise(bounds)
            ]
        else:
            divided.append(shard)
    return divided


def _plain_lines(form: Format) -> bool:
    if isinstance(form, CsvFormat):
        return not form.quoted and form.escape is None
    return isinstance(form, JsonLinesFormat)


def _by_row_groups(shard: Shard, wanted: set[str], longest: int) -> list[Shard]:
    try:
        with shard.path.open("rb") as raw, pq.ParquetFile(raw) as file:
            metadata = file.metadata
            columns = [
                at
                for at in range(metadata.num_columns)
                if metadata.schema.column(at).path.partition(".")[0] in wanted
                or metadata.schema.column(at).path in wanted
            ]
            sizes = [
                sum(metadata.row_group(g).column(c).total_compressed_size for c in columns)
                for g in range(metadata.num_row_groups)
            ]
    except (pa.ArrowInvalid, OSError):
        return [shard]  # the reader says what is wrong with it
    parts: list[Shard] = []
    first, size = 0, 0
    for at, group in enumerate(sizes):
        size += group
        if size >= longest or at == len(sizes) - 1:
            parts.append(replace(shard, start=first, stop=at + 1, size=size))
            first, size = at + 1, 0
    return parts or [shard]


def count_lines(shard: Shard) -> int:
    """Count the lines that begin in a range of bytes."""
    stop = shard.size if shard.stop is None else shard.stop
    count, at = 0, max(shard.start - 1, 0)
    with shard.path.open("rb") as file:
        file.seek(at)
        while at < stop - 1:
            piece = file.read(min(1 << 20, stop - 1 - at))
            if not piece:
                break
            count += piece.count(b"\n")
            at += len(piece)
    return count + (shard.start == 0)
