"""Heads with one output, which is the logit: logistic, squared, Huber and quantile."""

import keras
import numpy as np

from multigate.model.gates.parts.base import Tensor


class Location:
    """A head with one output, which is the logit."""

    shifted: tuple[float, ...] = (1.0,)
    least_loss = 0.0

    def __init__(self, start: float = 0.0) -> None:
        self.start: tuple[float, ...] = (start,)

    def logit(self, outputs: Tensor) -> Tensor:
        """See `Head`."""
        return outputs[:, 0]

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.array([scale]), np.array([shift])


class Logistic(Location):
    """Binary tasks: cross entropy in nats, from the logit."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        z = outputs[:, 0]
        return keras.ops.softplus(z) - targets * z

    def rescaled(self, scale: float, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """See `Head`."""
        return np.ones(1), np.zeros(1)


class Squared(Location):
    """(y - o)^2; predicts the mean."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        return keras.ops.square(targets - outputs[:, 0])


class Huber(Location):
    """r^2 where |r| = |y - o| <= delta, else 2 delta |r| - delta^2 (Huber 1964, times two).

    Near 0 it is the squared error, so that a task's weight keeps its meaning.
    """

    def __init__(self, delta: float) -> None:
        super().__init__()
        self.delta = delta

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        ops = keras.ops
        distance = ops.abs(targets - outputs[:, 0])
        near = ops.minimum(distance, self.delta)
        return near * (2.0 * distance - near)


class Quantile(Location):
    """Pinball loss max(q r, (q - 1) r) of r = y - o (Koenker and Bassett 1978)."""

    def __init__(self, q: float, start: float = 0.0) -> None:
        super().__init__(start)
        self.q = q

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Head`."""
        residual = targets - outputs[:, 0]
        return keras.ops.maximum(self.q * residual, (self.q - 1.0) * residual)
