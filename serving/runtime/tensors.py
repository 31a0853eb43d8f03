"""NumPy arrays to TF_Tensors and back.

Values are copied once each way: TensorFlow wants its memory aligned to 64 bytes, which NumPy's is
not, and would copy it itself.  The tensors of the inputs are kept from run to run: a new one for
each input would cost three times as much as copying the values of 100 rows.
"""

import ctypes
from typing import Any

import numpy as np

from multigate.serving.runtime import strings
from multigate.serving.runtime.dtypes import NUMPY, STRING, TensorSpec, describe, number_of
from multigate.serving.runtime.errors import (
    ModelRuntimeError,
    OutOfMemoryError,
    RefusedInputError,
)
from multigate.serving.runtime.library import Library

MAX_BYTES = 1 << 32
"""Of one tensor.  TensorFlow ends the process if it cannot allocate what a tensor asks for."""
_KEPT_BYTES = 1 << 16
"""Largest tensor that is kept for the next run."""


class InputTensor:
    """The tensor of one input, filled anew for each run.

    Attributes:
        pointer: TF_Tensor; None before the first run.
    """

    def __init__(self, library: Library, name: str, spec: TensorSpec, number: int) -> None:
        """Make an input without tensor.

        Args:
            library: TensorFlow's.
            name: of the input, for messages.
            spec: what the signature takes.
            number: its dtype.

        Raises:
            ModelRuntimeError: NumPy has no such dtype.
        """
        if number not in NUMPY:
            raise ModelRuntimeError(
                f"input {name!r}: expected a dtype that NumPy has, received {spec.dtype}"
            )
        self.pointer: int | None = None
        self._library = library
        self._name = name
        self._spec = spec
        self._number = number
        self._dtype = NUMPY[number]
        self._is_text = number == STRING
        self._item_bytes = strings.BYTES if self._is_text else self._dtype.itemsize
        self._shape: tuple[int, ...] | None = None
        self._memory: np.ndarray = np.empty(0, np.uint8)
        """The tensor's bytes."""
        self._values: np.ndarray = self._memory
        """The same as values of its shape; of texts as (N, 3) words."""
        self._texts = b""

    def fill(self, array: np.ndarray) -> None:
        """Copy the values of an array; the tensor takes its shape.

        The texts of the array before are freed: outputs computed from them must have been copied.

        Raises:
            RefusedInputError: another dtype or shape than the signature's; an object is not a text.
            OutOfMemoryError: the tensor is too large.
        """
        if array.dtype is not self._dtype and number_of(array.dtype) != self._number:
            raise RefusedInputError(
                f"input {self._name!r}: expected dtype {self._spec.dtype}, received {array.dtype}"
            )
        if array.shape != self._shape:
            self._resize(array.shape, array.size * self._item_bytes)
        if self._is_text:
            self._fill_texts(array.ravel().tolist())
        else:
            self._values[...] = array

    def trim(self) -> None:
        """Free a large tensor, so that one large call does not hold memory for ever."""
        if self._memory.size > _KEPT_BYTES:
            self.free()

    def free(self) -> None:
        """Free the tensor."""
        if self.pointer:
            self._library.TF_DeleteTensor(self.pointer)
        self.pointer, self._shape, self._texts = None, None, b""
        self._memory = self._values = np.empty(0, np.uint8)

    def _resize(self, shape: tuple[int, ...], size: int) -> None:
        """Give the tensor a shape; make a new one where its memory is too small."""
        if not self._spec.fits(shape):
            raise RefusedInputError(
                f"input {self._name!r}: expected shape {describe(self._spec.shape)}, received "
                f"{list(shape)}"
            )
        if size > MAX_BYTES:
            raise OutOfMemoryError(
                f"input {self._name!r}: expected a tensor of at most {MAX_BYTES} bytes, received "
                f"{size}: shape {list(shape)} of {self._spec.dtype}; send fewer rows at a time"
            )
        dims = (ctypes.c_int64 * len(shape))(*shape)
        if self.pointer and size <= self._memory.size:
            self._library.TF_SetShape(self.pointer, dims, len(shape))
        else:
            self.free()
            # Powers of two: few tensors are replaced, and ctypes keeps a type for each size.
            room = 1 << max(size - 1, 63).bit_length()
            self.pointer = self._library.TF_AllocateTensor(self._number, dims, len(shape), room)
            address = self._library.TF_TensorData(self.pointer) if self.pointer else None
            if not address:
                self.free()
                raise OutOfMemoryError(
                    f"input {self._name!r}: {room} bytes cannot be allocated; send fewer rows"
                )
            memory = memoryview((ctypes.c_uint8 * room).from_address(address))
            self._memory = np.frombuffer(memory, np.uint8)
            if self._is_text:
                # TensorFlow frees every text of the tensor in the end: there must be some.
                self._memory[:] = 0
        if self._is_text:
            self._values = self._memory[:size].view(np.uint64).reshape(-1, 3)
        else:
            self._values = self._memory[:size].view(self._dtype).reshape(shape)
        self._shape = shape

    def _fill_texts(self, texts: list[Any]) -> None:
        """Write texts in row-major order.

        Raises:
            RefusedInputError: a value is not a text.
        """
        try:
            self._texts = strings.write(texts, self._values)
        except TypeError:  # some are not bytes
            encoded = [self._encoded(text) for text in texts]
            self._texts = strings.write(encoded, self._values)

    def _encoded(self, text: Any) -> bytes:
        if isinstance(text, bytes):
            return text
        if isinstance(text, str):
            return text.encode()
        raise RefusedInputError(
            f"input {self._name!r}: expected texts, received {type(text).__name__}"
        )


def to_array(library: Library, tensor: int) -> np.ndarray:
    """A copy of a TF_Tensor's values, which cannot be written to; texts as bytes.

    Raises:
        ModelRuntimeError: NumPy has no such dtype.
    """
    number = library.TF_TensorType(tensor)
    dtype = NUMPY.get(number)
    if dtype is None:
        raise ModelRuntimeError(f"expected an output that NumPy can hold, received dtype {number}")
    rank = library.TF_NumDims(tensor)
    count = library.TF_TensorElementCount(tensor)  # the memory may be larger
    if rank == 1 and count and number != STRING:  # nearly every output
        data = ctypes.string_at(library.TF_TensorData(tensor), count * dtype.itemsize)
        return np.frombuffer(data, dtype)
    shape = [library.TF_Dim(tensor, axis) for axis in range(rank)]
    if not count:  # there may be no memory
        return np.empty(shape, dtype)
    address = library.TF_TensorData(tensor)
    if number == STRING:
        values = np.empty(count, object)
        values[:] = strings.read(address, count)
    else:
        values = np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype)
    return values.reshape(shape)
