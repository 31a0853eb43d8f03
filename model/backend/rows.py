"""Some rows of a variable: gathered, written and summed, without a pass over the whole variable.

`keras.ops.take` was considered: on TensorFlow it reads the whole variable first.  After a scatter
that read is a copy, which costs as much as the table is long.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

Tensor = Any

_CHUNK = 1 << 18  # rows that are copied at once
_SMALL = 1 << 24  # bytes of a variable that JAX may copy for a write


class RowGradient(NamedTuple):
    """The gradient of a table (N, d), on the rows of a batch only.

    Attributes:
        rows: (U,) int32, each row once.  On JAX, where shapes are static, unused places hold N, one
            past the table's end.  None: all N rows in their order.
        values: (U, d); 0 in unused places, or (N, d).
        taken: (N, 1) bool, which rows the batch has, where `rows` is None; else None.
    """

    rows: Tensor | None
    values: Tensor
    taken: Tensor | None = None


def gather(variable: Any, rows: Tensor) -> Tensor:
    """Rows of a variable (N, d): the shape of `rows`, then d."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(variable.value, rows)
    import jax.numpy as jnp

    return jnp.take(variable.value, rows, axis=0)


class Taps:
    """Lets JAX differentiate with respect to a batch's rows instead of a whole table.

    Within `with taps:`, `gather_batch` adds zeros to the rows that it reads.  The gradient of these
    zeros is that of the rows.

    Args:
        zeros: (B, K, d) by table, where a batch reads K rows for each of its B examples.
    """

    active: ClassVar["Taps | None"] = None

    def __init__(self, zeros: Sequence[tuple[Any, Tensor]]) -> None:
        self.zeros = {id(variable): value for variable, value in zeros}
        self.rows: dict[int, Tensor] = {}
        """The rows (B, K) that were read, by the id of the table's variable."""

    def __enter__(self) -> "Taps":
        Taps.active = self
        return self

    def __exit__(self, *_: object) -> None:
        Taps.active = None


def gather_batch(variable: Any, rows: Tensor) -> Tensor:
    """`gather` of all rows (B, K) that a batch reads of a table: (B, K, d)."""
    found, taps = gather(variable, rows), Taps.active
    if taps is None or id(variable) not in taps.zeros:
        return found
    taps.rows[id(variable)] = rows
    return found + taps.zeros[id(variable)]


def set_rows(variable: Any, rows: Tensor, values: Tensor) -> None:
    """Write rows (U,), each at most once; rows past the end of the variable are left out on JAX."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variable.value.scatter_update(tf.IndexedSlices(values, rows))
        return
    variable.assign(variable.value.at[rows].set(values, mode="drop"))


def subtract_rows(variable: Any, rows: Tensor, values: Tensor) -> None:
    """Subtract from rows (U,), each at most once; see `set_rows`."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variable.value.scatter_sub(tf.IndexedSlices(values, rows))
        return
    variable.assign(variable.value.at[rows].add(-values, mode="drop"))


def merge(rows: Tensor, values: Tensor, size: int) -> RowGradient:
    """Sum the gradients of rows that occur several times.

    Args:
        rows: (R,) in [0, size).
        values: (R, d).
        size: N, rows of the table.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        distinct, place = tf.unique(rows)
        return RowGradient(distinct, tf.math.unsorted_segment_sum(values, place, tf.size(distinct)))
    import jax
    import jax.numpy as jnp

    count = rows.shape[0]
    if _is_small(size, count):
        taken = jnp.zeros((size, 1), bool).at[rows].set(True)
        return RowGradient(None, jax.ops.segment_sum(values, rows, size), taken)
    distinct, place = jnp.unique(rows, size=count, fill_value=size, return_inverse=True)
    return RowGradient(distinct, jax.ops.segment_sum(values, place, count))


def _is_small(size: int, count: int) -> bool:
    """Whether JAX passes over a table's N rows rather than look for the distinct of R.

    It finds them by sorting: with 102,400 look-ups in 100,000 rows a step takes 115 ms of CPU that
    way, and 81 by a pass over all rows.
    """
    return size <= count


def write_part(variable: Any, first: int, values: Any) -> None:
    """Set consecutive rows from `first` on, between two steps; takes no memory for the others.

    On JAX a large variable's memory is used again: code that still holds its old array cannot read
    it any more.
    """
    if keras.backend.backend() == "tensorflow":
        set_rows(variable, np.arange(first, first + len(values), dtype=np.int32), values)
        return
    whole = variable.value
    in_place = whole.size * whole.dtype.itemsize > _SMALL  # compiled for each shape
    variable.assign(_writer(in_place)(whole, values, first))


@cache
def _writer(in_place: bool) -> Any:
    """A function of an array, rows and the place of the first one: the array with these rows."""
    import jax

    def write(whole: Any, values: Any, first: Any) -> Any:
        return jax.lax.dynamic_update_slice(whole, values, (first, 0))

    return jax.jit(write, donate_argnums=0) if in_place else write


class VariablePart:
    """Consecutive rows of a variable (N, d), read and written like a variable of their own.

    Args:
        variable: to read and write.
        first: its first row that belongs to the part.
        rows: number of rows.
    """

    def __init__(self, variable: keras.Variable, first: int, rows: int) -> None:
        self.variable, self.first = variable, first
        self.shape = (rows, variable.shape[1])
        self.dtype = variable.dtype

    @property
    def value(self) -> Tensor:
        """The rows as a tensor."""
        return gather(self.variable, np.arange(self.first, self.first + self.shape[0]))

    def numpy(self) -> np.ndarray:
        """A copy of the rows; beside it, it takes memory for a few of them only."""
        found = np.empty(self.shape, self.dtype)
        for start, rows in chunks(self.first, self.shape[0]):
            found[start : start + len(rows)] = keras.ops.convert_to_numpy(
                gather(self.variable, rows)
            )
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def assign(self, values: Any) -> None:
        """Set the rows.

        Raises:
            ValueError: the values have another shape.
        """
        values = np.asarray(values, self.dtype)
        if values.shape != self.shape:
            raise ValueError(f"expected shape {self.shape}, received {values.shape}")
        for start, rows in chunks(self.first, self.shape[0]):
            write_part(self.variable, int(rows[0]), values[start : start + len(rows)])


def chunks(first: int, count: int) -> Sequence[tuple[int, np.ndarray]]:
    """Row numbers from `first` in chunks: (rows in the chunks before, int32 row numbers)."""
    return [
        (start, np.arange(first + start, first + min(start + _CHUNK, count), dtype=np.int32))
        for start in range(0, count, _CHUNK)
    ]
