"""Turns batches of Parquet into columns: values and lists of values of any type.

Fields of structs are read by dotted names, as keys of objects in JSON: `user.id` is the field `id`
of the struct `user`; in a list of structs, the list of theirs. A column of that very name comes
first.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.lines import REJECT

_FIRST, _LAST = -719_161, 2_932_895  # days since 1970: the years 1 to 9999, in any zone
_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000}

_SHOWN = 8  # numbers of a vector in the text of a reject


def to_frame(batch: pa.RecordBatch) -> pl.DataFrame:
    """Hand a batch to polars. Types that polars lacks become the nearest one, and zones UTC."""
    kinds = [(field.name, _known(field.type)) for field in batch.schema]
    columns = [
        column if column.type == kind else column.cast(kind)
        for column, (_, kind) in zip(batch.columns, kinds, strict=True)
    ]
    frame = pl.DataFrame(pa.table(columns, schema=pa.schema(kinds)))
    uuids = [field.name for field in batch.schema if isinstance(field.type, pa.UuidType)]
    return frame.with_columns(_as_uuid(name) for name in uuids)


def _as_uuid(name: str) -> pl.Expr:
    """The 16 bytes of a UUID as its text, 8-4-4-4-12 digits."""
    digits = pl.col(name).cast(pl.Binary).bin.encode("hex")
    groups = [digits.str.slice(at, n) for at, n in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.concat_str(groups, separator="-").alias(name)


def _known(kind: pa.DataType) -> pa.DataType:
    """The nearest type that polars has."""
    if isinstance(kind, pa.BaseExtensionType):
        return _known(kind.storage_type)
    if pa.types.is_decimal(kind):
        fits = kind.precision <= 38
        return pa.decimal128(kind.precision, kind.scale) if fits else pa.string()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_map(kind):
        pair = [("key", _known(kind.key_type)), ("value", _known(kind.item_type))]
        return pa.list_(pa.struct(pair))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_known(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _known(field.type)) for field in kind])
    return kind


def inner_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Each name by which values can be read -> its type, in the file's order."""
    found: dict[str, pa.DataType] = {}
    for field in schema:
        found |= {name: kind for name, kind in _leaves(field.name, field.type) if name not in found}
    return found | {field.name: field.type for field in schema if field.name in found}


def _leaves(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(kind) and kind.num_fields:
        for part in kind:
            yield from _leaves(f"{name}.{part.name}", part.type)
    elif (of := _of_list(kind)) is not None:
        for part in of:
            if not pa.types.is_nested(part.type):
                yield f"{name}.{part.name}", pa.list_(part.type)
    else:
        yield name, kind


def _of_list(kind: pa.DataType) -> list[pa.Field] | None:
    """The fields of the structs in a list; None of other types."""
    if pa.types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of = kind.value_type
        return list(of) if pa.types.is_struct(of) and of.num_fields else None
    return None


def paths(schema: pa.Schema, wanted: Sequence[str]) -> list[str]:
    """What to read of a file for some names: columns, or parts of structs.

    Args:
        schema: of the file.
        wanted: names of `inner_types`, or of columns.
    """
    found: dict[str, None] = {}
    for name in wanted:
        if name in schema.names:
            found[name] = None
            continue
        head, *parts = _split(name, schema.names)
        kind, path = schema.field(head).type, head
        for part in parts:
            if not pa.types.is_struct(kind):
                break  # a list is read whole
            path, kind = f"{path}.{part}", kind.field(part).type
        found[path] = None
    return list(found)


def take(frame: pl.DataFrame, wanted: Sequence[str]) -> pl.DataFrame:
    """The columns of some names.

    Args:
        frame: (B, ...) columns, structs among them.
        wanted: names of `inner_types`, or of columns.

    Returns:
        (B, wanted), under these names; null where a struct is.
    """
    found = []
    for name in wanted:
        if name in frame.columns:
            found.append(frame[name])
            continue
        head, *parts = _split(name, frame.columns)
        column = frame[head]
        for part in parts:
            if isinstance(column.dtype, pl.List):
                column = column.list.eval(pl.element().struct.field(part))
            else:
                field = pl.col(column.name).struct.field(part)
                is_there = pl.col(column.name).is_not_null()
                column = column.to_frame().select(pl.when(is_there).then(field)).to_series()
        found.append(column.alias(name))
    return pl.DataFrame(found)


def _split(name: str, columns: Sequence[str]) -> list[str]:
    """A dotted name as a column and names of fields; the longest column that fits comes first."""
    parts = name.split(".")
    for at in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:at])
        if head in columns:
            return [head, *parts[at:]]
    raise KeyError(name)


