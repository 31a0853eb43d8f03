"""What every head can do."""

from typing import Protocol

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor

_LOG_SIGMA = (-5.0, 3.0)
"""Limits of a learnt log deviation: beyond them losses explode."""
LEAST_DENSITY_LOSS = _LOG_SIGMA[0]
"""No loss log sigma + r^2 / 2 is below."""


class Head(Protocol):
    """One task's loss and prediction.

    Attributes:
        start: initial outputs, K of them, for the tower's bias.
        shifted: (K,) 1 for each output to which the wide and the position term are added, else 0.
        least_loss: no loss is below; 0 but for densities, whose logarithm has either sign.
    """

    start: tuple[float, ...]
    shifted: tuple[float, ...]
    least_loss: float

    def logit(self, outputs: Tensor) -> Tensor:
        """The task's logit (B,) from outputs (B, K)."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss (B,) of each row from outputs (B, K) and targets (B,), which are not NaN."""

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """How the outputs change when labels are standardised anew as y' = scale * y + shift.

        Returns:
            a and b, (K,) each: the outputs o' = a * o + b say of y' what o said of y.
        """


def deviation(log_sigma: Tensor) -> tuple[Tensor, Tensor]:
    """A learnt log deviation (B,) within its limits, and the deviation."""
    log_sigma = keras.ops.clip(log_sigma, *_LOG_SIGMA)
    return log_sigma, keras.ops.exp(log_sigma)
