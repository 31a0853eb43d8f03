"""The factor term: what two values make together beyond what layers know, added to the logits.

What a listener makes of a track, or a category of a price, is a table with a number for each two
values.  Layers of relu units learn such tables slowly, and know the rows of a small log by heart
before that; trees find those of few values, and factorisations those of users and items.  So a
training factorises, in the end, what its layers leave unexplained (`model.ranker.factors.newton`),
and keeps the factors of the pairs and tasks that they help on validation rows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from multigate.configs.contract import PRESENT
from multigate.model.backend import rows as some_rows
from multigate.model.gates.parts.base import Tensor

Pair = tuple[str, str]
"""Two features: the user, the item, and the others in the contract's order."""


class PairTables(NamedTuple):
    """Factors of two features' values by code, for K of T tasks; 0 for missing and unknown ids.

    Attributes:
        first: (R, K * F) float32 of the first feature's codes, task by task.
        second: (S, K * F) of the second's.
        tasks: (K,) int32 the tasks' places.
        first_edges: (E,) float32, of a number: its code is how many of them it is not below, of
            E + 1, and E + 1 where it is missing, if the table has such a row; none of an id.
        second_edges: the same of the second feature.
    """

    first: np.ndarray
    second: np.ndarray
    tasks: np.ndarray
    first_edges: np.ndarray
    second_edges: np.ndarray

    def placed(self, count: int) -> np.ndarray:
        """(K * F, T) 0 and 1: adds up each task's products, in the place of T = `count`."""
        width = self.first.shape[1] // len(self.tasks)
        return np.repeat(np.eye(count, dtype=np.float32)[self.tasks], width, axis=0)


class _Pairs:
    """What the layer has by pair; hidden from Keras, which wants text as keys."""

    def __init__(self) -> None:
        self.placed: dict[Pair, np.ndarray] = {}
        self.variables: dict[Pair, PairTables] = {}


class Factors(keras.layers.Layer):
    """Adds up u_f v_f over the F factors of a row's two values, for each pair and task with some.

    No step of training changes them.

    Attributes:
        pairs: the variables of each pair.

    Args:
        pairs: tables of each pair.
        count: T, of all tasks.
    """

    def __init__(self, pairs: Mapping[Pair, PairTables], count: int, **kwargs: Any) -> None:
        super().__init__(**{"dtype": "float32", "trainable": False} | kwargs)
        self._of = _Pairs()
        for pair, tables in pairs.items():
            self._of.placed[pair] = tables.placed(count)
            self._of.variables[pair] = PairTables(*(self._variable(values) for values in tables))
        self.built = True

    @property
    def pairs(self) -> dict[Pair, PairTables]:
        """See above."""
        return self._of.variables

    def call(self, encoded: Mapping[str, Tensor]) -> Tensor:
        """What factors add to the outputs of B rows, (B, T)."""
        ops = keras.ops
        found = []
        for (one, other), tables in self.pairs.items():
            first = _look_up(encoded, one, tables.first, tables.first_edges)
            second = _look_up(encoded, other, tables.second, tables.second_edges)
            found.append(ops.matmul(first * second, self._of.placed[one, other]))
        return sum(found[1:], found[0])

    def _variable(self, values: np.ndarray) -> Any:
        return self.add_weight(
            shape=values.shape,
            dtype=str(values.dtype),
            initializer=lambda *_, **__: values,
            name="factors",
        )


def _look_up(encoded: Mapping[str, Tensor], name: str, table: Any, edges: Any) -> Tensor:
    """A pair's table at a feature's encoded values, (B, K * F)."""
    ops, codes, bins = keras.ops, encoded[name], edges.shape[0]
    if bins:
        codes = ops.sum(ops.cast(codes[:, None] >= edges, "int32"), axis=1)
    if bins and table.shape[0] == bins + 2:
        codes = ops.where(encoded[name + PRESENT] > 0, codes, bins + 1)
    return some_rows.gather(table, codes)
