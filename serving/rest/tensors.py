"""TensorFlow Serving's JSON of Predict: row format (`instances`) and columnar format (`inputs`).

Its documentation of the REST API says how tensors look in JSON; the code of its server is C++, so
this is a second reading of the same page.
"""

import base64
import binascii
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from multigate.runtime.dtypes import NUMBERS, NUMPY, TensorSpec, describe, name_of
from multigate.runtime.tensorflow_messages import predict_pb2, tensor_pb2
from multigate.serving.core.layout import DEFAULT
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.rest.documents import kind_of, read_object

Signatures = Mapping[str, Mapping[str, TensorSpec]]
"""The inputs of each signature of a version."""

_KEYS = {"signature_name", "instances", "inputs"}
_B64 = "b64"
_MOST_DIMENSIONS = 8
_BYTES = "_bytes"
"""Outputs whose names end so hold bytes, which JSON has in base64."""
_INTEGERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_TYPES: dict[str, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({int})),
    **dict.fromkeys(("float16", "float32", "float64"), frozenset({int, float})),
    "bool": frozenset({bool}),
    "string": frozenset({str, dict}),
}
_WORDS = {"bool": "true or false", "string": "a string"}


def read_predict(body: bytes, signatures: Signatures) -> tuple[Any, bool]:
    """The PredictRequest of a body, without its model, and whether it is in row format.

    Args:
        body: JSON.
        signatures: of the version that answers.

    Raises:
        InvalidRequestError: the body is not what the signature takes.
    """
    values = read_object(body)
    if unknown := sorted(values.keys() - _KEYS):
        raise InvalidRequestError(
            f"body: expected signature_name, and instances or inputs, received {unknown[0][:100]!r}"
        )
    name = values.get("signature_name", "")
    if not isinstance(name, str):
        raise InvalidRequestError(f"signature_name: expected a string, received {kind_of(name)}")
    rows = "instances" in values
    if rows == ("inputs" in values):
        raise InvalidRequestError(
            f"body: expected instances or inputs, received {'both' if rows else 'neither'}"
        )
    request = predict_pb2.PredictRequest()
    request.model_spec.signature_name = name
    specs = signatures.get(name or DEFAULT)
    if specs is None:
        return request, rows  # Predict itself says that there is no such signature
    columns = (
        _of_instances(values["instances"], specs) if rows else _of_inputs(values["inputs"], specs)
    )
    for column, value in columns.items():
        if column not in specs:
            raise InvalidRequestError(
                f"signature {name or DEFAULT!r}: input {column[:100]!r}: unknown; expected "
                f"{', '.join(specs)}"
            )
        request.inputs[column].CopyFrom(_tensor(column, value, specs[column]))
    return request, rows


