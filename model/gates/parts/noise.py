"""Noise that gates draw in training."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor


def gumbel(shape: Any, seed: Any, dtype: str = "float32") -> Tensor:
    """Standard Gumbel noise: the argmax of logits plus this noise is a sample of their softmax.

    It is always drawn in float32, because its tails are only as fine as the uniform numbers it is
    made of.  These are 1.2e-7 apart, so the noise lies in (-3, 16].

    Args:
        shape: as `keras.random.uniform` takes it.
        seed: a `keras.random.SeedGenerator`.
        dtype: of the result.
    """
    ops = keras.ops
    u = keras.random.uniform(shape, 1e-7, 1 - 1e-7, dtype="float32", seed=seed)
    return ops.cast(-ops.log(-ops.log(u)), dtype)
