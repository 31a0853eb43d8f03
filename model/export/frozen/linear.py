"""The linear term as an exported graph computes it: the user's part of a line once per user."""

from typing import Any

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen.trained import LineMap
from multigate.model.export.frozen.user_half import Halves, SplitKernel

Tensor = Any


class FrozenLinear:
    """Trained lines with their shares, for inference only.

    Args:
        lines: of the trained ranker.
        columns: (D,) the column of the lines' input for each column of `Halves`.
        user_width: Du.
    """

    def __init__(self, lines: LineMap, columns: np.ndarray, user_width: int) -> None:
        self._kernel = SplitKernel(lines.kernel[columns], user_width, lines.bias)
        self._low, self._high = lines.low, lines.high

    def precompute_items(self, items: np.ndarray) -> int:
        """Store what items (R, Di) add to the lines; return the size in bytes."""
        return self._kernel.precompute_items(items)

    def __call__(self, halves: Halves) -> Tensor:
        """What the lines add to the outputs, (N, T)."""
        with tf.name_scope("linear"):
            return tf.clip_by_value(self._kernel(halves), self._low, self._high)
