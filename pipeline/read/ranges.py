"""Divides large files among workers: text by ranges of bytes, Parquet by row groups.

A range of bytes holds the lines that begin in it. In CSV with quotes a line break may belong to a
field, so that a range begins where a record does. Compressed files stay whole, because no reader
can start in their middle, and so does CSV with escapes.
"""

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.sections.log import CsvFormat, Format, JsonLinesFormat, ParquetFormat
from multigate.pipeline.read.compressed import DamagedError
from multigate.pipeline.read.lines import LONGEST_RECORD
from multigate.pipeline.read.sources import Shard, read_header

LONGEST = 32 << 20  # bytes of a part, where the log is not larger than _PARTS of them
_PARTS = 128


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
        elif large and not shard.compressed:
            starts = _starts(shard, form, longest)
            divided += _ranges(shard, starts) if len(starts) > 1 else [shard]
        else:
            divided.append(shard)
    return divided


def _starts(shard: Shard, form: Format, longest: int) -> Sequence[int]:
    """Where the parts of a file of lines begin; only 0 where it stays whole."""
    anywhere = range(0, shard.size, longest)
    if isinstance(form, JsonLinesFormat):
        return anywhere
    if not isinstance(form, CsvFormat) or form.escape is not None:
        return [0]
    try:
        read_header(shard, form)
        if not form.quoted:
            return anywhere
        if not isinstance(shard.path, Path):
            return [0]  # counting quotes would be a second download
        return _record_starts(shard.path, shard.size, longest)
    except (DamagedError, OSError):
        return [0]  # the reader says what is wrong with it


def _ranges(shard: Shard, starts: Sequence[int]) -> list[Shard]:
    return [
        replace(shard, start=start, stop=stop, size=stop - start)
        for start, stop in itertools.pairwise([*starts, shard.size])
    ]


def _record_starts(path: Path, size: int, longest: int) -> list[int]:
    """Divide CSV with quotes at line breaks outside them, which all quotes before them tell.

    So does the reader, until a record is longer than it takes for one, because of a stray quote.
    Such a record holds a whole piece of half that length. Behind it the file stays whole.
    """
    piece = min(longest, LONGEST_RECORD // 2)
    bounds = range(0, size, longest - longest % piece)
    starts, inside = [0], False
    with ThreadPoolExecutor(os.cpu_count()) as pool, path.open("rb") as file:
        parts = pool.map(lambda at: _count_quotes(path, at, bounds.step, piece), bounds)
        counts = itertools.chain.from_iterable(parts)
        for at, quotes in zip(range(0, size, piece), counts, strict=False):
            end = _record_end(file, at, at + piece, inside)
            if end is None:
                break
            if at and at in bounds and end < size:
                starts.append(end)
            inside ^= quotes % 2 == 1
    return starts


def _count_quotes(path: Path, start: int, size: int, piece: int) -> list[int]:
    """The quotes in each piece of a range of bytes."""
    with path.open("rb") as file:
        file.seek(start)
        pieces = (np.frombuffer(file.read(piece), np.uint8) for _ in range(0, size, piece))
        return [int(np.count_nonzero(one == ord('"'))) for one in pieces if len(one)]


def _record_end(file: BinaryIO, at: int, stop: int, inside: bool) -> int | None:
    """Where the first record ends in the bytes [at, stop), which begin `inside` quotes or not."""
    file.seek(at)
    while at < stop:
        line = file.readline(stop - at)
        at += len(line)
        inside ^= line.count(b'"') % 2 == 1
        if not line.endswith(b"\n"):
            break
        if not inside:
            return at
    return None


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