def fixed_size_lists(schema: pa.Schema, names: list[str]) -> list[str]:
    """The columns of fixed-size lists: Arrow 25 cannot read those that have nulls.

    See github.com/apache/arrow/issues/35692; polars reads them.
    """
    return [name for name in names if pa.types.is_fixed_size_list(schema.field(name).type)]


def nested(frame: pl.DataFrame) -> str | None:
    """Name a column that holds neither values nor lists of values; None where there is none."""
    for name, kind in frame.schema.items():
        inner = _inner(kind)
        if inner.is_nested() or inner == pl.Duration:
            return f"{name}: expected values or lists of them, received {kind}"
    return None


def parse_batch(
    frame: pl.DataFrame, line: pl.Series
) -> tuple[pl.DataFrame, pl.Series, pl.Series, pl.DataFrame]:
    """Turn bytes into text, and move times that cannot be printed.

    Args:
        frame: the columns that are read, (B, ...); none of them is `nested`.
        line: (B,) rows' numbers in the file.

    Returns:
        The columns, the rows' numbers and their values as text, each (b, ...); and rejects: rows
        with bytes that are not text.
    """
    columns, bad = [], np.zeros(len(line), bool)
    for raw in frame:
        column = raw
        if _inner(raw.dtype) == pl.Binary:
            column, wrong = _decode(raw)
            bad |= wrong
        columns.append(_printable(column))
    kept = pl.DataFrame(columns)
    texts = _rows(kept, len(line))
    rejects = pl.DataFrame(
        {"line": line.filter(bad), "reason": "not UTF-8 text", "text": texts.filter(bad)},
        schema=REJECT,
    )
    good = pl.Series(~bad)
    kept = kept.filter(good) if columns else kept
    return kept, line.filter(good), texts.filter(good), rejects


def _inner(kind: Any) -> Any:
    """The type of a list's values, or of the column itself."""
    return kind.inner if isinstance(kind, pl.List | pl.Array) else kind


def _decode(column: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """Bytes as text, null where they are not text; and (B,) flags of these."""
    many = isinstance(column.dtype, pl.List | pl.Array)
    text = pl.List(pl.String) if many else pl.String()
    try:
        return column.cast(text), np.zeros(len(column), bool)
    except pl.exceptions.ComputeError:
        values: list[Any] = []
        bad = np.zeros(len(column), bool)
        for at, value in enumerate(column.to_list()):
            given = value if many or value is None else [value]
            try:
                decoded = given and [None if v is None else v.decode() for v in given]
                values.append(decoded if many or decoded is None else decoded[0])
            except UnicodeDecodeError:
                values.append(None)
                bad[at] = True
        return pl.Series(column.name, values, dtype=text), bad


def _printable(column: pl.Series) -> pl.Series:
    """Days and times, moved to the year 1 or 9999 where polars could not print them."""
    kind = _inner(column.dtype)
    per_day = 1 if kind == pl.Date else _PER_DAY.get(getattr(kind, "time_unit", ""))
    if per_day is None:  # none, or of nanoseconds, which end in 2262
        return column

    def moved(values: pl.Expr) -> pl.Expr:
        return values.to_physical().clip(_FIRST * per_day, _LAST * per_day).cast(kind)

    if column.dtype == kind:
        return column.to_frame().select(moved(pl.all())).to_series()
    return column.cast(pl.List(kind)).list.eval(moved(pl.element()))


def _rows(frame: pl.DataFrame, count: int) -> pl.Series:
    """What rejects show: the values, since Parquet has no lines."""
    if not frame.width:
        return pl.Series("text", [""] * count, dtype=pl.String)
    texts = [as_text(_short(column)).alias(column.name).fill_null("") for column in frame]
    return pl.DataFrame(texts).select(pl.concat_str(pl.all(), separator=" | ")).to_series()


def _short(column: pl.Series) -> pl.Series:
    """A column; of vectors only the first numbers, because whole ones cost more than reading."""
    if not isinstance(column.dtype, pl.List | pl.Array) or not column.dtype.inner.is_float():
        return column
    return column.cast(pl.List(column.dtype.inner)).list.head(_SHOWN)
