"""TensorProto to NumPy and back; does not trust what a client sent.

`tf.make_ndarray` was considered: it believes any shape, and repeats one value to fill it.
"""

import math
from typing import Any

import numpy as np

from multigate.runtime.dtypes import (
    NUMBERS,
    NUMPY,
    TensorSpec,
    describe,
    name_of,
    number_of,
)
from multigate.runtime.tensorflow_messages import tensor_pb2
from multigate.serving.core.status import InvalidRequestError

MOST_ELEMENTS, MOST_REPEATED, MOST_REPEATED_BYTES = 1 << 24, 1 << 20, 1 << 24
"""A proto may claim any shape and hold one value.  64 MiB of floats is the most that a real message
carries.  A repeated value costs its sender nothing, but costs the server memory and time: so many
values, and bytes of texts, at most."""

_FIELDS = {
    "string": "string_val",
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "int32": "int_val",
    "bool": "bool_val",
}


def decode(name: str, tensor: Any, spec: TensorSpec) -> np.ndarray:
    """Read a TensorProto as an array of a signature's input.

    As in TensorFlow, a tensor with fewer values than its shape repeats the last one.

    Args:
        name: of the input, for messages.
        tensor: the proto.
        spec: what the signature takes.

    Raises:
        InvalidRequestError: wrong dtype, wrong shape, or values that do not fill the shape.
    """
    dtype = name_of(tensor.dtype)
    if dtype != spec.dtype:
        raise InvalidRequestError(f"input {name!r}: expected dtype {spec.dtype}, received {dtype}")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_shape.unknown_rank or not spec.fits(shape):
        received = "unknown rank" if tensor.tensor_shape.unknown_rank else list(shape)
        raise InvalidRequestError(
            f"input {name!r}: expected shape {describe(spec.shape)}, received {received}"
        )
    elements = math.prod(shape)
    if max(elements, *shape, 0) > MOST_ELEMENTS:  # one dimension of 0 hides the others
        raise InvalidRequestError(
            f"input {name!r}: expected at most {MOST_ELEMENTS} values, received shape {list(shape)}"
        )
    if tensor.tensor_content:
        values = _from_content(name, tensor.tensor_content, dtype, elements)
    else:
        values = _from_field(name, tensor, dtype, elements)
    return values.reshape(shape)


def encode(values: np.ndarray) -> tensor_pb2.TensorProto:
    """A TensorProto with its values in the typed field, which clients in all languages read."""
    number = number_of(values.dtype)
    assert number is not None, values.dtype  # it was an output of the model
    tensor, field = tensor_pb2.TensorProto(dtype=number), _FIELDS.get(name_of(number))
    for size in values.shape:
        tensor.tensor_shape.dim.add(size=size)
    if field is not None:
        getattr(tensor, field).extend(values.ravel().tolist())
    else:
        tensor.tensor_content = values.tobytes()
    return tensor


def _from_content(name: str, content: bytes, dtype: str, elements: int) -> np.ndarray:
    if dtype == "string":
        raise InvalidRequestError(
            f"input {name!r}: expected texts in string_val, not tensor_content"
        )
    kind = NUMPY[NUMBERS[dtype]]
    if len(content) != elements * kind.itemsize:
        raise InvalidRequestError(
            f"input {name!r}: expected {elements * kind.itemsize} bytes of tensor_content, "
            f"received {len(content)}"
        )
    if dtype == "bool":  # a byte other than 0 and 1 is no boolean
        return np.frombuffer(content, np.uint8) != 0
    return np.frombuffer(content, kind)


def _from_field(name: str, tensor: Any, dtype: str, elements: int) -> np.ndarray:
    if dtype not in _FIELDS:
        raise InvalidRequestError(f"input {name!r}: dtype {dtype} needs tensor_content")
    field = getattr(tensor, _FIELDS[dtype])
    if len(field) > elements or (not field and elements):
        raise InvalidRequestError(
            f"input {name!r}: expected {elements} values in {_FIELDS[dtype]}, received {len(field)}"
        )
    values = np.array(field, dtype=object if dtype == "string" else dtype)
    if len(values) < elements:
        if elements > MOST_REPEATED:
            raise InvalidRequestError(
                f"input {name!r}: expected each of {elements} values, received {len(values)}; "
                f"up to {MOST_REPEATED} may be left to repeat the last one"
            )
        if dtype == "string" and (elements - len(values)) * len(values[-1]) > MOST_REPEATED_BYTES:
            raise InvalidRequestError(
                f"input {name!r}: expected each of {elements} texts, received {len(values)}; the "
                f"last one, of {len(values[-1])} bytes, may stand for {MOST_REPEATED_BYTES} bytes"
            )
        values = np.concatenate([values, np.repeat(values[-1:], elements - len(values))])
    return values
