"""Loss guard: stops a training whose loss is not finite, or explodes."""

import math
import statistics
from collections import deque
from collections.abc import Iterable

from multigate.configs.errors import ModelError
from multigate.configs.sections.model import TrainConfig

WINDOW = 64  # measurements that the median is taken over
_FEWEST = 8  # measurements before the first loss that can be called an explosion


class Guard:
    """Compares the loss of the latest steps with its running median.

    A measurement is the mean over at least `STEPS` steps of the guarded loss: the sum of the
    tasks' losses with the ranker's weights, each above the lowest value that it can have, plus the
    regularisation; a task without labels in a step has no part in it.  Each step counts alike, so
    that labels that begin late are no explosion.  Learnt task weights have no part in it, so that
    it is never negative.

    Args:
        options: `explosion` is the limit.
        measured: the latest measurements of an interrupted training.
    """

    STEPS = 16

    def __init__(self, options: TrainConfig, measured: Iterable[float] = ()) -> None:
        self.options = options
        self.measured = deque(measured, maxlen=WINDOW)

    def check_finite(self, loss: float, where: str) -> None:
        """Refuse a loss that is NaN or infinite.

        Raises:
            ModelError: the loss is not finite.
        """
        if not math.isfinite(loss):
            raise not_finite(where, self.options)

    def check(self, loss: float, where: str) -> None:
        """Refuse a measurement far above the median of those before it; else remember it.

        Raises:
            ModelError: the measurement is not finite, or an explosion.
        """
        self.check_finite(loss, where)
        if len(self.measured) >= _FEWEST:
            median = statistics.median(self.measured)
            limit = self.options.explosion
            if median > 0 and loss > limit * median:
                raise ModelError(
                    f"{where} explodes: {loss:.4g}, {loss / median:.1f} times its running median "
                    f"{median:.4g}; expected at most train.explosion = {limit:g} times. "
                    f"{_advice(self.options)}"
                )
        self.measured.append(loss)

    def forget(self) -> None:
        """Start the median anew: the loss has become another one."""
        self.measured.clear()


def not_finite(what: str, options: TrainConfig) -> ModelError:
    """The error for a value that is NaN or infinite."""
    return ModelError(f"{what} is not finite. {_advice(options)}")


def _advice(options: TrainConfig) -> str:
    return (
        f"Lower train.learning_rate (now {options.learning_rate:g}) "
        "or the gates' regularisation, and look for extreme values among number features without "
        "scale: standardise and among regression labels without clip or transform: log1p"
    )
