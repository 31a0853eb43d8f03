"""TensorFlow's dtypes: their numbers, their names, and NumPy's equivalents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

STRING = 7

_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    STRING: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
}
"""By the numbers of DataType in TensorFlow's types.proto.  bfloat16, resource and variant have a
name for messages, and no NumPy equivalent."""

NUMBERS = {name: number for number, name in _NAMES.items()}

NUMPY = {
    number: np.dtype(object if name == "string" else name)
    for number, name in _NAMES.items()
    if name not in {"bfloat16", "resource", "variant"}
}

_OF_NUMPY = {dtype: number for number, dtype in NUMPY.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Dtype and shape of a signature's input or output."""

    dtype: str
    """TensorFlow's name: float32, int64, string and so on."""
    shape: tuple[int | None, ...] | None
    """None where the rank is unknown; a None dimension takes any size."""

    @classmethod
    def of(cls, info: Any) -> "TensorSpec":
        """Dtype and shape of a TensorInfo."""
        shape = None
        if not info.tensor_shape.unknown_rank:
            shape = tuple(None if d.size < 0 else int(d.size) for d in info.tensor_shape.dim)
        return cls(name_of(info.dtype), shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor may have this shape."""
        if any(size < 0 for size in shape):
            return False
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(w is None or size == w for size, w in zip(shape, self.shape, strict=True))
        )


def describe(shape: tuple[int | None, ...] | None) -> str:
    """A shape as text; ? is any size."""
    if shape is None:
        return "of any rank"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def name_of(number: int) -> str:
    """TensorFlow's name of a dtype."""
    return _NAMES.get(number, f"number {number}, which is not a dtype")


def number_of(dtype: np.dtype) -> int | None:
    """The number for an array's dtype; texts of all kinds are strings; None: there is none."""
    return STRING if dtype.kind in "SU" else _OF_NUMPY.get(dtype)
