"""Files of rows, read and written a part at a time: Parquet, CSV and JSON lines."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError, one_line
from multigate.configs.files import ExamplesFolder
from multigate.configs.storage import Place
from multigate.jobs.scoring.columns import arrow_type

SEPARATORS = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
FORMATS = (PARQUET, *SEPARATORS, *LINES)

_ROWS = 16_384
"""Rows of a part of a Parquet file."""
_BLOCK = 4 << 20
"""Bytes of a part of a text file."""

Write = Callable[[pa.Table], None]


def kind_of(path: Place) -> str:
    """The format of a file, by its name; `.gz` after it stands for a compressed one.

    Raises:
        DataError: the name says none.
    """
    name = path.name.removesuffix(".gz")
    for suffix in FORMATS:
        if name.endswith(suffix):
            return suffix
    raise DataError(f"{path}: expected a name that ends with {', '.join(FORMATS)}")


def read_parts(path: Place, contract: Contract) -> Iterator[pa.Table]:
    """The rows of a file, in order, some thousands at a time.

    Cells of CSV stay texts, so that they can be written as they were; an empty one is null.

    Args:
        path: the file, or its address.
        contract: gives the types of the features in JSON lines; other columns have those of the
            file's first part.

    Raises:
        DataError: no such file, or a part cannot be read.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected rows in {', '.join(FORMATS)}")
    kind = kind_of(path)
    try:
        if kind == PARQUET:
            with pq.ParquetFile(_source(path)) as file:
                for batch in file.iter_batches(_ROWS):
                    yield pa.Table.from_batches([batch])
            return
        reader = _lines(path, contract) if kind in LINES else _cells(path, SEPARATORS[kind])
        with reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except pa.ArrowException as error:
        reason = one_line(error)
        if kind in LINES and "unexpected field" in reason:  # Arrow does not say which
            reason = (
                f"a row has a field that no row of the first {_BLOCK >> 20} MiB has; name it in "
                "the first row, null where it has no value"
            )
        raise DataError(f"{path}: cannot be read as {kind[1:]}: {reason}") from None


def _source(path: Place) -> Any:
    """What Arrow opens: a local path, or the file of an address."""
    if isinstance(path, Path):
        return path
    file = pa.PythonFile(path.open(), "r")
    # By a local file's name, Arrow itself tells that it is compressed.
    return pa.CompressedInputStream(file, "gzip") if path.name.endswith(".gz") else file


def count_rows(path: Place) -> int | None:
    """How many rows a file has; None where only reading it would tell."""
    if kind_of(path) != PARQUET:
        return None
    try:
        with pq.ParquetFile(_source(path)) as file:
            return int(file.metadata.num_rows)
    except pa.ArrowException:
        return None  # `read_parts` says why


def split_parts(examples: Path, split: str) -> Iterator[pa.Table]:
    """The rows of a split of examples, some thousands at a time.

    Raises:
        DataError: the split has no files, or one cannot be read.
    """
    folder = ExamplesFolder(examples).split(split)
    paths = sorted(folder.glob(f"*{PARQUET}"))
    if not paths:
        raise DataError(f"{folder}: expected Parquet parts, found none")
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS):
                    yield pa.Table.from_batches([batch])
        except pa.ArrowException as error:
            reason = one_line(error)
            raise DataError(f"{path}: cannot be read as Parquet: {reason}") from None


def _as_json(row: Any) -> str:
    """A row as JSON, which has no NaN and no infinity: null."""
    try:
        return json.dumps(row, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def writer(path: Path, kind: str) -> Iterator[Write]:
    """Write parts of one table to a file, of which `kind_of` is the format.

    Yields:
        A function that writes a part; all parts have the columns of the first.

    Raises:
        DataError: CSV cannot hold a column's lists.
    """
    if kind in LINES:
        with path.open("w", encoding="utf-8") as file:

            def write_lines(part: pa.Table) -> None:
                for row in part.to_pylist():
                    file.write(_as_json(row) + "\n")

            yield write_lines
        return
    opened: list[Any] = []

    def write(part: pa.Table) -> None:
        if not opened:
            opened.append(_open(path, kind, part.schema))
        opened[0].write_table(part.cast(opened[0].schema if kind == PARQUET else part.schema))

    try:
        yield write
    finally:
        for each in opened:
            each.close()


def _open(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == PARQUET:
        return pq.ParquetWriter(path, schema, compression="zstd")
    for field in schema:
        if pa.types.is_nested(field.type):
            raise DataError(
                f"--out: {kind[1:]} cannot hold the lists of column {field.name!r}; write "
                f"{PARQUET} or {LINES[0]}, or leave the column out with --keep"
            )
    options = pacsv.WriteOptions(delimiter=SEPARATORS[kind], quoting_style="needed")
    return pacsv.CSVWriter(path, schema, write_options=options)


def _cells(path: Place, separator: str) -> Any:
    """A reader of CSV whose columns are all texts."""
    read = pacsv.ReadOptions(block_size=_BLOCK)
    parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)
    with pacsv.open_csv(_source(path), read, parse) as reader:
        names = reader.schema.names
    convert = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
    )
    return pacsv.open_csv(_source(path), read, parse, convert)


def _lines(path: Place, contract: Contract) -> Any:
    """A reader of JSON lines whose features have the contract's types."""
    read = pajson.ReadOptions(block_size=_BLOCK)
    with pajson.open_json(_source(path), read) as reader:
        names = reader.schema.names
    features = contract.of_side("user", "context", "item")
    types = [(name, arrow_type(feature)) for name, feature in features if name in names]
    parse = pajson.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="infer")
    return pajson.open_json(_source(path), read, parse)
