"""Finds the files of a log or side table and reads them as raw tables, with line numbers.

A chunk holds the wanted columns as the file gives them; `normalise` checks the values. Malformed
lines and damaged files become rejects here.
"""

import csv
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.errors import DataError, one_line
from multigate.configs.sections.log import CsvFormat, Format, JsonLinesFormat, OrcFormat
from multigate.configs.storage import Place
from multigate.pipeline.read import drift, orc, parquet, places
from multigate.pipeline.read.compressed import (
    MISSING_END,
    DamagedError,
    Stream,
    compression,
    members,
    open_range,
    open_stream,
)
from multigate.pipeline.read.delimited import escaped_nulls, parse_delimited, parse_header
from multigate.pipeline.read.json_lines import key_names, parse_json
from multigate.pipeline.read.lines import REJECT, Lines, read_lines, reject

_HEAD = 1 << 18  # bytes that are read for a header, at least
_MOST_COLUMNS = 1 << 14  # a file of more is no log; each costs milliseconds


@dataclass(frozen=True)
class Shard:
    """What one worker reads: a file, a member of a zip, or a part of a large file."""

    path: Place
    member: str | None
    name: str
    """The file's name in rejects and messages: relative to the data folder."""
    size: int = 0
    """In bytes; decompressed where the file says so."""
    compressed: bool = False
    """Whether `size` counts compressed bytes."""
    start: int = 0
    """Where the part begins: a byte, or in Parquet a row group."""
    stop: int | None = None
    """Where it ends; None for a whole file."""
    feedback: bool = False
    """Whether it belongs to the feedback's own files."""
    damage: str | None = None
    """Why nothing of it can be read."""


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of a shard.

    `frame` (B, wanted columns that the file has), `line` (B,) from 1, `text` (B,) the row as it
    stands in the file, `columns`: all names that the file gives, `rejects`: rows (line, reason,
    text), `damage`: why the shard's rest was not read, and what is known to be lost.
    """

    frame: pl.DataFrame
    line: pl.Series
    text: pl.Series
    columns: tuple[str, ...]
    rejects: pl.DataFrame
    damage: DamagedError | None = None
    types: dict[str, str] = field(default_factory=dict)
    """Of Parquet and ORC: the wanted columns' types."""
    group_ends: tuple[int, ...] = ()
    """Of Parquet and ORC: how many rows the file has up to the end of each row group."""
    lines_read: int = 0
    """Of text: how many lines of the shard were read up to here, blank ones included."""


def expand(data: Place, patterns: tuple[str, ...]) -> list[Shard]:
    """List the files that match the patterns, sorted, each once.

    Args:
        data: the data folder: a local path, or an address such as `s3://bucket/logs`.
        patterns: paths or globs relative to it. `archive.zip#member` is one member of a zip.

    Raises:
        DataError: no such folder, no file that matches a pattern, or no such member.
    """
    shards: dict[str, Shard] = {}
    for pattern in patterns:
        glob, _, wanted = pattern.partition("#")
        found = places.find(data, glob)
        if not found:
            there = places.nearby(data)
            raise DataError(
                f"{data}: no file matches {glob!r}; the folder holds "
                f"{', '.join(there) if there else 'nothing'}"
            )
        for path, name in found:
            for shard in _shards(path, name, wanted):
                shards[shard.name] = shard
    return [shards[name] for name in sorted(shards)]


def _shards(path: Place, name: str, wanted: str) -> list[Shard]:
    try:
        inside = members(path)
    except DamagedError as error:
        return [Shard(path, None, name, places.size(path), compressed=True, damage=str(error))]
    if inside is None:
        if wanted:
            raise DataError(f"{name}: member {wanted!r} was asked for, but this is not a zip")
        size, kind = places.size(path), compression(path)
        return [Shard(path, None, name, size, kind is not None)]
    if wanted and wanted not in inside:
        raise DataError(f"{name}: no member {wanted!r}; the zip holds {', '.join(inside)}")
    return [
        Shard(path, member, f"{name}#{member}", size)
        for member, size in inside.items()
        if not wanted or member == wanted
    ]


