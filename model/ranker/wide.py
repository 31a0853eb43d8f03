"""The wide term: one weight per task and known id, or pair of ids, added to the logits.

Deep layers share what they learn among users and items, so the habit of one user ("always
bookmarks") takes them many rows to learn.  A weight of its own learns it from a few (the wide part
of Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, section 3.1).  The same holds
for what users of a country do with a topic: relu layers learn a product of two features slowly,
and few rows teach them little of it before they know the rows by heart.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.sections.model import Wide as WideConfig
from multigate.model.backend import rows as some_rows
from multigate.model.gates.parts.base import Tensor
from multigate.model.ranker.tables import Table, TablePart

Counts = Mapping[str, tuple[int, np.ndarray]]
"""Feature -> its number of codes that stand for no known id, and the training rows of each known
id, in the order of the vocabulary."""
Crosses = Mapping[str, tuple[str, str]]
"""Name of a cross -> its two features.  A cross has the codes 1 + place of the first's known id *
known ids of the second + place of the second's, and 0 where one of the two is not known."""
CROSSED = " * "
"""Between the names of two features in that of their cross."""


class Wide(keras.layers.Layer):
    """Adds up the weights (T,) of a row's ids; a missing or unknown id adds 0.

    Args:
        counts: the features that have weights.
        tasks: T.
        crosses: pairs of them that have weights as well.
        rows: of the training split, from which the pairs' counts are made.
    """

    def __init__(
        self,
        counts: Counts,
        tasks: int,
        crosses: Crosses | None = None,
        rows: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.crosses = dict(crosses or {})
        self.sizes = {name: len(of_id) for name, (_, of_id) in counts.items()}
        """Known ids by feature."""
        counts = {**counts, **_cross_counts(counts, self.crosses, rows)}
        self.first = {name: unknown for name, (unknown, _) in counts.items()}
        """Code of each feature's first known id."""
        self.shared = None
        self.tables: dict[str, TablePart] = {}
        """By feature, and by cross."""
        if counts:
            lengths = {name: unknown + len(of_id) for name, (unknown, of_id) in counts.items()}
            self.shared = Table(lengths, tasks, name="weights")
            self.tables = dict(self.shared.parts)
            # Per row; those of unknown ids are never read.  A variable: a constant of this size
            # would be copied into every graph.
            of_rows = [
                np.concatenate([np.ones(unknown), np.maximum(of_id, 1)])
                for unknown, of_id in counts.values()
            ]
            self._counts = self.add_weight(
                shape=(sum(lengths.values()),),
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
        encoded = self.codes(encoded)
        rows = self.shared.look_up([(name, encoded[name]) for name in self.tables])
        return keras.ops.stack(rows, axis=1) * self._known(encoded, self.tables)[..., None]

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
        counts = self._counts_of(self.codes(encoded), self.tables)
        return ops.mean(ops.sum(ops.sum(ops.square(weights), axis=2) / counts, axis=1))

    def codes(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Codes (B,) of the features and crosses that have weights."""
        ops = keras.ops
        found = {name: encoded[name] for name in self.tables if name not in self.crosses}
        for cross, (one, other) in self.crosses.items():
            first, second = found[one] - self.first[one], found[other] - self.first[other]
            known = ops.logical_and(first >= 0, second >= 0)
            found[cross] = ops.where(known, 1 + first * self.sizes[other] + second, 0)
        return found

    def embedding_penalty(self, encoded: Mapping[str, Tensor], x: Mapping[str, Tensor]) -> Tensor:
        """Mean over B rows of the sum of |e|^2 / count over the embeddings of known ids, a scalar.

        Args:
            encoded: arrays by feature.
            x: embeddings (B, d) of those features that have weights here.
        """
        ops = keras.ops
        if not x:
            return ops.zeros(())
        squares = ops.stack([ops.sum(ops.square(one), axis=1) for one in x.values()], axis=1)
        paid = self._known(encoded, x) * squares / self._counts_of(encoded, x)
        return ops.mean(ops.sum(paid, axis=1))

    def weights_of(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The tables (rows, T) of some features as they add to the logits: 0 for unknown ids."""
        found = {}
        for name in names:
            if name in self.tables:
                found[name] = self.tables[name].embeddings.numpy()
                found[name][: self.first[name]] = 0
        return found

    def _known(self, encoded: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
        """1 for the codes of known ids, else 0: (B, F)."""
        known = [encoded[name] >= self.first[name] for name in names]
        return keras.ops.cast(keras.ops.stack(known, axis=1), "float32")

    def _counts_of(self, encoded: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
        """Training rows of the codes' ids, (B, F); 1 for unknown ids."""
        places = [encoded[name] + self.tables[name].first for name in names]
        return some_rows.gather(self._counts, keras.ops.stack(places, axis=1))


def crosses_of(contract: Contract, counts: Counts, options: WideConfig) -> Crosses:
    """The pairs of features that have weights: what one user's candidates differ in.

    Args:
        contract: the features.
        counts: those that have weights.
        options: which pairs may have weights, and how many pairs of known ids all may have
            together.  Named pairs come in their order, of all pairs the smallest first.
    """
    users, items = (
        [name for name, _ in contract.of_side(*sides) if name in counts]
        for sides in (("user", "context"), ("item",))
    )
    sizes = {
        (one, other): len(counts[one][1]) * len(counts[other][1])
        for one in users
        for other in items
        if options.pairs is None or (one, other) in options.pairs
    }
    most = options.crosses
    found: dict[str, tuple[str, str]] = {}
    place = sizes.__getitem__ if options.pairs is None else options.pairs.index
    for one, other in sorted(sizes, key=place):
        size = sizes[one, other]
        if 0 < size <= most:
            most -= size
            found[one + CROSSED + other] = (one, other)
    return found


def _cross_counts(counts: Counts, crosses: Crosses, rows: int) -> Counts:
    """The rows that each pair would have if its two features were independent of one another."""
    found = {}
    for cross, (one, other) in crosses.items():
        first, second = counts[one][1].astype(np.float64), counts[other][1].astype(np.float64)
        most = max(rows, first.sum(), second.sum(), 1)
        found[cross] = (1, np.outer(first, second).ravel() / most)
    return found
