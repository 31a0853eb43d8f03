"""Tables of examples as raw inputs of an exported signature, as a client would send them."""

from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.model.data.encoding import vectors

Raw = dict[str, np.ndarray]


class JsonArray(TypedDict):
    """An array in a golden request."""

    dtype: str
    """NumPy's name of the type, or "string"."""
    shape: list[int]
    values: list[Any]
    """In row-major order; text as str."""


def raw_values(contract: Contract, table: pa.Table, names: Iterable[str]) -> Raw:
    """Raw inputs of these features, N rows each.

    Args:
        contract: names, kinds and missing rules.
        table: N rows with the features as columns.
        names: features to take; none of them a position.

    Returns:
        Arrays, named as in `frozen.encoding.raw_inputs`; text as objects.
    """
    raw: Raw = {}
    for name in names:
        feature = contract.features[name]
        column = table[name].combine_chunks()
        if isinstance(feature, IdListFeature):
            raw |= _lists(name, feature, column)
            continue
        if isinstance(feature, NumberFeature):
            column = column.cast(pa.float32())
            column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, pa.float32()))
            raw[name] = np.asarray(column.fill_null(0.0))
        elif isinstance(feature, VectorFeature):
            raw[name], present = vectors(name, feature, column)
            if feature.missing != "error":
                raw[name + PRESENT] = present
            continue
        elif isinstance(feature, IdFeature | TextFeature):
            raw[name] = _ids(feature, column)
        if feature.missing != "error":
            raw[name + PRESENT] = np.asarray(column.is_valid())
    return raw


def feature_of(name: str) -> str:
    """The feature that an input of a signature belongs to."""
    return name.removesuffix(PRESENT).removesuffix(LENGTH)


def as_json(arrays: Raw) -> dict[str, JsonArray]:
    """Arrays as JSON, in the format of a golden request."""
    return {
        name: {
            "dtype": "string" if values.dtype == object else values.dtype.name,
            "shape": list(values.shape),
            "values": [v.decode() if isinstance(v, bytes) else v for v in values.ravel().tolist()],
        }
        for name, values in arrays.items()
    }


def take(raw: Raw, rows: np.ndarray | slice) -> Raw:
    """Some rows of every input."""
    return {name: values[rows] for name, values in raw.items()}


def _ids(feature: IdFeature | IdListFeature | TextFeature, column: pa.Array) -> np.ndarray:
    if feature.dtype == "int":
        return np.asarray(column.cast(pa.int64()).fill_null(0))
    return np.array(column.cast(pa.string()).fill_null("").to_pylist(), object)


def _lists(name: str, feature: IdListFeature, column: pa.Array) -> Raw:
    lengths = np.asarray(pc.list_value_length(column).fill_null(0)).astype(np.int64)
    values = _ids(feature, column.flatten())
    padded = np.full(
        (len(column), int(lengths.max(initial=0))),
        "" if feature.dtype == "string" else 0,
        values.dtype,
    )
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return {name: padded, name + LENGTH: lengths}