def read(
    shard: Shard,
    form: Format,
    wanted: list[str],
    single: Collection[str] = (),
    rename: Mapping[str, Sequence[str]] | None = None,
    separators: Mapping[str, str] | None = None,
) -> Iterator[Chunk]:
    """Read a shard.

    Args:
        shard: the file.
        form: its format.
        wanted: the columns to keep.
        single: the wanted columns that hold one value a row and no list.
        rename: earlier names of wanted columns, the oldest last.
        separators: by wanted column, what divides a text into the values of a list; `|` for the
            others.

    Yields:
        Chunks in the order of the file. A file without rows yields none, or one without rows
        that gives the column names. Of a damaged file, the last chunk says so.
    """
    form, rename = drift.format_of(form, shard.name), rename or {}
    nulls = set(form.null_values)
    if isinstance(form, CsvFormat):
        nulls -= set(escaped_nulls(form))  # told apart already
    names = list(dict.fromkeys([*wanted, *(old for n in wanted for old in rename.get(n, ()))]))
    single = {*single, *(old for name in single for old in rename.get(name, ()))}
    dividing = {
        one: by for name, by in (separators or {}).items() for one in (name, *rename.get(name, ()))
    }
    try:
        for chunk in _read(shard, form, names, single, dividing):
            found = _with_nulls(chunk, nulls) if nulls else chunk
            yield _as_wanted(found, shard, wanted, rename, dividing)
    except DamagedError as error:
        last = _empty_chunk(reject(error.line, str(error), error.text))
        yield replace(last, damage=error)


def _read(
    shard: Shard,
    form: Format,
    wanted: list[str],
    single: Collection[str],
    separators: Mapping[str, str],
) -> Iterator[Chunk]:
    if shard.damage is not None:
        raise DamagedError(shard.damage)
    if isinstance(form, CsvFormat):
        with _open(shard) as stream:
            header = None if shard.start == 0 and form.header is None else read_header(shard, form)
            yield from _read_csv(stream, form, wanted, header)
    elif isinstance(form, JsonLinesFormat):
        with _open(shard) as stream:
            yield from _read_json(stream, wanted, single, separators)
    elif isinstance(form, OrcFormat):
        yield from _read_orc(shard, wanted)
    else:
        yield from _read_parquet(shard, wanted)


def _as_wanted(
    chunk: Chunk,
    shard: Shard,
    wanted: list[str],
    rename: Mapping[str, Sequence[str]],
    separators: Mapping[str, str],
) -> Chunk:
    """A chunk with today's column names, and with columns from the names of the file's folders."""
    if not chunk.columns:
        return chunk
    earlier = {old: name for name, olds in rename.items() for old in olds if old in chunk.columns}
    given = {*chunk.columns, *earlier.values()}
    folders = drift.partitions(shard.name, [name for name in wanted if name not in given])
    if not earlier and not folders:
        return chunk
    frame = drift.renamed(chunk.frame, rename, separators)
    constants = [
        pl.Series(name, [value], dtype=pl.String).new_from_index(0, len(chunk.line))
        for name, value in folders.items()
    ]
    frame = pl.DataFrame([*frame, *constants])
    more = [name for name in (*earlier.values(), *folders) if name not in chunk.columns]
    types = {earlier.get(name, name): type_ for name, type_ in reversed(chunk.types.items())}
    columns = tuple(dict.fromkeys([*chunk.columns, *more]))
    return replace(chunk, frame=frame, columns=columns, types=types)


def _with_nulls(chunk: Chunk, texts: set[str]) -> Chunk:
    """A chunk in which these texts are missing values."""
    nulls = dict.fromkeys(sorted(texts))
    return replace(chunk, frame=chunk.frame.with_columns(pl.col(pl.String).replace(nulls)))


def _empty_chunk(rejects: pl.DataFrame, columns: tuple[str, ...] = ()) -> Chunk:
    empty = pl.Series("line", [], dtype=pl.Int64)
    text = pl.Series("text", [], dtype=pl.String)
    return Chunk(pl.DataFrame(), empty, text, columns, rejects)


