"""Adam on the rows of a batch: a table's step costs what the batch's rows cost.

A dense gradient says 0 for every row that is not in the batch.  To Adam that is a measurement: it
lets the row's moments decay, and the row coasts on.  A row's only gradient, at a late step of dense
Adam, moves it by (1 - beta_1) / sqrt(1 - beta_2) = 3.2 learning rates at once and by 32 in all.
Here a row that is absent has no gradient.  Each row has its own step count n, and the gradients
that it gets at its own steps 1, 2, .. n go into Adam as it is defined (Kingma and Ba 2015,
algorithm 1):

    m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2)
    row -= learning_rate sqrt(1 - beta_2^n) / (1 - beta_1^n) * m / (sqrt(v) + epsilon)

A row of every batch moves as under dense Adam, because n = t.  A row of one batch moves by one
learning rate (g / |g|), however late it comes.  With the global t in the place of n it would move
by 3.2.  Moments that decay between a row's steps were considered: for a row that comes every 5,000
steps sqrt(v) would be |g|, and every step one learning rate long, however small its gradient.

PyTorch's `SparseAdam` and TensorFlow Addons' `LazyAdam` use the global t.
"""

from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.model import backend
from multigate.model.backend.rows import RowGradient, chunks, gather, set_rows

Tensor = Any


class TableState(NamedTuple):
    """The optimiser's variables of a table (N, d).

    Attributes:
        steps: (N,) int32, n of each row.
        m: (N, d) first moments.
        v: (N, d) second moments.
        average: (N, d) averaged rows as of `averaged`; None without averages.
        averaged: (N,) int32, how many steps of the training `average` has seen.
    """

    steps: Any
    m: Any
    v: Any
    average: Any
    averaged: Any


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
    rows, g = gradient
    steps = gather(state.steps, rows) + 1  # (U,)
    m = ops.cast(gather(state.m, rows), "float32")
    v = ops.cast(gather(state.v, rows), "float32")
    m = m + (g - m) * (1 - step.beta_1)
    v = v + (ops.square(g) - v) * (1 - step.beta_2)
    n = ops.cast(steps, "float32")[:, None]
    correction = ops.sqrt(1 - ops.power(step.beta_2, n)) / (1 - ops.power(step.beta_1, n))
    old = gather(table, rows)
    new = old - step.rate * correction * m / (ops.sqrt(v) + step.epsilon)
    if step.decay is not None:
        before = gather(state.averaged, rows)
        share = kept(before, step.number - 1, step.decay)[:, None]
        average = old + (gather(state.average, rows) - old) * share  # as of the step before
        now = kept(step.number, step.number, step.decay)
        set_rows(state.average, rows, new + (average - new) * now)
        # The maximum is `number + 1`; it makes XLA read `before` first and write in place.
        set_rows(state.averaged, rows, ops.maximum(before, step.number + 1))
    set_rows(state.steps, rows, steps)
    set_rows(state.m, rows, stored(m, state.m.dtype, step.number, 2 * seed))
    set_rows(state.v, rows, stored(v, state.v.dtype, step.number, 2 * seed + 1))
    set_rows(table, rows, new)


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


def settle(table: Any, state: TableState, steps: int, decay: float) -> None:
    """Bring the averages of all rows up to the last of so many steps, a few rows at a time."""
    if not steps:
        return
    if backend.name() != "tensorflow":  # every write copies the whole variable
        share = kept(state.averaged.value, steps - 1, decay)[:, None]
        weights = table.value
        state.average.assign(weights + (state.average.value - weights) * share)
        state.averaged.assign(keras.ops.full_like(state.averaged.value, steps))
        return
    for _, rows in chunks(0, table.shape[0]):
        weights, average = gather(table, rows), gather(state.average, rows)
        share = kept(gather(state.averaged, rows), steps - 1, decay)[:, None]
        set_rows(state.average, rows, weights + (average - weights) * share)
        set_rows(state.averaged, rows, np.full(len(rows), steps, np.int32))


def swap(table: Any, other: Any) -> None:
    """Exchange the values of two variables (N, d), bit for bit, a few rows at a time."""
    if backend.name() != "tensorflow":
        one, two = table.value, other.value
        table.assign(two)
        other.assign(one)
        return
    for _, rows in chunks(0, table.shape[0]):
        one, two = gather(table, rows), gather(other, rows)
        set_rows(table, rows, two)
        set_rows(other, rows, one)


def stored(values: Tensor, dtype: str, step: Tensor, seed: int) -> Tensor:
    """Values (U, d) as a moment's variable stores them.

    Numbers are rounded to bfloat16 up or down at random, such that the mean is right.  To the
    nearest, a second moment would never change: a step changes it by 0.1 %, and neighbouring
    numbers are 0.4 % apart.
    """
    if dtype == "float32":
        return values
    if backend.name() == "tensorflow":
        import tensorflow as tf

        noise = tf.random.stateless_uniform(
            tf.shape(values), [tf.cast(step, tf.int32), seed], None, None, tf.uint32
        )
        noise = tf.bitwise.bitwise_and(noise, tf.constant(0xFFFF, tf.uint32))
        bits = tf.bitcast(values, tf.uint32) + noise
        bits = tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF0000, tf.uint32))
        return tf.cast(tf.bitcast(bits, tf.float32), tf.bfloat16)
    import jax
    import jax.numpy as jnp

    key = jax.random.fold_in(jax.random.key(seed), step)
    noise = jax.random.bits(key, values.shape, jnp.uint32) & 0xFFFF
    bits = (jax.lax.bitcast_convert_type(values, jnp.uint32) + noise) & 0xFFFF0000
    return jax.lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.bfloat16)
