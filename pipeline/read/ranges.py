"""Divides large files among workers: text by ranges of bytes, Parquet by row groups.

A range of bytes holds the lines that begin in it. In CSV with quotes a line break may belong to a
field, so that a range begins where a record does. Compressed files stay whole, because no reader
can start in their middle, and so does CSV with escapes.
"""

import itertools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from multigate.configs.sections.log import CsvFormat, Format, JsonLinesFormat, ParquetFormat
from multigate.pipeline.read.sources import Shard, read

LONGEST = 32 << 20  # bytes of a part, where the log is not larger than _PARTS of them
_PARTS = 128
_NEAR = 1 << 18  # bytes in which a record has to begin, and nearly all have to be whole


def longest_part(shards: list[Shard]) -> int:
    """Bytes of the largest part of a log.

    Each part sends something to each bucket. Of a large log, which has many buckets, small parts
    would make more parcels than the local runner can hold.
    """
    return max(LONGEST, sum(shard.size for shard in shards) // _PARTS)


def divide_shards(
    shards: list[Shard], form: Format, wanted: list[str], longest: int
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
            divided += _ranges(shard, range(0, shard.size, longest))
        elif large and not shard.compressed and isinstance(form, CsvFormat) and not form.escape:
            divided += _by_records(shard, form, wanted, longest)
        else:
            divided.append(shard)
    return divided


def _plain_lines(form: Format) -> bool:
    if isinstance(form, CsvFormat):
        return not form.quoted and form.escape is None
    return isinstance(form, JsonLinesFormat)


def _ranges(shard: Shard, starts: Iterable[int]) -> list[Shard]:
    return [
        replace(shard, start=start, stop=stop, size=stop - start)
        for start, stop in itertools.pairwise([*starts, shard.size])
    ]


def _by_records(shard: Shard, form: CsvFormat, wanted: list[str], longest: int) -> list[Shard]:
    """Divide CSV with quotes at line breaks outside them.

    All quotes before a line break say whether it is outside, so that the file is read once more.
    From a store that would be a second download: those files stay whole.
    """
    path = shard.path
    if not isinstance(path, Path):
        return [shard]
    bounds = range(0, shard.size, longest)
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            quotes = pool.map(lambda at: _count_quotes(path, at, longest), bounds)
            before = list(itertools.accumulate(quotes))
        starts = [0]
        for at, count in zip(bounds[1:], before, strict=False):
            start = _next_record(path, at, inside=count % 2 == 1)
            if start is not None and starts[-1] < start < shard.size:
                tried = replace(shard, start=start, stop=min(start + _NEAR, shard.size))
                if _holds_records(tried, form, wanted):
                    starts.append(start)
    except OSError:
        return [shard]  # the reader says what is wrong with it
    return _ranges(shard, starts) if len(starts) > 1 else [shard]


def _count_quotes(path: Path, start: int, size: int) -> int:
    with path.open("rb") as file:
        file.seek(start)
        pieces = iter(lambda: file.read(min(1 << 20, start + size - file.tell())), b"")
        return sum(int(np.count_nonzero(_bytes(piece) == ord('"'))) for piece in pieces)


def _next_record(path: Path, at: int, inside: bool) -> int | None:
    """Where the first record begins from a byte on, which quotes protect if it is `inside`."""
    with path.open("rb") as file:
        file.seek(at)
        raw = _bytes(file.read(_NEAR))
    outside = (np.cumsum(raw == ord('"')) + inside) % 2 == 0
    ends = np.flatnonzero((raw == ord("\n")) & outside)
    return at + int(ends[0]) + 1 if len(ends) else None


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _holds_records(part: Shard, form: CsvFormat, wanted: list[str]) -> bool:
    """Whether nine records of ten are whole.

    Behind a stray quote, what seems outside quotes is inside, and only every other one is.
    """
    chunks = list(read(part, form, wanted))
    return sum(len(one.line) for one in chunks) > 9 * sum(len(one.rejects) for one in chunks)


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