@contextmanager
def _open(shard: Shard) -> Iterator[Stream]:
    """Open a shard: a file, a member of a zip, or a range of a plain file's bytes."""
    if shard.stop is None:
        with open_stream(shard.path, shard.member) as stream:
            yield stream
    else:
        buffer = places.buffering(shard.path)
        with open_range(shard.path, shard.start, shard.stop, buffer) as stream:
            yield stream


def read_header(shard: Shard, form: CsvFormat) -> list[str] | None:
    """The column names of a plain file, of which the shard may be any part; None of an empty one.

    Raises:
        DamagedError: the first line cannot be read, so that nothing in the file has a name.
    """
    if form.header is not None:
        return list(form.header)
    with open_range(shard.path, 0, places.size(shard.path), _HEAD) as stream:
        for lines in read_lines(stream, form.encoding, form.quoted, form.escape, block=_HEAD):
            header, _ = _take_header(lines, form)
            if header is not None:
                return header
    return None


def _take_header(lines: Lines, form: CsvFormat) -> tuple[list[str] | None, Lines]:
    """The column names in a file's first record, None where it is not among these; the others."""
    unread = lines.rejects["line"].min()
    if unread is not None and (not len(lines.text) or unread < lines.number[0]):
        # Without its first line, nothing in the file has a name.
        line, reason, text = lines.rejects.row(0)
        raise DamagedError(reason, line=line, text=text)
    if not len(lines.text):
        return None, lines
    if "\0" in lines.text[0]:
        raise DamagedError("not text: the first line holds zero bytes")
    try:
        header = parse_header(lines.text[0], form)
    except csv.Error as error:
        raise DamagedError(f"malformed line: a header with {error}", text=lines.text[0]) from None
    if len(header) > _MOST_COLUMNS:
        many = f"malformed line: a header of {len(header)} columns"
        raise DamagedError(many, text=lines.text[0])
    return header, replace(lines, text=lines.text[1:], number=lines.number[1:])


def _read_csv(
    stream: Stream, form: CsvFormat, wanted: list[str], header: list[str] | None
) -> Iterator[Chunk]:
    for block in read_lines(stream, form.encoding, form.quoted, form.escape):
        lines = block
        if header is None:
            header, lines = _take_header(block, form)
            if header is None:
                continue
        frame, source, rejects = parse_delimited(lines, header, form, wanted)
        yield Chunk(
            frame,
            source.number,
            source.text,
            tuple(header),
            pl.concat([lines.rejects, rejects]),
            _cut_off(lines, rejects),
            lines_read=lines.read,
        )


def _cut_off(lines: Lines, rejects: pl.DataFrame) -> DamagedError | None:
    """Report a file as cut off if its last line is malformed and has no line break."""
    if lines.unended is None:
        return None
    last = rejects.filter(pl.col("line") == lines.unended)
    if not len(last) or not last["reason"][0].startswith("malformed line"):
        return None
    return DamagedError("cut off in the middle of its last line", MISSING_END, line=last["line"][0])


def _read_json(
    stream: Stream, wanted: list[str], single: Collection[str], separators: Mapping[str, str]
) -> Iterator[Chunk]:
    for lines in read_lines(stream, "utf-8"):
        frame, source, rejects = parse_json(lines, wanted, single, separators)
        yield Chunk(
            frame,
            source.number,
            source.text,
            tuple(dict.fromkeys([*frame.columns, *_keys(source.text)])),
            pl.concat([lines.rejects, rejects]),
            _cut_off(lines, rejects),
            lines_read=lines.read,
        )


def _keys(texts: pl.Series) -> list[str]:
    """The names in the first object, which a message about a missing column shows."""
    return key_names(json.loads(texts[0])) if len(texts) else []


