"""Finds the tables in a folder and reads their first rows: format, columns and values.

csv.Sniffer and DuckDB's CSV sniffer were considered: the first knows no delimiter of two characters
and guesses from one row, the second reads no xz and no zip.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow.parquet as pq

from multigate.configs import DataError, progress
from multigate.configs.sections.base import parse
from multigate.configs.sections.log import CsvFormat, Format, JsonLinesFormat, ParquetFormat
from multigate.configs.storage import Place
from multigate.jobs.onboarding.tables.columns import Column
from multigate.jobs.onboarding.tables.rows import count_rows
from multigate.jobs.onboarding.tables.spellings import respell
from multigate.pipeline.read import drift, places
from multigate.pipeline.read.compressed import SUFFIXES, DamagedError, open_stream
from multigate.pipeline.read.json_lines import as_text, key_names
from multigate.pipeline.read.parquet import inner_types
from multigate.pipeline.read.sources import Shard, expand, read

_DELIMITERS = ("::", "\t", ",", ";", "|")
_HEAD = 1 << 18  # bytes of a file that are looked at for its format
_LINES = 200
_SPREAD, _BLOCKS = 5, 20  # rows are taken in blocks from five times as many
_FILES, _SMALL_FILES = 16, 256  # that are read: of small ones more, up to so many bytes
_BYTES = 1 << 24
_NO_TABLES = (".md", ".html", ".pdf", ".png", ".jpg", ".py", ".sh", ".yaml", ".yml", ".toml")


@dataclass(frozen=True)
class Table:
    """Files that have the same columns."""

    files: tuple[str, ...]
    """Their names, as `pipeline.log.files` takes them."""
    form: dict[str, Any]
    """The format, as `pipeline.log.format` takes it."""
    columns: tuple[str, ...]
    frame: pl.DataFrame
    """The first rows of the files; numbers of text files are text."""
    rows: int
    """How many rows the files have, about."""
    derive: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Columns of `frame` that are spelled otherwise in the files, as `pipeline.log.derive` takes
    them."""
    derived: dict[str, pl.Series] = field(default_factory=dict)
    """The sample's values of columns that are added by `derive`."""
    spellings: dict[str, str] = field(default_factory=dict)
    """By such a column, how it is spelled."""
    seconds: frozenset[str] = frozenset()
    """Columns of `frame` that the files spell as durations."""
    explode: dict[str, Any] | None = None
    """Of requests that are unfolded to the rows of `frame`, as `pipeline.log.explode` takes it."""


_Member: TypeAlias = tuple[Shard, dict[str, Any], tuple[str, ...]]
"""A file of a table, its format and its columns."""


def find_tables(data: Place, rows: int) -> list[Table]:
    """The tables of a folder, the largest first.

    Args:
        data: the folder.
        rows: how many rows to read of each table, about.

    Raises:
        DataError: there is no such folder, or no table in it.
    """
    groups: dict[str, list[_Member]] = {}
    shards = expand(data, ("**/*",))
    for shard in progress.track(shards, "look at files", len(shards), "files"):
        if drift.is_marker(shard.name) or shard.name.lower().endswith(_NO_TABLES):
            continue
        found = _sniff(shard)
        if found is not None:
            form, columns = found
            key = json.dumps([form, sorted(columns) if form["type"] != "csv" else columns])
            if form["type"] == "jsonl":
                key = _alike(columns, groups) or key
            groups.setdefault(key, []).append((shard, form, columns))
    tables = []
    for members in groups.values():
        own = [shard.name for shard, _, _ in members]
        names = {shard.name for other in groups.values() for shard, _, _ in other} - {*own}
        tables.append(_table(members, rows, tuple(_pattern(data, own, names))))
    tables = [table for table in tables if len(table.frame)]
    if not tables:
        raise DataError(
            f"{data}: no table here; expected CSV, TSV, JSON lines or Parquet files, possibly "
            "compressed"
            + "".join(
                f"; {shard.name}: write one object a line, as `jq -c '.[]'` does"
                for shard in [one for one in shards if ".json" in one.name.lower()][:1]
            )
        )
    return sorted(tables, key=lambda one: -one.rows)


def _alike(columns: tuple[str, ...], groups: dict[str, list[_Member]]) -> str | None:
    """The group of JSON lines that a file with these columns belongs to, by its key.

    Names may be absent from a file's first lines, or from all events of a type: half of the names
    of one of them are enough.  A table of items has hardly more than the id in common with a log.
    """
    for key, members in groups.items():
        known = {name for _, _, names in members for name in names}
        alike = 2 * len(known & {*columns}) >= min(len(known), len(columns))
        if members[0][1]["type"] == "jsonl" and alike:
            return key
    return None


