"""Noise that gates draw while training."""

from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor


def gumbel(shape: Any, seed: Any, dtype: str = "float32") -> Tensor:
    """Standard Gumbel noise of the given shape; adding it to logits and taking argmax samples.

    It is drawn in float32 whatever `dtype` is, because its tails are as fine as the uniforms
    behind it.  These lie 1.2e-7 apart, so the noise stays within (-3, 16].

    Args:
        shape: as `keras.random.uniform` takes it.
        seed: a `keras.random.SeedGenerator`.
        dtype: of the result.
    """
    ops = keras.ops
    u = keras.random.uniform(shape, 1e-7, 1 - 1e-7, dtype="float32", seed=seed)
    return ops.cast(-ops.log(-ops.log(u)), dtype)