def _read_parquet(shard: Shard, wanted: list[str]) -> Iterator[Chunk]:
    if shard.member is not None:
        raise DamagedError("Parquet files inside a zip are not read; unpack the zip")
    line, stop, total = 1, 0, 0
    try:
        with shard.path.open("rb") as raw, pq.ParquetFile(raw) as file:
            schema = file.schema_arrow
            inner = parquet.inner_types(schema)
            names = tuple(inner)
            twice = next((name for name in wanted if schema.names.count(name) > 1), None)
            if twice is not None:
                raise DamagedError(f"malformed file: two columns {twice!r}")
            if file.metadata.num_rows == 0:
                yield _empty_chunk(pl.DataFrame(schema=REJECT), names)
            groups = range(file.metadata.num_row_groups)[shard.start : shard.stop]
            line += sum(file.metadata.row_group(at).num_rows for at in range(shard.start))
            stop = line + sum(file.metadata.row_group(at).num_rows for at in groups)
            total = file.metadata.num_rows
            present = [name for name in wanted if name in inner or name in schema.names]
            types = {name: str(inner.get(name, "struct")) for name in present}
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            ends = tuple(itertools.accumulate(sizes))
            columns = parquet.paths(schema, present)
            fixed = parquet.fixed_size_lists(
                schema, [one for one in columns if one in schema.names]
            )
            others = [name for name in columns if name not in fixed]
            for batch in file.iter_batches(1 << 18, row_groups=list(groups), columns=others):
                frame = parquet.to_frame(batch)
                if fixed:
                    more = _read_fixed(shard, fixed, line - 1, batch.num_rows)
                    frame = pl.DataFrame([*frame, *more])
                frame = parquet.take(frame, present)
                wrong = parquet.nested(frame)
                if wrong is not None:
                    raise DamagedError(wrong)
                numbers = pl.int_range(line, line + batch.num_rows, eager=True).alias("line")
                kept, good, texts, rejects = parquet.parse_batch(frame, numbers)
                yield Chunk(kept, good, texts, names, rejects, types=types, group_ends=ends)
                line += batch.num_rows
    except (pa.ArrowInvalid, pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(error, line, stop - line if stop else 0, total) from None


def _read_orc(shard: Shard, wanted: list[str]) -> Iterator[Chunk]:
    if shard.member is not None:
        raise DamagedError("ORC files inside a zip are not read; unpack the zip")
    line, total = 1, 0
    try:
        with shard.path.open("rb") as raw:
            file = orc.open_orc(raw)
            inner, total = parquet.inner_types(file.schema), file.nrows
            names = tuple(inner)
            present = [name for name in wanted if name in inner or name in file.schema.names]
            types = {name: str(inner.get(name, "struct")) for name in present}
            if not total or not present:
                yield _empty_chunk(pl.DataFrame(schema=REJECT), names)
                return
            ends: dict[int, int] = {}
            for stripe, batch in orc.read_stripes(file, parquet.paths(file.schema, present)):
                frame = parquet.take(parquet.to_frame(batch), present)
                wrong = parquet.nested(frame)
                if wrong is not None:
                    raise DamagedError(wrong)
                numbers = pl.int_range(line, line + batch.num_rows, eager=True).alias("line")
                kept, good, texts, rejects = parquet.parse_batch(frame, numbers)
                line += batch.num_rows
                ends[stripe] = line - 1
                groups = tuple(ends.values())
                yield Chunk(kept, good, texts, names, rejects, types=types, group_ends=groups)
    except (pa.ArrowInvalid, pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(error, line, total - line + 1 if total else 0, total) from None


def _damaged(error: Exception, line: int, missing: int, total: int) -> DamagedError:
    """The error of a file that is damaged at a row, counted from 1."""
    reason = one_line(error)
    rest = "the rest" if line > 1 else "nothing"
    read_ = "was not read" if line > 1 else "of it was read"
    lost = f"{missing} of {total} rows" if missing else "the whole file"
    return DamagedError(f"damaged file, {rest} {read_}: {reason}", lost, line)


def _read_fixed(shard: Shard, names: list[str], start: int, rows: int) -> pl.DataFrame:
    """Some rows of columns of fixed-size lists, as lists; see `parquet.fixed_size_lists`."""
    with shard.path.open("rb") as raw:
        return (
            pl.scan_parquet(raw)
            .select(pl.col(name).arr.to_list() for name in names)
            .slice(start, rows)
            .collect()
        )