def _table(members: list[_Member], rows: int, names: tuple[str, ...]) -> Table:
    form = members[0][1]
    columns = tuple(dict.fromkeys(name for _, _, names in members for name in names))
    size = sum(shard.size for shard, _, _ in members) / len(members)
    most = min(max(_FILES, int(_BYTES / max(size, 1))), _SMALL_FILES)
    chosen = members[:: -(-len(members) // most)]
    frames, total, width = [], 0, 0
    ended: list[tuple[int, int]] = []  # rows and bytes of files that were read to their end
    for shard, _, _ in chosen:
        limit = left = -(-_SPREAD * rows // len(chosen))
        try:
            for chunk in read(shard, parse_format(form), [name for name in columns if name]):
                head = chunk.frame.head(left)
                frames.append(head)
                width += int(chunk.text.head(left).str.len_bytes().sum() or 0)
                left -= len(head)
                total += len(head)
                if left <= 0:
                    break
        except DamagedError:
            continue
        if left > 0:
            ended.append((limit - left, shard.size))
    frame = _blocks(_together(frames), rows)
    count = total
    if len(ended) < len(members):
        each, known = width / max(total, 1), sum(size for _, size in ended)
        rate = sum(count for count, _ in ended) / known if known else None
        sizes = (count_rows(s, each, s.name.endswith(".parquet"), rate) for s, _, _ in members)
        count = max(total, round(sum(sizes)))
    spelled = respell(frame)
    return Table(
        names,
        form,
        columns,
        spelled.frame,
        count,
        spelled.derive,
        spellings=spelled.reasons,
        seconds=frozenset(spelled.seconds),
    )


def key_of(table: Table, column: Column) -> tuple[str, float] | None:
    """The column of a table that has one row for each value of a log's column.

    Returns:
        The column, and which share of its keys the log's values are.
    """
    values = as_text(column.raw).drop_nulls().unique()
    best: tuple[str, float] | None = None
    for name in table.frame.columns:
        if isinstance(table.frame[name].dtype, pl.List | pl.Array):
            continue
        keys = as_text(table.frame[name]).drop_nulls()
        if len(keys) < 3 or keys.n_unique() < len(table.frame):
            continue
        known = float(values.is_in(keys.implode()).mean() or 0.0)
        share = known * len(values) / len(keys)
        if known > 0.95 and share > 0.02 and (best is None or share > best[1]):
            best = name, share
    return best


def _blocks(frame: pl.DataFrame, rows: int) -> pl.DataFrame:
    """Blocks of consecutive rows from the whole frame: a file may be sorted by user or by time."""
    if len(frame) <= rows:
        return frame
    size, step = rows // _BLOCKS, len(frame) // _BLOCKS
    return pl.concat([frame[at * step : at * step + size] for at in range(_BLOCKS)])


def parse_format(form: dict[str, Any]) -> Format:
    """The typed format."""
    if form["type"] == "csv":
        return parse(CsvFormat, form, "format")
    if form["type"] == "jsonl":
        return parse(JsonLinesFormat, form, "format")
    return parse(ParquetFormat, form, "format")


def _together(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame; a column that has several types becomes text."""
    types: dict[str, set[Any]] = {}
    for frame in frames:
        for name, kind in frame.schema.items():
            types.setdefault(name, set()).add(kind)
    mixed = [name for name, kinds in types.items() if len(kinds) > 1]
    same = [
        frame.with_columns(as_text(frame[name]).alias(name) for name in mixed if name in frame)
        for frame in frames
    ]
    return pl.concat(same, how="diagonal") if same else pl.DataFrame()


def _pattern(data: Place, names: Sequence[str], others: set[str]) -> list[str]:
    """The names of a table's files, or, where they are many, globs that match no other table's.

    Args:
        data: the folder.
        names: relative to it.
        others: names of the other tables' files.
    """
    if len(names) <= 4 or any("#" in name for name in names):
        return [name.partition("#")[0] for name in names if "#" not in name] + sorted(
            {name for name in names if "#" in name}
        )
    folders = "**/" * any("/" in name for name in names)
    start = re.split(r"\d", Path(names[0]).name)[0]  # digits are a file's date or number
    for globs in (
        [f"{folders}*{Path(name).suffix}" for name in names],
        [f"{folders}*{_suffixes(name)}" for name in names],
        [f"{folders}{start}*{_suffixes(name)}" for name in names],
        [f"{Path(name).parts[0]}/**/*{_suffixes(name)}" for name in names if folders],
    ):
        wanted = sorted({*globs})
        found = {name for glob in wanted for _, name in places.find(data, glob)}
        if found >= {*names} and not found & others:
            return wanted
    return list(names)


def _suffixes(name: str) -> str:
    """The suffix of a name, such as `.csv.gz`."""
    path = Path(name)
    inner = Path(path.stem).suffix if path.suffix in SUFFIXES else ""
    return inner + path.suffix


def _sniff(shard: Shard) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """A file's format and columns; None where it is no table."""
    try:
        with open_stream(shard.path, shard.member) as stream:
            head = b""
            while len(head) < _HEAD:
                piece = stream.read()
                if not piece:
                    break
                head += piece
    except (DamagedError, OSError):
        return None
    if head[:4] == b"PAR1":
        with shard.path.open("rb") as file:
            return {"type": "parquet"}, tuple(inner_types(pq.ParquetFile(file).schema_arrow))
    if b"\x00" in head[:4096] or not head.strip():
        return None
    encoding = "utf-8"
    start = head[:_HEAD]
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start >= len(start) - 4:  # cut within a character
            text = start[: error.start].decode()
        else:
            encoding, text = "latin-1", head.decode("latin-1")
    if re.match(r"\ufeff?\s*\[\s*\{", text):
        return None  # an array of JSON, whose lines are no rows
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    lines = (lines[:-1] if len(head) >= _HEAD else lines)[:_LINES]
    if lines and lines[0].lstrip().startswith("{"):
        return _json(lines)
    return _delimited(lines, encoding)


def _json(lines: list[str]) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    names: dict[str, None] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            return None
        if not isinstance(row, dict):
            return None
        names |= dict.fromkeys(key_names(row))
    # What holds objects elsewhere is null or an empty list in some lines.
    outer = {name[:at] for name in names for at, mark in enumerate(name) if mark == "."}
    return {"type": "jsonl"}, tuple(name for name in names if name not in outer)


def _delimited(lines: list[str], encoding: str) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    best: tuple[float, int, dict[str, Any], list[list[str]]] | None = None
    for place, delimiter in enumerate(_DELIMITERS):
        quoted = len(delimiter) == 1 and any('"' in line for line in lines)
        if quoted:
            try:
                rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
            except csv.Error:
                quoted, rows = False, [line.split(delimiter) for line in lines]
        else:
            rows = [line.split(delimiter) for line in lines]
        counts = Counter(len(row) for row in rows)
        fields, often = counts.most_common(1)[0] if counts else (1, 0)
        if fields < 2 or often < 0.9 * len(rows):
            continue
        form: dict[str, Any] = {
            "type": "csv",
            "delimiter": delimiter,
            "quoted": quoted,
            "encoding": encoding,
        }
        score = (often / len(rows), -place)
        if best is None or score > (best[0], best[1]):
            best = (*score, form, [row for row in rows if len(row) == fields])
    if best is None or len(lines) < 3:
        return None
    _, _, form, rows = best
    if form["encoding"] == "utf-8":
        del form["encoding"]
    if form["quoted"] or len(form["delimiter"]) == 1:
        form["quoted"] = True
    if form["delimiter"] == ",":
        del form["delimiter"]
    if form["quoted"]:
        del form["quoted"]
    names = rows[0]
    if not _is_header(rows):
        short = next(csv.reader(lines, delimiter=form.get("delimiter", ",")[0]))
        if len(short) == len(names) - 1 and _numbers_rows(rows):
            names = ["row", *short]  # R gives the rows' names no name
        else:
            names = [f"column_{at + 1}" for at in range(len(names))]
        form["header"] = names
    return form, tuple(names)


def _numbers_rows(rows: list[list[str]]) -> bool:
    """Whether the first cells are whole numbers that grow by one."""
    first = [row[0] for row in rows]
    whole = all(cell.isdecimal() for cell in first)
    return whole and all(int(b) - int(a) == 1 for a, b in pairwise(first))


def _is_header(rows: list[list[str]]) -> bool:
    """Whether the first row names the columns.

    A name is no number, and where the column below holds numbers or repeats itself, it is another
    kind of text.
    """
    first, rest = rows[0], rows[1:]
    if any(_is_number(cell) for cell in first):
        return False
    columns = [[row[at] for row in rest] for at in range(len(first))]
    if any(all(_is_number(cell) for cell in column if cell) for column in columns if any(column)):
        return True
    if len(set(first)) < len(first):
        return False
    return not any(name in column for name, column in zip(first, columns, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
