"""TensorProto to NumPy and back; does not trust what a client sent.

`tf.make_ndarray` was considered: it believes any shape, and repeats one value to fill it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from multigate.serving.core.status import InvalidRequestError

MOST_ELEMENTS, MOST_REPEATED = 1 << 24, 1 << 20
"""A proto may claim any shape and hold one value.  64 MiB of floats is the most that a real message
carries.  A repeated value costs its sender nothing, but costs the server memory and time."""

_FIELDS = {
    "string": "string_val",
    "float32": "float_val",
    "float64": "double_val",
    "int64": "int64_val",
    "int32": "int_val",
    "bool": "bool_val",
}


@dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of a signature's input or output."""

    dtype: str
    """TensorFlow's name: float32, int64, string and so on."""
    shape: tuple[int | None, ...] | None
    """None where the rank is unknown; a None dimension takes any size."""


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
    dtype = _dtype_name(tensor.dtype)
    if dtype != spec.dtype:
        raise InvalidRequestError(f"input {name!r}: expected dtype {spec.dtype}, received {dtype}")
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_shape.unknown_rank or not _fits(shape, spec.shape):
        received = "unknown rank" if tensor.tensor_shape.unknown_rank else list(shape)
        raise InvalidRequestError(
            f"input {name!r}: expected shape {describe(spec.shape)}, received {received}"
        )
    elements = math.prod(shape)
    if elements > MOST_ELEMENTS:
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
    dtype = tf.dtypes.as_dtype(values.dtype)
    tensor = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for size in values.shape:
        tensor.tensor_shape.dim.add(size=size)
    if dtype.name in _FIELDS:
        getattr(tensor, _FIELDS[dtype.name]).extend(values.ravel().tolist())
    else:
        tensor.tensor_content = values.tobytes()
    return tensor


def describe(shape: tuple[int | None, ...] | None) -> str:
    """A shape as text; ? is any size."""
    if shape is None:
        return "of any rank"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _from_content(name: str, content: bytes, dtype: str, elements: int) -> np.ndarray:
    if dtype == "string":
        raise InvalidRequestError(
            f"input {name!r}: expected texts in string_val, not tensor_content"
        )
    kind = np.dtype(dtype)
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
        values = np.concatenate([values, np.repeat(values[-1:], elements - len(values))])
    return values


def _dtype_name(number: int) -> str:
    try:
        return str(tf.dtypes.as_dtype(number).name)
    except TypeError:
        return f"number {number}, which is not a dtype"


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if any(size < 0 for size in shape):
        return False
    if wanted is None:
        return True
    return len(shape) == len(wanted) and all(
        w is None or size == w for size, w in zip(shape, wanted, strict=True)
    )
