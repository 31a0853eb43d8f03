"""Straight lines of the numbers during a training: fitted before it, blended after each epoch."""

from typing import Any

import numpy as np

from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.data.encoding import Encoded
from multigate.model.data.examples import targets
from multigate.model.data.feeds import Feed
from multigate.model.ranker.linear import LEAST_ROWS, Linear
from multigate.model.ranker.ranker import Ranker
from multigate.model.training.validation import Validated

_FITTED_ROWS = 1 << 16
"""At most so many rows with a task's label."""


class Lines:
    """The linear term of a training.

    Args:
        ranker: with a linear term.
        feed: the training split.
        held_out: the validation split.
        statistics: of the training split.
        fitted: whether the lines are fitted already, because the training goes on.
    """

    def __init__(
        self,
        ranker: Ranker,
        feed: Feed,
        held_out: Feed,
        statistics: Statistics,
        fitted: bool = False,
    ) -> None:
        assert ranker.linear is not None
        self._feed, self._position = held_out, ranker.contract.position
        self._linear: Linear = ranker.linear
        self._tasks = list(ranker.contract.tasks)
        counts = {t: statistics.tasks[self._tasks[t]].count for t in self._linear.tasks}
        steps = {t: -(-n // _FITTED_ROWS) for t, n in counts.items() if n >= LEAST_ROWS}
        self._held_out: np.ndarray | None = None
        if not steps:
            return

        def embed(encoded: Encoded) -> Any:
            return ranker.embed(encoded, self._linear.numbers)

        def effect(encoded: Encoded) -> Any:
            assert ranker.position_tower is not None
            assert self._position is not None
            return ranker.position_tower(encoded[self._position])

        compiled = backend.name() != "tensorflow"
        read = ranker.jitted(embed) if compiled else embed
        self._effect = ranker.jitted(effect) if compiled else effect
        if not fitted:
            rows = feed.labelled(steps)
            labels = targets(rows, ranker.contract, statistics)
            self._linear.fit(to_numpy(read(rows.features)), labels, rows.weights)
        values = [self._linear.values(to_numpy(read(encoded))) for encoded, *_ in held_out.epoch()]
        self._held_out = np.concatenate(values).astype(np.float32)

    def blend(self, found: Validated) -> dict[str, float]:
        """Set each task's shares of line and deep layers by what validation found.

        Returns:
            By task that has a line, the share of the squared error that it saves.
        """
        if self._held_out is None:
            return {}
        outputs = np.stack([found.logits[task] for task in self._tasks], axis=1)
        effects = self._of_positions()
        saved = self._linear.blend(
            outputs - effects, self._held_out, found.targets - effects, found.weights
        )
        return {self._tasks[place]: gain for place, gain in saved.items()}

    def _of_positions(self) -> np.ndarray | float:
        """What positions add to validation's outputs, (N, T); they are in its labels as well.

        Nothing that is served knows of positions, so that lines are judged without them.
        """
        if self._position is None:
            return 0.0
        batches = ({self._position: encoded[self._position]} for encoded, *_ in self._feed.epoch())
        return np.concatenate([to_numpy(self._effect(batch)) for batch in batches])