def _of_instances(instances: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """Columns of values, of a list of rows."""
    if not isinstance(instances, list) or not instances:
        received = "an empty one" if instances == [] else kind_of(instances)
        raise InvalidRequestError(f"instances: expected a list of rows, received {received}")
    kinds = {_is_named(row) for row in instances}
    if kinds == {False}:
        if len(specs) != 1:
            raise InvalidRequestError(
                f"instances: expected an object in each row, with {', '.join(specs)}; received "
                f"{kind_of(instances[0])}"
            )
        return {next(iter(specs)): instances}
    if len(kinds) > 1:
        row = next(place for place, one in enumerate(instances) if not _is_named(one))
        raise InvalidRequestError(
            f"instances: expected an object in each row, received {kind_of(instances[row])} in "
            f"row {row}"
        )
    names = instances[0].keys()
    for place, one in enumerate(instances):
        if one.keys() != names:
            different = sorted(one.keys() ^ names)[0]
            raise InvalidRequestError(
                f"instances: row {place}: expected the inputs of row 0, and differs in "
                f"{different[:100]!r}"
            )
    return {name: [row[name] for row in instances] for name in names}


def _of_inputs(inputs: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """Columns as they are; a single input needs no name."""
    if _is_named(inputs):
        columns: dict[str, Any] = inputs
        return columns
    if len(specs) != 1:
        raise InvalidRequestError(
            f"inputs: expected an object with {', '.join(specs)}; received {kind_of(inputs)}"
        )
    return {next(iter(specs)): inputs}


def _is_named(value: Any) -> bool:
    """Whether a value is an object of inputs by name, and not a text in base64."""
    return isinstance(value, dict) and not (value.keys() == {_B64} and isinstance(value[_B64], str))


def _tensor(name: str, value: Any, spec: TensorSpec) -> Any:
    """A TensorProto of nested lists.

    Raises:
        InvalidRequestError: ragged lists, a value of another type, or one out of range.
    """
    shape, flat = _flat(name, value)
    types = _TYPES.get(spec.dtype)
    if types is None:
        raise InvalidRequestError(f"input {name!r}: dtype {spec.dtype} has no form in JSON")
    if not types.issuperset(map(type, flat)):
        wrong = next(one for one in flat if type(one) not in types)
        expected = _WORDS.get(spec.dtype, "a whole number" if int in types else "a number")
        if spec.dtype in _INTEGERS and isinstance(wrong, float):
            received = f"{wrong}"
        else:
            received = kind_of(wrong)
        if types == {int, float}:
            expected = "a number"
        raise InvalidRequestError(
            f"input {name!r}: expected {expected} ({spec.dtype}), received {received}"
        )
    if not spec.fits(shape):
        raise InvalidRequestError(
            f"input {name!r}: expected shape {describe(spec.shape)}, received {list(shape)}"
        )
    number = NUMBERS[spec.dtype]
    tensor = tensor_pb2.TensorProto(dtype=number)
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    if spec.dtype == "string":
        tensor.string_val.extend([_bytes(name, one) for one in flat])
    else:
        tensor.tensor_content = _numbers(name, flat, NUMPY[number]).tobytes()
    return tensor


def _numbers(name: str, flat: list[Any], dtype: np.dtype) -> np.ndarray:
    """Values (N,) of a dtype that holds them.

    Raises:
        InvalidRequestError: a value is out of the dtype's range.
    """
    try:
        if dtype.kind != "f":
            return np.array(flat, dtype)
        wide = np.array(flat, np.float64)
        with np.errstate(over="ignore"):
            values = wide.astype(dtype)
        if not (np.isinf(values) & np.isfinite(wide)).any():
            return values
    except OverflowError:
        pass
    raise InvalidRequestError(f"input {name!r}: expected numbers in the range of {dtype}")


def _flat(name: str, value: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Shape and values of nested lists."""
    shape: list[int] = []
    flat = [value]
    while flat and isinstance(flat[0], list):
        if len(shape) == _MOST_DIMENSIONS:
            raise InvalidRequestError(
                f"input {name!r}: expected lists nested at most {_MOST_DIMENSIONS} deep"
            )
        sizes = {len(one) if isinstance(one, list) else -1 for one in flat}
        if len(sizes) > 1:
            raise InvalidRequestError(
                f"input {name!r}: expected lists of one length at each level; fill shorter ones up"
            )
        shape.append(sizes.pop())
        flat = list(chain.from_iterable(flat))
    if any(isinstance(one, list) for one in flat):
        raise InvalidRequestError(
            f"input {name!r}: expected values or lists at one level, not both"
        )
    return tuple(shape), flat


def _bytes(name: str, value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if not _is_named(value):
            return base64.b64decode(value[_B64], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        pass
    raise InvalidRequestError(f'input {name!r}: expected a text, or its base64 as {{"b64": "..."}}')


def predict_answer(response: Any, rows: bool) -> dict[str, Any]:
    """The JSON of a PredictResponse.

    Args:
        response: the message.
        rows: whether the request was in row format.

    Raises:
        InvalidRequestError: row format, and the outputs have different numbers of rows.
    """
    outputs = {name: _values(name, tensor) for name, tensor in sorted(response.outputs.items())}
    if not rows:
        found: Any = outputs
        return {"outputs": found if len(outputs) > 1 else next(iter(outputs.values()))}
    counts = {
        name: tensor.tensor_shape.dim[0].size if tensor.tensor_shape.dim else None
        for name, tensor in response.outputs.items()
    }
    if None in counts.values() or len(set(counts.values())) > 1:
        raise InvalidRequestError(
            "instances: the signature's outputs have different numbers of rows; send inputs, "
            "the columnar format"
        )
    if len(outputs) == 1:
        return {"predictions": next(iter(outputs.values()))}
    names = list(outputs)
    each = zip(*outputs.values(), strict=True)
    return {"predictions": [dict(zip(names, row, strict=True)) for row in each]}


def _values(name: str, tensor: Any) -> Any:
    """A TensorProto as `serving.core.tensors.encode` writes it, as nested lists.

    A float is written with the digits of the double that equals it, so that it reads back bit by
    bit as either.
    """
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    dtype = name_of(tensor.dtype)
    field = {"float32": "float_val", "float64": "double_val", "int32": "int_val"}.get(
        dtype, f"{dtype}_val"
    )
    if dtype == "string":
        values = np.empty(len(tensor.string_val), object)
        values[:] = [_text(name, one) for one in tensor.string_val]
    elif tensor.tensor_content:
        values = np.frombuffer(tensor.tensor_content, NUMPY[tensor.dtype])
    else:
        values = np.array(getattr(tensor, field, ()), NUMPY[tensor.dtype])
    return values.reshape(shape).tolist()


def _text(name: str, value: bytes) -> str | dict[str, str]:
    if not name.endswith(_BYTES):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {_B64: base64.b64encode(value).decode()}
