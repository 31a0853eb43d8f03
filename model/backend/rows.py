"""Some rows of a variable: gathered, written and summed, without a pass over the whole variable.

`keras.ops.take` was considered: on TensorFlow it reads the whole variable first.  After a scatter
that read is a copy, which costs as much as the table is long.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

Tensor = Any

_CHUNK = 1 << 18  # rows that are copied at once


class RowGradient(NamedTuple):
    """The gradient of a table, on the rows of a batch only.

    Attributes:
        rows: (U,) int32, each row once.  On JAX, where shapes are static, unused places hold the
            number of rows of the table, one past its end.
        values: (U, d); 0 in unused places.
    """

    rows: Tensor
    values: Tensor


def gather(variable: Any, rows: Tensor) -> Tensor:
    """Rows of a variable (N, d): the shape of `rows`, then d."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(variable.value, rows)
    import jax.numpy as jnp

    return jnp.take(variable.value, rows, axis=0)


class Taps:
    """Lets JAX differentiate with respect to a batch's rows, in the place of a whole table.

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

    count = min(rows.shape[0], size)
    distinct, place = jnp.unique(rows, size=count, fill_value=size, return_inverse=True)
    return RowGradient(distinct, jax.ops.segment_sum(values, place, count))


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
        if keras.backend.backend() != "tensorflow":  # every write copies the whole variable
            last = self.first + self.shape[0]
            self.variable.assign(self.variable.value.at[self.first : last].set(values))
            return
        for start, rows in chunks(self.first, self.shape[0]):
            set_rows(self.variable, rows, values[start : start + len(rows)])


def chunks(first: int, count: int) -> Sequence[tuple[int, np.ndarray]]:
    """Numbers of `count` rows from `first`, some at a time: (how many came before, int32 rows)."""
    return [
        (start, np.arange(first + start, first + min(start + _CHUNK, count), dtype=np.int32))
        for start in range(0, count, _CHUNK)
    ]
