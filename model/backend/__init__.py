"""The few operations that Keras does not offer alike on both backends."""

from typing import Any

import keras

Tensor = Any


def name() -> str:
    """Name of the backend in use: "tensorflow" or "jax"."""
    return keras.backend.backend()


def check_finite(x: Tensor, what: str) -> Tensor:
    """Return `x`, or raise when it holds NaN or infinity.

    On TensorFlow the check is part of the graph (InvalidArgumentError when it runs inside a
    tf.function).  Under JAX's jit a value cannot raise; there the training loop's own guard on
    the loss reports it.

    Args:
        x: any float tensor.
        what: what the message calls it, such as "logits of gate 'click'".

    Raises:
        ValueError: `x` is not finite (eager mode, both backends).
    """
    if name() == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            return tf.debugging.check_numerics(x, f"{what}: expected finite values")
    else:
        import jax

        if isinstance(x, jax.core.Tracer):
            return x
    finite = keras.ops.convert_to_numpy(keras.ops.all(keras.ops.isfinite(x)))
    if not finite:
        raise ValueError(f"{what}: expected finite values, received NaN or infinity")
    return x
