"""NumPy arrays to TF_Tensors and back.

Values are copied once each way: TensorFlow wants its memory aligned to 64 bytes, which NumPy's is
not, and would copy it itself.  The tensors of the inputs are kept from run to run: a new one for
each input would cost three times as much as copying the values of 100 rows.

A run of the model leaves no Python in the processor's caches, so each line of Python that follows
takes several times as long as in a loop of its own.  Hence what can be known before a run is made
before it, and loops over inputs are NumPy's or C's.
"""

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, repeat
from operator import attrgetter, setitem
from typing import Any

import numpy as np

from multigate.runtime import strings
from multigate.runtime.dtypes import NUMPY, STRING, TensorSpec, describe, number_of
from multigate.runtime.errors import (
    ModelRuntimeError,
    OutOfMemoryError,
    RefusedInputError,
)
from multigate.runtime.library import Library

MAX_BYTES = 1 << 32
"""Of one tensor.  TensorFlow ends the process if it cannot allocate what a tensor asks for."""
_KEPT_BYTES = 1 << 16
"""Largest tensor that is kept for the next run."""
_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_ALL = repeat(...)
_SET: Callable[[Any, Any, Any], None] = setitem
_NOTHING = np.empty(0, np.uint8)

Shapes = tuple[tuple[int, ...], ...]


def shapes_of(arrays: Sequence[np.ndarray]) -> Shapes:
    """The shape of each array."""
    return tuple(map(_SHAPE, arrays))


class Inputs:
    """Tensors for the inputs of one run at a time, filled anew for each run.

    Attributes:
        pointers: array of TF_Tensor*, in the order of the inputs.
        shapes: of the tensors; None before the first run, and after some were let go.
    """

    def __init__(self, library: Library, infos: Mapping[str, Any]) -> None:
        """Make inputs without tensors.

        Args:
            library: TensorFlow's.
            infos: the signature's TensorInfos, by name.

        Raises:
            ModelRuntimeError: NumPy has no such dtype.
        """
        self._tensors = [
            _InputTensor(library, name, TensorSpec.of(info), info.dtype)
            for name, info in infos.items()
        ]
        self.pointers = (ctypes.c_void_p * len(self._tensors))()
        self.shapes: Shapes | None = None
        self._dtypes = [tensor.dtype for tensor in self._tensors]
        self._are_texts = [tensor.is_text for tensor in self._tensors]
        self._are_numbers = [not tensor.is_text for tensor in self._tensors]
        self._numbers: list[np.ndarray] = []
        """Values of the tensors of numbers."""
        self._words: list[np.ndarray] = []
        """Values of the tensors of texts, (N, 3) each."""
        self._parts: list[slice] = []
        """Where the texts of each of these are among all texts of a run."""
        self._large: list[_InputTensor] = []
        """Those that are not kept."""
        self._texts = b""

    def __del__(self) -> None:
        """Free the tensors."""
        for tensor in self._tensors:
            tensor.free()

    def fill(self, arrays: Sequence[np.ndarray], shapes: Shapes) -> None:
        """Copy the values of one array for each input; the tensors take their shapes.

        The texts of the run before are freed: outputs computed from them must have been copied.

        Args:
            arrays: in the order of the inputs.
            shapes: theirs.

        Raises:
            RefusedInputError: another dtype or shape than the signature's; an object is not a text.
            OutOfMemoryError: a tensor is too large.
        """
        if list(map(_DTYPE, arrays)) != self._dtypes:
            for tensor, array in zip(self._tensors, arrays, strict=True):
                tensor.check_dtype(array.dtype)
        if shapes != self.shapes:
            self._resize(shapes)
        deque(map(_SET, self._numbers, _ALL, compress(arrays, self._are_numbers)), 0)
        if self._words:
            texts: list[Any] = []
            for array in compress(arrays, self._are_texts):
                texts += (array if array.ndim == 1 else array.ravel()).tolist()
            self._fill_texts(texts)

    def let_go(self) -> None:
        """Free what would hold much memory: large tensors, and texts if they are many or large.

        The others stay: making some sixty anew costs as much as running the model for one row.
        """
        if not self._large and len(self._texts) <= _KEPT_BYTES:
            return
        for tensor in self._large:
            tensor.free()
        self.shapes = None
        self._numbers, self._words, self._large, self._texts = [], [], [], b""

    def _resize(self, shapes: Shapes) -> None:
        """Give the tensors their shapes."""
        self.shapes = None  # if it fails
        for place, (tensor, shape) in enumerate(zip(self._tensors, shapes, strict=True)):
            if shape != tensor.shape:
                tensor.resize(shape)
                self.pointers[place] = tensor.pointer
        self._numbers = [tensor.values for tensor in compress(self._tensors, self._are_numbers)]
        self._words = [tensor.values for tensor in compress(self._tensors, self._are_texts)]
        ends = np.cumsum([0, *map(len, self._words)]).tolist()
        self._parts = list(map(slice, ends, ends[1:]))
        self._large = [tensor for tensor in self._tensors if tensor.memory.size > _KEPT_BYTES]
        self.shapes = shapes

    def _fill_texts(self, texts: list[Any]) -> None:
        """Write the texts of all inputs, each in row-major order."""
        try:
            self._texts, words = strings.views(texts)
        except TypeError:  # some are not bytes
            tensors = compress(self._tensors, self._are_texts)
            encoded = [
                tensor.encoded(text)
                for tensor, part in zip(tensors, self._parts, strict=True)
                for text in texts[part]
            ]
            self._texts, words = strings.views(encoded)
        deque(map(_SET, self._words, _ALL, map(words.__getitem__, self._parts)), 0)


