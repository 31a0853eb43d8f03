"""Smooth-step: a cubic from 0 to 1 that reaches both ends (DSelect-k, section 3.1)."""

import keras

from multigate.model.gates.parts.base import Tensor


def smooth_step(t: Tensor, gamma: float | Tensor) -> tuple[Tensor, Tensor]:
    """S(t) and 1 - S(t), each with full float32 precision near its own zero.

    S(t) = 0 for t <= -gamma/2; 1 for t >= gamma/2; else -2 t^3/gamma^3 + 3t/(2 gamma) + 1/2.
    With u = clip(t/gamma + 1/2, 0, 1) this is S = u^2 (3 - 2u) and 1 - S = (1-u)^2 (1 + 2u).  In
    float32 the polynomial in t would round to S = 0 inside the open interval, where its slope is
    still up to 8e-4; in u, the value and the slope 6u(1-u)/gamma become zero together.

    Args:
        t: any shape, float.
        gamma: width of the transition, > 0.

    Returns:
        S and 1 - S, each of t's shape, within [0, 1].
    """
    ops = keras.ops
    u = ops.clip(t / gamma + 0.5, 0.0, 1.0)
    v = 1.0 - u  # exact in float32 for u >= 1/2, where it is small
    return ops.square(u) * (3.0 - 2.0 * u), ops.square(v) * (1.0 + 2.0 * u)


def saturated(t: Tensor, gamma: float | Tensor) -> Tensor:
    """Mark entries with a smooth-step of exactly 0 or 1: |t| >= gamma/2."""
    return keras.ops.abs(t) >= gamma / 2


def code_probabilities(on: Tensor, off: Tensor) -> Tensor:
    """Probability of every binary code, for independent bits.

    p[c] = product over bits j of (on_j if bit j of c is set else off_j), bit 0 the least
    significant (DSelect-k, B.8, which counts bits from 1).  Appending one bit doubles the codes:
    those without it stay at c, those with it go to c + 2^j.

    Args:
        on: (..., m) probability that a bit is set, m >= 0.
        off: (..., m) probability that it is not.

    Returns:
        (..., 2^m).
    """
    ops = keras.ops
    p = ops.ones_like(ops.sum(on, axis=-1, keepdims=True))  # (..., 1)
    for j in range(on.shape[-1]):
        p = ops.concatenate([p * off[..., j : j + 1], p * on[..., j : j + 1]], axis=-1)
    return p


def rounded_codes(t: Tensor) -> Tensor:
    """The binary code with the largest probability, for independent bits with values S(t).

    Bit j is set where t_j > 0, so that S(t_j) > 1/2: no probability needs to be computed.

    Args:
        t: (..., m) bits before the smooth-step, m >= 0.

    Returns:
        (...), int32; of equally probable codes the lowest.
    """
    ops = keras.ops
    # One product of matrices: sums over an axis of three take several times as long.
    places = ops.convert_to_tensor([[2.0**j] for j in range(t.shape[-1])], dtype="float32")
    marks = ops.reshape(ops.cast(t > 0, "float32"), (-1, t.shape[-1]))
    codes = ops.cast(ops.matmul(marks, places), "int32")
    return ops.reshape(codes, (-1, *t.shape[1:-1]))
