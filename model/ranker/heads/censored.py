"""A normal distribution that is cut off at the label's cap."""

import math

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker.heads import normal
from multigate.model.ranker.heads.head import LEAST_DENSITY_LOSS, deviation


class Censored:
    """Tobit (Tobin 1958): the label is min(Y, cap), with Y normal of mean o_0, deviation e^o_1.

        loss   = o_1 + (y - o_0)^2 / (2 e^(2 o_1))    below the cap
                 -log P(Y >= cap)                     at the cap
        logit  = E[min(Y, cap)] = cap - sigma (a Phi(a) + phi(a)),  a = (cap - o_0) / sigma

    The prediction is that of the label as it is stored.  It rises with o_0, so rows far beyond the
    cap keep their order up to rounding.

    Args:
        cap: on the scale of the targets.
    """

    start: tuple[float, ...] = (0.0, 0.0)
    shifted: tuple[float, ...] = (1.0, 0.0)
    least_loss = LEAST_DENSITY_LOSS

    def __init__(self, cap: float) -> None:
        self.cap = cap

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        mean, _, sigma = self._parts(outputs)
        a = (self.cap - mean) / sigma
        below = sigma * (a * normal.cdf(a) + normal.density(a))  # E[max(cap - Y, 0)]
        return self.cap - keras.ops.maximum(below, 0.0)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        mean, log_sigma, sigma = self._parts(outputs)
        seen = log_sigma + 0.5 * ops.square((targets - mean) / sigma)
        beyond = -normal.log_cdf((mean - self.cap) / sigma)
        # Targets were rounded to float32 as the cap was.
        return ops.where(targets >= np.float32(self.cap), beyond, seen)

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.array([scale, 1.0]), np.array([shift, math.log(scale)])

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return outputs[:, 0], *deviation(outputs[:, 1])
