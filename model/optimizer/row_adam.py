"""Adam on the rows of a batch: a table's step costs what the batch's rows cost.

A dense gradient says 0 for every row that is not in the batch.  To Adam that is a measurement: it
lets the row's moments decay, and the row coasts on.  A row's only gradient, at a late step of dense
Adam, moves it by (1 - beta_1) / sqrt(1 - beta_2) = 3.2 learning rates at once and by 32 in all.
Here a row that is absent has no gradient.  Each row has its own step count n, and the gradients
that it gets at its own steps 1, 2, .. n go into Adam (Kingma and Ba 2015, the form at the end of
section 2, as Keras and TensorFlow compute it):

    m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2)
    row -= learning_rate sqrt(1 - beta_2^n) / (1 - beta_1^n) * m / (sqrt(v) + epsilon)

A row of every batch moves as under dense Adam, because n = t.  A row of one batch moves by one
learning rate (g / |g|) where |g| is far above epsilon / sqrt(1 - beta_2), 3e-6 by default, however
late it comes; a smaller gradient moves it less.  With the global t instead of n it would move
by 3.2.  Moments that decay between a row's steps were considered: for a row that comes every 5,000
steps sqrt(v) would be |g|, and every step one learning rate long, however small its gradient.

PyTorch's `SparseAdam` and TensorFlow Addons' `LazyAdam` use the global t.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.model import backend
from multigate.model.backend.rows import (
    RowGradient,
    chunks,
    gather,
    set_rows,
    subtract_rows,
    write_part,
)

Tensor = Any


class RowState(NamedTuple):
    """What the optimiser knows of U rows.

    Attributes:
        steps: (U, 1) n of each row.
        m: (U, d) first moments.
        v: (U, d) second moments.
        averaged: (U, 1) how many steps of the training `lag` has seen; None without averages.
        lag: (U, d) average minus row; None without averages.  Without a step of the row it shrinks
            as `kept` says, so that it need not be written.
    """

    steps: Tensor
    m: Tensor
    v: Tensor
    averaged: Tensor | None
    lag: Tensor | None


class TableState:
    """The optimiser's state of a table (N, d): one variable, so that a row's numbers lie together.

    A step then reads two places of the memory for a row instead of six: its weights and its state.
    Counts are stored as float32: they stop at 2^24, where both corrections have long been 1.

    Args:
        table: the table's variable.
        add_variable: of the optimiser.
        averages: whether to keep averaged rows.
        moments: float32, or bfloat16: m and v in the two halves of one number.
    """

    def __init__(
        self, table: Any, add_variable: Callable[..., Any], averages: bool, moments: str
    ) -> None:
        self.averages, self.halved, self.width = averages, moments == "bfloat16", table.shape[1]
        widths = [1, self.width] if self.halved else [1, self.width, self.width]
        widths += [1, self.width] if averages else []
        self.ends = np.cumsum(widths).tolist()
        self.variable = add_variable((table.shape[0], self.ends[-1]), name="rows_state")

    def read(self, rows: Tensor | None) -> RowState:
        """The state of rows (U,), or of all."""
        return self.split(self.variable.value if rows is None else gather(self.variable, rows))

    def split(self, values: Tensor) -> RowState:
        """The state out of the variable's rows (U, S)."""
        parts = keras.ops.split(values, self.ends[:-1], axis=1)
        average = parts[-2:] if self.averages else [None, None]
        m, v = _halves(parts[1]) if self.halved else parts[1:3]
        return RowState(parts[0], m, v, *average)

    def joined(self, state: RowState, step: Tensor, seed: int) -> Tensor:
        """The variable's rows (U, S) of a state; step and seed are of the rounding to bfloat16."""
        moments = [_joined(state.m, state.v, step, seed)] if self.halved else [state.m, state.v]
        average = [state.averaged, state.lag] if self.averages else []
        return keras.ops.concatenate([state.steps, *moments, *average], axis=1)

    def set_lag(self, rows: np.ndarray, averaged: Tensor, lag: Tensor) -> None:
        """Set the lags of consecutive rows (U,), and the step that the lags belong to."""
        values = gather(self.variable, rows)[:, : -1 - self.width]
        whole = keras.ops.concatenate([values, averaged, lag], axis=1)
        write_part(self.variable, int(rows[0]), whole)


class Step(NamedTuple):
    """What all tables share in one step.

    Attributes:
        number: t, from 0.
        rate: learning rate.
        beta_1: decay of the first moments.
        beta_2: decay of the second moments.
        epsilon: added to the root of the second moment.
        decay: of averaged weights; None keeps none.
    """

    number: Tensor
    rate: Tensor
    beta_1: float
    beta_2: float
    epsilon: float
    decay: float | None


