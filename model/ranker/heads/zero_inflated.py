"""Zero, or a log-normal amount."""

import math

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker.heads.head import LEAST_DENSITY_LOSS, deviation


class ZeroInflated:
    """ZILN (Wang, Liu and Miao 2019): zero, or a log-normal amount.

        p = sigmoid(o_0), log Y of mean o_1 and deviation e^o_2
        loss   = cross entropy of [Y > 0], + o_2 + (log Y - o_1)^2 / (2 e^(2 o_2)) where Y > 0
        logit  = (p e^(o_1 + sigma^2 / 2) - mean) / std, the expected label, standardised

    The expected amount is at most the largest training label: a squared deviation in the exponent
    would let one row exceed every label by orders of magnitude.

    Args:
        mean, std: of the label.
        zero: the target of a label of 0.
        largest: training label.
        rate: share of the labels above 0.
        log_mean, log_std: of the logarithm of the labels above 0.
    """

    shifted: tuple[float, ...] = (1.0, 1.0, 0.0)
    least_loss = LEAST_DENSITY_LOSS

    def __init__(
        self,
        mean: float,
        std: float,
        zero: float,
        largest: float,
        rate: float,
        log_mean: float,
        log_std: float,
    ) -> None:
        self.mean, self.std, self.zero = mean, std, zero
        self.limit = math.log(largest)
        rate = min(max(rate, 1e-4), 1 - 1e-4)
        self.start: tuple[float, ...] = (math.log(rate / (1 - rate)), log_mean, math.log(log_std))

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        _, sigma = deviation(outputs[:, 2])
        amount = ops.exp(ops.minimum(outputs[:, 1] + 0.5 * ops.square(sigma), self.limit))
        return (ops.sigmoid(outputs[:, 0]) * amount - self.mean) / self.std

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        log_sigma, sigma = deviation(outputs[:, 2])
        above = targets > np.float32(self.zero)
        # The smallest amount only guards the logarithm of the rows that are 0.
        amount = ops.where(above, targets * self.std + self.mean, 1.0)
        amount = ops.maximum(amount, 1e-6 * self.std)
        of_amount = log_sigma + 0.5 * ops.square((ops.log(amount) - outputs[:, 1]) / sigma)
        known = ops.cast(above, outputs.dtype)
        return ops.softplus(outputs[:, 0]) - known * outputs[:, 0] + known * of_amount

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.ones(3), np.zeros(3)  # the outputs are in the label's own units
