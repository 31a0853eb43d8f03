"""Operations that Keras does not offer in the same way on both backends; data-parallel training.

Public face: `name`, `has_accelerator`, `steps_at_once`, `argmax`, `check_finite`, `unchecked`,
`is_traced`, `data_parallel.connect`, `names.fresh_names`, `workers.Workers`, `devices.Devices`,
`devices.shard_rows`, `peers.PeerError`, `peers.lost_peer`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

Tensor = Any

_CHECKED = ContextVar("checked", default=True)


def name() -> str:
    """Name of the backend in use: "tensorflow" or "jax"."""
    return keras.backend.backend()


def has_accelerator() -> bool:
    """Whether variables live in a GPU's memory."""
    if name() == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_logical_devices("GPU"))
    import jax

    return jax.default_backend() != "cpu"


def steps_at_once() -> int:
    """How many training steps one program runs before it returns to Python.

    On JAX a CPU gains nothing, and resumes bit for bit only with one program for all steps.
    """
    return 16 if name() == "tensorflow" or has_accelerator() else 1


def is_traced(x: Tensor) -> bool:
    """Whether JAX is tracing `x`, as under `jax.jit`: it has no value yet, and cannot raise."""
    if name() == "tensorflow":
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


def argmax(x: Tensor) -> Tensor:
    """Index (...) int32 of the largest entry of x (..., E); of equal ones the lowest.

    Keras's own tells -0.0 from 0.0 on TensorFlow, at the cost of six operations.
    """
    if name() == "tensorflow":
        import tensorflow as tf

        return tf.argmax(x, axis=-1, output_type=tf.int32)
    return keras.ops.argmax(x, axis=-1)


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, `check_finite` returns its argument: export checks a call's numbers in one place."""
    token = _CHECKED.set(False)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def check_finite(x: Tensor, what: str) -> Tensor:
    """Return `x`, or raise when it holds NaN or infinity.

    On TensorFlow the check is part of the graph: it raises InvalidArgumentError inside a
    tf.function.  A value that JAX traces is returned unchecked: a gate then makes its weights NaN
    (`Gate.check_logits`), and the training's guard on the loss reports it.

    Args:
        x: any float tensor.
        what: name of `x` in the message, such as "logits of gate 'click'".

    Raises:
        ValueError: `x` is not finite (eager mode, both backends).
    """
    if not _CHECKED.get():
        return x
    if name() == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            return tf.debugging.check_numerics(x, f"{what}: expected finite values")
    elif is_traced(x):
        return x
    finite = keras.ops.convert_to_numpy(keras.ops.all(keras.ops.isfinite(x)))
    if not finite:
        raise ValueError(f"{what}: expected finite values, received NaN or infinity")
    return x