def update(table: Any, state: TableState, gradient: RowGradient, step: Step, seed: int) -> None:
    """Update the rows that have a gradient, their moments and averages.

    Args:
        table: (N, d).
        state: its optimiser variables.
        gradient: of some rows.
        step: the training's.
        seed: of the rounding of moments in bfloat16, another one for each table.
    """
    ops = keras.ops
    rows, g, taken = gradient
    before = state.read(rows)
    n = before.steps + 1.0  # (U, 1)
    m = before.m + (g - before.m) * (1 - step.beta_1)
    v = before.v + (ops.square(g) - before.v) * (1 - step.beta_2)
    correction = ops.sqrt(1 - ops.power(step.beta_2, n)) / (1 - ops.power(step.beta_1, n))
    change = step.rate * correction * m / (ops.sqrt(v) + step.epsilon)
    averaged, lag = before.averaged, before.lag
    if step.decay is not None:
        lag = lag * kept(averaged, step.number - 1, step.decay) + change
        lag = lag * kept(step.number, step.number, step.decay)
        averaged = ops.zeros_like(averaged) + ops.cast(step.number + 1, "float32")
    values = state.joined(RowState(n, m, v, averaged, lag), step.number, seed)
    if taken is None:
        set_rows(state.variable, rows, values)
        subtract_rows(table, rows, change)
    else:
        state.variable.assign(ops.where(taken, values, state.variable.value))
        table.assign(ops.where(taken, table.value - change, table.value))


def kept(first: Tensor, last: Tensor, decay: float) -> Tensor:
    """How much of an average remains after the steps `first` to `last`, if the weight stays.

    It is the product of min(decay, (1 + j) / (10 + j)) over the steps j, which is 0 at j = 0, 1
    where there is no step.  The quotients are those of factorials, so nine factors remain of them.

    Args:
        first: int32, of any shape.
        last: int32, ().
        decay: of the average.
    """
    ops = keras.ops
    first, last = ops.cast(first, "int32"), ops.cast(last, "int32")
    early = max(0, int(np.ceil((10 * decay - 1) / (1 - decay))))  # steps with the quotient
    a = ops.cast(first, "float32")
    b = ops.cast(ops.minimum(last, early - 1), "float32")
    product = ops.ones_like(a)
    for i in range(1, 10):
        product = product * (a + i) / (ops.maximum(b, -1.0) + 1 + i)
    product = ops.where(b >= a, product, 1.0)
    rest = ops.cast(ops.maximum(last - ops.maximum(first, early) + 1, 0), "float32")
    product = product * ops.power(ops.cast(decay, "float32"), rest)
    return ops.where((first <= 0) & (last >= 0), 0.0, product)


def show_averages(table: Any, state: TableState, steps: int, decay: float) -> None:
    """Put the averages after so many steps into the table, and its rows where the lags are."""
    for _, rows in chunks(0, table.shape[0]):
        weights, before = gather(table, rows), state.read(rows)
        lag = before.lag * kept(before.averaged, steps - 1, decay)
        write_part(table, int(rows[0]), weights + lag)
        state.set_lag(rows, keras.ops.zeros_like(before.averaged) + float(steps), weights)


def hide_averages(table: Any, state: TableState) -> None:
    """Undo `show_averages`: the rows are, bit for bit, what they were."""
    for _, rows in chunks(0, table.shape[0]):
        average, before = gather(table, rows), state.read(rows)
        write_part(table, int(rows[0]), before.lag)
        state.set_lag(rows, before.averaged, average - before.lag)


def _joined(m: Tensor, v: Tensor, step: Tensor, seed: int) -> Tensor:
    """Moments (U, d) in one number each: m in the upper half, v in the lower, as bfloat16.

    They are rounded up or down at random, such that the mean is right.  To the nearest, v would
    never change: a step changes it by 0.1 %, and neighbouring numbers are 0.4 % apart.
    """
    if backend.name() == "tensorflow":
        import tensorflow as tf

        both = tf.bitwise.bitwise_and
        noise = tf.random.stateless_uniform(
            tf.shape(m), [tf.cast(step, tf.int32), seed], None, None, tf.uint32
        )
        upper = tf.bitcast(m, tf.uint32) + both(noise, tf.constant(0xFFFF, tf.uint32))
        lower = tf.bitcast(v, tf.uint32) + tf.bitwise.right_shift(noise, 16)
        upper = both(upper, tf.constant(0xFFFF0000, tf.uint32))
        bits = tf.bitwise.bitwise_or(upper, tf.bitwise.right_shift(lower, 16))
        return tf.bitcast(bits, tf.float32)
    import jax
    import jax.numpy as jnp

    noise = jax.random.bits(jax.random.fold_in(jax.random.key(seed), step), m.shape, jnp.uint32)
    upper = jax.lax.bitcast_convert_type(m, jnp.uint32) + (noise & 0xFFFF)
    lower = jax.lax.bitcast_convert_type(v, jnp.uint32) + (noise >> 16)
    return jax.lax.bitcast_convert_type(
        (upper & jnp.uint32(0xFFFF0000)) | (lower >> 16), jnp.float32
    )


def _halves(joined: Tensor) -> tuple[Tensor, Tensor]:
    """M and v (U, d) out of `_joined`."""
    if backend.name() == "tensorflow":
        import tensorflow as tf

        bits = tf.bitcast(joined, tf.uint32)
        upper = tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF0000, tf.uint32))
        lower = tf.bitwise.left_shift(bits, 16)
        return tf.bitcast(upper, tf.float32), tf.bitcast(lower, tf.float32)
    import jax
    import jax.numpy as jnp

    bits = jax.lax.bitcast_convert_type(joined, jnp.uint32)
    halves = (bits & jnp.uint32(0xFFFF0000), bits << 16)
    return tuple(jax.lax.bitcast_convert_type(half, jnp.float32) for half in halves)
