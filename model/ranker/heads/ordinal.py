"""Probabilities that the label exceeds each of some thresholds."""

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor


class Ordinal:
    """Cumulative logits: o_k is the logit of P(y > threshold_k) (Frank and Hall 2001).

        loss   = mean over k of the cross entropy of [y > threshold_k]
        logit  = level_0 + sum over k of P(y > threshold_k) (level_{k+1} - level_k)

    which is the expected level: level_k stands for the labels between two thresholds.

    Args:
        thresholds: (K,) ascending, on the scale of the targets.
        levels: (K + 1,) ascending, the mean label of each range.
        rates: (K,) share of the training labels above each threshold.
    """

    least_loss = 0.0

    def __init__(self, thresholds: np.ndarray, levels: np.ndarray, rates: np.ndarray) -> None:
        self.thresholds = thresholds.astype(np.float32)
        self.lowest, self.steps = float(levels[0]), np.diff(levels).astype(np.float32)
        rates = np.clip(rates, 1e-4, 1 - 1e-4)
        self.start: tuple[float, ...] = tuple(float(z) for z in np.log(rates / (1 - rates)))
        self.shifted: tuple[float, ...] = (1.0,) * len(self.start)

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        return self.lowest + keras.ops.sum(keras.ops.sigmoid(outputs) * self.steps, axis=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        above = ops.cast(targets[:, None] > self.thresholds, outputs.dtype)  # (B, K)
        return ops.mean(ops.softplus(outputs) - above * outputs, axis=1)

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        # Thresholds and levels belong to the labels, so that the scale does not matter.
        return np.ones(len(self.start)), np.zeros(len(self.start))