class _InputTensor:
    """The tensor of one input.

    Attributes:
        pointer: TF_Tensor; None before the first run.
        dtype: of its values in NumPy.
        is_text: whether they are texts.
        shape: of the tensor; None before the first run.
        memory: the tensor's bytes.
        values: the same as values of its shape; of texts as (N, 3) words.
    """

    def __init__(self, library: Library, name: str, spec: TensorSpec, number: int) -> None:
        if number not in NUMPY:
            raise ModelRuntimeError(
                f"input {name!r}: expected a dtype that NumPy has, received {spec.dtype}"
            )
        self.pointer: int | None = None
        self.dtype = NUMPY[number]
        self.is_text = number == STRING
        self.shape: tuple[int, ...] | None = None
        self.memory: np.ndarray = _NOTHING
        self.values: np.ndarray = _NOTHING
        self._library = library
        self._name = name
        self._spec = spec
        self._number = number

    def check_dtype(self, dtype: np.dtype) -> None:
        """Refuse an array of another dtype; texts may be of any kind."""
        if number_of(dtype) != self._number:
            raise RefusedInputError(
                f"input {self._name!r}: expected dtype {self._spec.dtype}, received {dtype}"
            )

    def free(self) -> None:
        """Free the tensor."""
        if self.pointer:
            self._library.TF_DeleteTensor(self.pointer)
        self.pointer, self.shape = None, None
        self.memory = self.values = _NOTHING

    def resize(self, shape: tuple[int, ...]) -> None:
        """Give the tensor a shape; make a new one where its memory is too small."""
        if not self._spec.fits(shape):
            raise RefusedInputError(
                f"input {self._name!r}: expected shape {describe(self._spec.shape)}, received "
                f"{list(shape)}"
            )
        size = math.prod(shape) * (strings.BYTES if self.is_text else self.dtype.itemsize)
        if size > MAX_BYTES:
            raise OutOfMemoryError(
                f"input {self._name!r}: expected a tensor of at most {MAX_BYTES} bytes, received "
                f"{size}: shape {list(shape)} of {self._spec.dtype}; send fewer rows at a time"
            )
        dims = (ctypes.c_int64 * len(shape))(*shape)
        if self.pointer and size <= self.memory.size:
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
            self.memory = np.frombuffer(memory, np.uint8)
            if self.is_text:
                # TensorFlow frees every text of the tensor in the end: there must be some.
                self.memory[:] = 0
        if self.is_text:
            self.values = self.memory[:size].view(np.uint64).reshape(-1, 3)
        else:
            self.values = self.memory[:size].view(self.dtype).reshape(shape)
        self.shape = shape

    def encoded(self, text: Any) -> bytes:
        """A text as bytes.

        Raises:
            RefusedInputError: it is no text.
        """
        if isinstance(text, bytes):
            return text
        if isinstance(text, str):
            return text.encode()
        raise RefusedInputError(
            f"input {self._name!r}: expected texts, received {type(text).__name__}"
        )


class Outputs:
    """Reads the outputs of a signature's runs."""

    def __init__(
        self, library: Library, specs: Sequence[TensorSpec], numbers: Sequence[int]
    ) -> None:
        """Make a reader.

        Args:
            library: TensorFlow's.
            specs: of the outputs, in their order.
            numbers: their dtypes in the graph.

        Raises:
            ModelRuntimeError: NumPy has no such dtype.
        """
        self._library = library
        self._kinds: list[tuple[np.dtype, bool]] = []
        """Of each output, its dtype, and whether it is a row of numbers, as nearly all are."""
        for spec, number in zip(specs, numbers, strict=True):
            if number not in NUMPY:
                raise ModelRuntimeError(
                    f"expected an output that NumPy can hold, received dtype {number}"
                )
            is_row = spec.shape is not None and len(spec.shape) == 1 and number != STRING
            self._kinds.append((NUMPY[number], is_row))

    def arrays(self, tensors: Iterable[int]) -> list[np.ndarray]:
        """Copies of the values of TF_Tensors, which cannot be written to; texts as bytes."""
        library = self._library
        found = []
        for tensor, (dtype, is_row) in zip(tensors, self._kinds, strict=True):
            count = library.TF_TensorElementCount(tensor)  # the memory may be larger
            if is_row and count:
                data = ctypes.string_at(library.TF_TensorData(tensor), count * dtype.itemsize)
                found.append(np.frombuffer(data, dtype))
            else:
                found.append(_to_array(library, tensor, dtype, count))
        return found


def _to_array(library: Library, tensor: int, dtype: np.dtype, count: int) -> np.ndarray:
    """A copy of a tensor of any shape."""
    shape = [library.TF_Dim(tensor, axis) for axis in range(library.TF_NumDims(tensor))]
    if not count:  # there may be no memory
        return np.empty(shape, dtype)
    address = library.TF_TensorData(tensor)
    if dtype.kind == "O":
        values = np.empty(count, object)
        values[:] = strings.read(address, count)
    else:
        values = np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype)
    return values.reshape(shape)
