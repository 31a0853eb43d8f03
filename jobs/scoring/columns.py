"""Columns of rows as the features of a contract, in the types that its examples have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.contract import (
    Contract,
    IdListFeature,
    NumberFeature,
    VectorFeature,
)
from multigate.configs.errors import DataError, one_line
from multigate.configs.sections.nearest import did_you_mean, listed

Columns: TypeAlias = "Mapping[str, Any] | pa.Table"
"""Columns by name, N values each: NumPy arrays, lists or Arrow arrays."""


def features_of(contract: Contract, columns: Columns) -> pa.Table:
    """The features among some columns, N rows; None, null and NaN become null.

    Texts are parsed where a feature is a number, and divided by its `separator` where it is a list.
    Lists lose null and empty entries, but a history whose entries are described beside it, which
    then must have none; an empty vector, and one with a null or NaN, is null.

    Raises:
        DataError: no feature is among them, a value does not fit, or the columns differ in length.
    """
    names = list(columns.column_names if isinstance(columns, pa.Table) else columns)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"column {twice!r}: stands {names.count(twice)} times; name each once")

    def described(name: str) -> bool:
        return any(other in names for other in contract.entries_of(name).values())

    found = {
        name: _typed(name, feature, columns[name], described(name))
        for name, feature in contract.of_side("user", "context", "item")
        if name in names
    }
    if contract.item not in found:
        raise DataError(
            f"column {contract.item!r}: expected the item's id; "
            f"{did_you_mean(contract.item, names)}received columns {listed(names) or 'none'}"
        )
    sizes = {len(column) for column in found.values()}
    if len(sizes) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in found.items())
        raise DataError(f"columns: expected as many values in each, received {lengths}")
    return pa.table(found)


def same_user(contract: Contract, table: pa.Table) -> Iterator[pa.Table]:
    """Runs of rows with the same user and context.

    Args:
        contract: whose feature is of which side.
        table: what `features_of` returned.
    """
    shared = [name for name in table.column_names if contract.features[name].side != "item"]
    rows = table.select(shared).to_pylist()
    start = 0
    for row in range(1, table.num_rows + 1):
        if row == table.num_rows or rows[row] != rows[start]:
            yield table.slice(start, row - start)
            start = row


def rows_lacking(table: pa.Table, required: Sequence[str]) -> dict[int, list[str]]:
    """The rows that lack required features, and which; empty text is missing, too."""
    lacking: dict[int, list[str]] = {}
    for name in required:
        absent = table[name].is_null()
        if pa.types.is_string(table[name].type):
            absent = pc.or_kleene(absent, pc.equal(table[name], ""))
        for row in np.flatnonzero(absent.to_numpy()).tolist():
            lacking.setdefault(row, []).append(name)
    return lacking


def as_bytes(texts: np.ndarray) -> np.ndarray:
    """Texts as UTF-8, which graphs take: objects of the same shape."""
    found = np.empty(texts.size, object)
    found[:] = [text.encode() for text in texts.ravel().tolist()]
    return found.reshape(texts.shape)


def arrow_type(feature: Any) -> pa.DataType:
    """The type of a feature's column."""
    if isinstance(feature, NumberFeature):
        return pa.float64()
    if isinstance(feature, VectorFeature):
        return pa.list_(pa.float32())
    one = pa.string() if feature.dtype == "string" else pa.int64()
    return pa.list_(one) if isinstance(feature, IdListFeature) else one


def _typed(name: str, feature: Any, values: Any, described: bool) -> pa.ChunkedArray:
    """A column in the feature's type.

    Args:
        name: of the feature.
        feature: of the contract.
        values: (N,) as they were given.
        described: whether its entries are described beside it, so that each keeps its place.
    """
    wanted = arrow_type(feature)
    is_list = isinstance(feature, IdListFeature | VectorFeature)
    drops = isinstance(feature, IdListFeature) and feature.entry is None and not described
    try:
        found = _array(values, wanted)
        if not pa.types.is_string(wanted) and _are_texts(found.type):
            found = found.cast(pa.string())
            found = pc.if_else(pc.equal(found, ""), pa.scalar(None, pa.string()), found)
            if is_list:
                found = pc.split_pattern(found, feature.separator)
                if drops:  # an empty part of a text is no integer
                    found = _per_chunk(found, _without_empty)
        found = found.cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = one_line(error)
        raise DataError(f"feature {name!r}: expected values of {wanted}: {reason}") from None
    if isinstance(feature, NumberFeature):
        # The model reads float32: a number beyond it is infinite there.
        _refuse_infinite(name, found.cast(pa.float32()))
        return pc.if_else(pc.is_nan(found), pa.scalar(None, wanted), found)
    if isinstance(feature, VectorFeature):
        return _per_chunk(found, lambda chunk: _whole_vectors(name, chunk))
    return _per_chunk(found, _without_empty) if drops else found


def _per_chunk(column: pa.ChunkedArray, change: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    return pa.chunked_array([change(chunk) for chunk in column.chunks], column.type)


def _refuse_infinite(name: str, values: pa.ChunkedArray | pa.Array) -> None:
    if pc.any(pc.is_inf(values)).as_py():
        raise DataError(
            f"feature {name!r}: expected finite numbers within float32, received infinity or a "
            "larger one"
        )


def _whole_vectors(name: str, column: pa.ListArray) -> pa.ListArray:
    """Vectors (N,), null where they are empty or a number is null or NaN."""
    values = column.flatten()
    _refuse_infinite(name, values)
    absent = pc.or_kleene(values.is_null(), pc.is_nan(values)).fill_null(True)
    broken = np.asarray(pc.list_value_length(column).fill_null(1)) == 0
    broken[_rows_of(column)[np.asarray(absent)]] = True
    if not broken.any():
        return column
    return pc.if_else(pa.array(broken), pa.scalar(None, column.type), column)


def _without_empty(column: pa.ListArray) -> pa.ListArray:
    """Lists (N,) without null entries and empty texts."""
    values = column.flatten()
    kept = values.is_valid()
    if pa.types.is_string(values.type):
        kept = pc.and_(kept, pc.not_equal(values, "").fill_null(False))
    if pc.all(kept, min_count=0).as_py():
        return column
    counts = np.bincount(_rows_of(column)[np.asarray(kept)], minlength=len(column))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), values.filter(kept), mask=column.is_null()
    ).cast(column.type)


def _rows_of(column: pa.ListArray) -> np.ndarray:
    """The row of each value of `column.flatten()`."""
    lengths = np.asarray(pc.list_value_length(column).fill_null(0))
    return np.repeat(np.arange(len(column)), lengths)


def _array(values: Any, wanted: pa.DataType) -> pa.ChunkedArray:
    """Values as an Arrow array; plain Python or NumPy values of the wanted type, or texts."""
    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if getattr(values, "ndim", 1) > 1:
        values = list(values)
    plain = isinstance(values, np.ndarray) and values.dtype.kind not in "OU"
    if not plain and any(isinstance(one, str) for one in values):
        wanted = pa.string()  # as a list, a text would be its characters
    return pa.chunked_array([pa.array(values, wanted, from_pandas=True)])


def _are_texts(kind: pa.DataType) -> bool:
    """Whether a type is one of texts: those of other writers are large, or of a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(
        one(kind) for one in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )
