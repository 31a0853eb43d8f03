"""Straight lines of the numbers during a training: fitted before it, blended after each epoch."""

import numpy as np

from multigate.configs.statistics import Statistics
from multigate.model import backend
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.data.examples import targets
from multigate.model.data.feeds import Feed
from multigate.model.ranker.linear import Linear
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
        self._linear: Linear = ranker.linear
        self._tasks = list(ranker.contract.tasks)

        def embed(encoded: dict[str, np.ndarray]) -> np.ndarray:
            return ranker.embed(encoded, self._linear.numbers)

        read = embed if backend.name() == "tensorflow" else ranker.jitted(embed)
        if not fitted:
            counts = {t: statistics.tasks[self._tasks[t]].count for t in self._linear.tasks}
            rows = feed.labelled({t: max(-(-n // _FITTED_ROWS), 1) for t, n in counts.items()})
            labels = targets(rows, ranker.contract, statistics)
            self._linear.fit(to_numpy(read(rows.features)), labels, rows.weights)
        numbers = [to_numpy(read(encoded)) for encoded, *_ in held_out.epoch()]
        self._held_out = self._linear.values(np.concatenate(numbers))

    def blend(self, found: Validated) -> dict[str, float]:
        """Set each task's shares of line and deep layers by what validation found.

        Returns:
            By task that has a line, the share of the squared error that it saves.
        """
        outputs = np.stack([found.logits[task] for task in self._tasks], axis=1)
        saved = self._linear.blend(outputs, self._held_out, found.targets, found.weights)
        return {self._tasks[place]: gain for place, gain in saved.items()}
