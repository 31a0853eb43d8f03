"""From the towers' outputs to scores, for all tasks together.

Axes: T tasks, N rows, K outputs of a tower.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.evaluation.calibration import Calibration, Curve
from multigate.model.ranker import funnel, scores
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.heads.location import Location
from multigate.model.ranker.ranker import Ranker

Tensor = Any


class ServedScores:
    """What follows the towers: wide term, factors, lines, heads, funnels, calibration, own units.

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
    """The curves of `model.evaluation.calibration` of all tasks, (T, N) to (T, N).

    A task with K knots has K + 1 pieces, one below each knot and one above the last; a piece is the
    line y + slope (z - x) through a knot.  Each value looks up its piece.
    """

    def __init__(self, calibration: Calibration, tasks: Sequence[str]) -> None:
        same = Curve(np.zeros(1, np.float32), np.zeros(1, np.float32), 1.0)
        curves = [calibration.get(task, same) for task in tasks]
        most = max(len(curve.x) for curve in curves)
        self._knots = np.full((len(tasks), most), np.inf, np.float32)
        self._pieces = np.zeros((len(tasks), most + 1, 3), np.float32)
        for t, curve in enumerate(curves):
            K = len(curve.x)
            widths = np.diff(curve.x.astype(np.float64))
            widths[widths == 0] = 1  # of two equal knots: no value is between them
            slopes = np.diff(curve.y.astype(np.float64)) / widths
            through = np.maximum(np.arange(K + 1) - 1, 0)
            self._knots[t, :K] = curve.x
            self._pieces[t, : K + 1, 0] = curve.x[through]
            self._pieces[t, : K + 1, 1] = curve.y[through]
            self._pieces[t, : K + 1, 2] = [curve.slope, *slopes, curve.slope]
            self._pieces[t, K + 1 :] = self._pieces[t, K]  # what only infinity reaches

    def __call__(self, z: Tensor) -> Tensor:
        T, count, _ = self._pieces.shape
        if count == 2:  # one knot: both pieces are one line
            x, y, slope = (self._pieces[:, :1, part] for part in range(3))
        else:
            passed = tf.raw_ops.UpperBound(sorted_inputs=self._knots, values=z)
            first = count * np.arange(T, dtype=np.int32)[:, None]
            found = tf.gather(self._pieces.reshape(-1, 3), first + passed)  # (T, N, 3)
            x, y, slope = tf.unstack(found, axis=2)
        return y + slope * (z - x)
