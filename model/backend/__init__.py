"""Operations that Keras does not offer in the same way on both backends; data-parallel training.

Public face: `name`, `check_finite`, `is_traced`, `data_parallel.connect`, `workers.Workers`,
`devices.Devices`, `devices.shard_rows`, `peers.PeerError`, `peers.lost_peer`.
"""

from typing import Any

import keras

Tensor = Any


def name() -> str:
    """Name of the backend in use: "tensorflow" or "jax"."""
    return keras.backend.backend()


def is_traced(x: Tensor) -> bool:
    """Whether JAX is tracing `x`, as under `jax.jit`: it has no value yet, and cannot raise."""
    if name() == "tensorflow":
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


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
