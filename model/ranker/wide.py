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

from multigate.model.gates.parts.base import Tensor

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
        self.tables = {
            name: keras.layers.Embedding(
                unknown + len(of_id), tasks, embeddings_initializer="zeros", name=f"wide_{name}"
            )
            for name, (unknown, of_id) in counts.items()
        }
        for table in self.tables.values():
            table.build()
        # Per code; codes of unknown ids are never read.
        self._counts = {
            name: np.concatenate([np.ones(unknown), np.maximum(of_id, 1)]).astype(np.float32)
            for name, (unknown, of_id) in counts.items()
        }
        self.tasks = tasks
        self.built = True

    def call(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """What the ids of B rows add to the logits, (B, T)."""
        total = keras.ops.zeros((1, self.tasks))
        for name, table in self.tables.items():
            total = total + table(encoded[name]) * self._known(name, encoded[name])
        return total

    def penalty(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """Mean over B rows of the sum of z^2 / count over the row's weights z, a scalar.

        An id with `count` rows is met `count` times an epoch, so that its weights pay z^2 in all:
        the same prior for rare and for frequent ids.
        """
        ops = keras.ops
        total = ops.zeros(())
        for name, table in self.tables.items():
            codes = encoded[name]
            squares = ops.square(table(codes)) * self._known(name, codes)  # (B, T)
            of_row = ops.sum(squares, axis=1) / ops.take(self._counts[name], codes)
            total = total + ops.mean(of_row)
        return total

    def weights_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The tables (rows, T) of some features as they add to the logits: 0 for unknown ids."""
        found = {}
        for name in names:
            if name in self.tables:
                found[name] = np.array(keras.ops.convert_to_numpy(self.tables[name].embeddings))
                found[name][: self.first[name]] = 0
        return found

    def _known(self, name: str, codes: Tensor) -> Tensor:
        """1 for the codes (B,) of known ids, else 0: (B, 1)."""
        return keras.ops.cast(codes >= self.first[name], "float32")[:, None]
