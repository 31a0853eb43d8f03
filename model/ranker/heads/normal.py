"""The normal distribution in float32 on either backend: density, distribution, logarithm of it.

TensorFlow Probability was considered: it would be a dependency of the exported model's builder for
one function, and Keras's `erf` loses all digits where the logarithm is needed.
"""

import math

import keras

from multigate.model.gates.parts.base import Tensor

_LOG_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)
"""log(erfc(z) / t) + z^2 as a polynomial in t = 1 / (1 + z / 2), for z >= 0 (Press et al.,
Numerical Recipes in C, 1992, section 6.2): a relative error of erfc below 1.2e-7."""


def log_cdf(x: Tensor) -> Tensor:
    """Log P(Z <= x) of a standard normal Z; exact in relative terms far into both tails."""
    ops = keras.ops
    z = ops.abs(x) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.5 * z)
    polynomial = ops.zeros_like(t) + _LOG_ERFC[-1]
    for coefficient in reversed(_LOG_ERFC[:-1]):
        polynomial = polynomial * t + coefficient
    tail = math.log(0.5) + ops.log(t) - ops.square(z) + polynomial  # log P(Z <= -|x|)
    return ops.where(x < 0, tail, ops.log1p(-ops.exp(ops.minimum(tail, math.log(0.5)))))


def cdf(x: Tensor) -> Tensor:
    """P(Z <= x) of a standard normal Z."""
    return keras.ops.exp(log_cdf(x))


def density(x: Tensor) -> Tensor:
    """The density of a standard normal Z at x."""
    return keras.ops.exp(-0.5 * keras.ops.square(x)) / math.sqrt(2.0 * math.pi)
