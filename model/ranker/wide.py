"""The wide term: one weight per task and known id, added to the logits.

Deep layers share what they learn among users and items, so the habit of one user ("always
bookmarks") takes them many rows to learn.  A weight of its own learns it from a few (the wide part
of Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, section 3.1, over single ids
instead of crossed features).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from multigate.model.backend import rows as some_rows
from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker.tables import Table, TablePart

Counts = Mapping[str, tuple[int, np.ndarray]]
"""Feature -> its number of codes that stand for no known id, and the training rows of each known
id, in the order of the vocabulary."""


class Wide(keras.layers.Layer):
    """Adds up the weights (T,) of a row's ids; a missing or unknown id adds 0.

    Args:
        counts: the features that have weights.
        tasks: T.
    """

    def __init__(self, counts: Counts, tasks: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.first = {name: unknown for name, (unknown, _) in counts.items()}
        """Code of each feature's first known id."""
        self.shared = None
        self.tables: dict[str, TablePart] = {}
        """By feature."""
        if counts:
            rows = {name: unknown + len(of_id) for name, (unknown, of_id) in counts.items()}
            self.shared = Table(rows, tasks, name="weights")
            self.tables = dict(self.shared.parts)
            # Per row; those of unknown ids are never read.  A variable: a constant of this size
            # would be copied into every graph.
            of_rows = [
                np.concatenate([np.ones(unknown), np.maximum(of_id, 1)])
                for unknown, of_id in counts.values()
            ]
            self._counts = self.add_weight(
                shape=(sum(rows.values()),),
                initializer=lambda *_, **__: np.concatenate(of_rows).astype(np.float32),
                trainable=False,
                name="counts",
            )
        self.tasks = tasks
        self.built = True

    def look_up(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """The weights (B, F, T) of B rows in F features, with one gather; 0 for unknown ids."""
        if self.shared is None:
            return keras.ops.zeros((1, 1, self.tasks))
        rows = self.shared.look_up([(name, encoded[name]) for name in self.tables])
        return keras.ops.stack(rows, axis=1) * self._known(encoded)[..., None]

    def call(self, encoded: Mapping[str, Tensor], weights: Tensor | None = None) -> Tensor:
        """What the ids of B rows add to the logits, (B, T).

        Args:
            encoded: arrays by feature.
            weights: what `look_up` found, if that is known already.
        """
        return keras.ops.sum(self.look_up(encoded) if weights is None else weights, axis=1)

    def penalty(self, encoded: Mapping[str, Tensor], weights: Tensor | None = None) -> Tensor:
        """Mean over B rows of the sum of z^2 / count over the row's weights z, a scalar.

        An id with `count` rows is met `count` times an epoch, so that its weights pay z^2 in all:
        the same prior for rare and for frequent ids.
        """
        ops = keras.ops
        if self.shared is None:
            return ops.zeros(())
        weights = self.look_up(encoded) if weights is None else weights
        places = ops.stack([encoded[n] + part.first for n, part in self.tables.items()], axis=1)
        counts = some_rows.gather(self._counts, places)  # (B, F)
        return ops.mean(ops.sum(ops.sum(ops.square(weights), axis=2) / counts, axis=1))

    def weights_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The tables (rows, T) of some features as they add to the logits: 0 for unknown ids."""
        found = {}
        for name in names:
            if name in self.tables:
                found[name] = self.tables[name].embeddings.numpy()
                found[name][: self.first[name]] = 0
        return found

    def _known(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """1 for the codes of known ids, else 0: (B, F)."""
        known = [encoded[name] >= self.first[name] for name in self.tables]
        return keras.ops.cast(keras.ops.stack(known, axis=1), "float32")
