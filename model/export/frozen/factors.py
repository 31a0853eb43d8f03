"""The factor term as an exported graph computes it: a user's factors are looked up once."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import PRESENT, Contract
from multigate.model.export.frozen.columns import Columns
from multigate.model.export.frozen.weights import StoredAs, StoredMatrix
from multigate.model.ranker.factors.term import Pair, PairTables

Tensor = Any


class FrozenFactors:
    """Trained factors, for inference only.

    Args:
        pairs: of the trained ranker.
        contract: says which features are the item's.
        stored_as: how the file stores them.
    """

    def __init__(
        self, pairs: Mapping[Pair, PairTables], contract: Contract, stored_as: StoredAs = "float32"
    ) -> None:
        items = {name for name, _ in contract.of_side("item")}
        self._pairs = [
            (
                _Side(one, one in items, tables.first, tables.first_edges, stored_as),
                _Side(other, other in items, tables.second, tables.second_edges, stored_as),
                tables.placed(len(contract.tasks)),
            )
            for (one, other), tables in pairs.items()
        ]

    def __call__(
        self, users: Columns, items: Columns, of_rows: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """What factors add to the outputs, (N, T), or (1, T) where all rows have the same.

        Args:
            users: of the users and the context (M, ...).
            items: of the candidates (N, ...).
            of_rows: gives each candidate its user's (M, F) as (N, F), or as (1, F).
        """
        found = []
        with tf.name_scope("factors"):
            for one, other, placed in self._pairs:
                looked_up = [
                    side.look_up(items if side.of_item else users) for side in (one, other)
                ]
                if one.of_item == other.of_item:
                    effect = tf.matmul(looked_up[0] * looked_up[1], placed)
                    found.append(effect if one.of_item else of_rows(effect))
                    continue
                user, item = reversed(looked_up) if one.of_item else looked_up
                found.append(tf.matmul(of_rows(user) * item, placed))
            return sum(found[1:], found[0])


class _Side:
    """One feature of a pair.

    Attributes:
        of_item: whether it is the item's.
    """

    def __init__(
        self, name: str, of_item: bool, table: np.ndarray, edges: np.ndarray, stored_as: StoredAs
    ) -> None:
        self.of_item = of_item
        self._name, self._edges = name, edges.tolist()
        last = len(edges) + 1
        self._missing = last if len(edges) and len(table) > last else None
        self._table = StoredMatrix(table, stored_as, axis=1)

    def look_up(self, encoded: Columns) -> Tensor:
        """Factors (n, K * F) of encoded values (n,)."""
        values = encoded[self._name]
        if self._edges:
            values = tf.raw_ops.Bucketize(input=values, boundaries=self._edges)
        if self._missing is not None:
            known = encoded[self._name + PRESENT] > 0
            values = tf.where(known, values, self._missing)
        return self._table.take(values)
