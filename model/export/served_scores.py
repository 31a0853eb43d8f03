"""From the towers' outputs to scores, for all tasks together.

Axes: T tasks, N rows, K outputs of a tower.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.export.calibration import Calibration
from multigate.model.ranker import funnel, scores
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.heads.location import Location
from multigate.model.ranker.ranker import Ranker

Tensor = Any


class ServedScores:
    """What follows the towers: wide and linear term, heads, funnels, calibration, own units.

    Args:
        ranker: the trained one.
        statistics: of the training split.
        calibration: a curve on the logit, by task.
    """

    def __init__(self, ranker: Ranker, statistics: Statistics, calibration: Calibration) -> None:
        self._contract: Contract = ranker.contract
        self._heads: Mapping[str, Head] = ranker.heads
        self._statistics = statistics
        self._curves = _Curves(calibration, list(self._contract.tasks)) if calibration else None

    def __call__(self, outputs: Tensor, shifts: Tensor | None) -> dict[str, Tensor]:
        """Score (N,) by task.

        Args:
            outputs: (T, N, K) of the towers.
            shifts: (N, T) to add to them; None if there are none.
        """
        tasks = self._contract.tasks
        with tf.name_scope("scores"):
            logits = self._logits(outputs, shifts)
            if self._curves is not None:
                logits = self._curves(logits)
            each = tf.unstack(logits, len(tasks))
            probabilities = [None] * len(tasks)
            if any(task.type == "binary" for task in tasks.values()):
                probabilities = tf.unstack(tf.sigmoid(logits), len(tasks))
            return {
                name: probabilities[t]
                if task.type == "binary"
                else scores.score(task, self._statistics.tasks[name], each[t])
                for t, (name, task) in enumerate(tasks.items())
            }

    def _logits(self, outputs: Tensor, shifts: Tensor | None) -> Tensor:
        """Logits (T, N), joined along funnels."""
        tasks = list(self._contract.tasks)
        if shifts is not None:
            shifted = self._shifted(outputs.shape[2])
            effect = tf.transpose(shifts)[:, :, None]  # (T, N, 1)
            outputs += effect if shifted.all() else effect * shifted
        if all(isinstance(self._heads[task], Location) for task in tasks):
            logits = outputs[:, :, 0]
        else:
            each = zip(tasks, tf.unstack(outputs, len(tasks)), strict=True)
            logits = tf.stack(
                [self._heads[t].logit(found[:, : len(self._heads[t].start)]) for t, found in each]
            )
        if any(task.given is not None for task in self._contract.tasks.values()):
            own = dict(zip(tasks, tf.unstack(logits, len(tasks)), strict=True))
            joint = funnel.joint(self._contract, own)
            logits = tf.stack([joint[task] for task in tasks])
        return logits

    def _shifted(self, most: int) -> np.ndarray:
        """1 for each output that shifts are added to, else 0, (T, 1, K)."""
        found = np.zeros((len(self._contract.tasks), 1, most), np.float32)
        for t, task in enumerate(self._contract.tasks):
            marks = self._heads[task].shifted
            found[t, 0, : len(marks)] = marks
        return found


class _Curves:
    """The curves of `model.export.calibration` of all tasks, (T, N) to (T, N)."""

    def __init__(self, calibration: Calibration, tasks: Sequence[str]) -> None:
        knots = max(len(curve.x) for curve in calibration.values())
        T = len(tasks)
        x, y = np.zeros((T, knots), np.float32), np.zeros((T, knots), np.float32)
        self._slope = np.ones((T, 1), np.float32)
        self._last = np.zeros((T, 1), np.float32)
        for t, task in enumerate(tasks):
            if task in calibration:  # a task without a curve keeps its logit: 0 to 0, slope 1
                curve = calibration[task]
                x[t], y[t] = curve.x[-1], curve.y[-1]
                x[t, : len(curve.x)], y[t, : len(curve.y)] = curve.x, curve.y
                self._slope[t] = curve.slope
                self._last[t] = curve.x[-1]
        self._x, self._y = x, y
        self._widths = np.diff(x)
        self._widths[self._widths == 0] = 1  # of knots that only fill the row; they rise by 0

    def __call__(self, z: Tensor) -> Tensor:
        if self._x.shape[1] == 1:
            return self._y + self._slope * (z - self._x)
        outside = tf.minimum(z - self._x[:, :1], 0.0) + tf.maximum(z - self._last, 0.0)
        result = self._y[:, :1] + self._slope * outside
        passed = (z[:, :, None] - self._x[:, None, :-1]) / self._widths[:, None, :]
        rises = np.diff(self._y)[:, None, :]
        return result + tf.reduce_sum(tf.clip_by_value(passed, 0.0, 1.0) * rises, axis=2)
