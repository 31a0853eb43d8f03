"""Embedding tables: the owners of one width share one variable, and a batch gathers from it once.

Keras's `Embedding` was considered: one variable, one gather and one gradient for each owner, and
the gather reads the whole variable.  Keras-RS's `DistributedEmbedding` was considered: on CPUs and
GPUs it is made of the same layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from multigate.configs.sections.model import TrainConfig
from multigate.model.backend import rows as some_rows
from multigate.model.backend.rows import VariablePart
from multigate.model.gates.parts.base import Tensor, derive_seed

_CHUNK = 1 << 20  # rows that are initialised at once


def table_bytes(rows: int, width: int, options: TrainConfig) -> int:
    """Bytes that a table takes while it is trained.

    They are of its rows, their moments and averages, and what is counted for each row; twice,
    because a snapshot copies them.  Under `embeddings: dense` they are also of a gradient of all
    rows.
    """
    of_number = 4 + 2 * (2 if options.moments == "bfloat16" else 4)
    if options.ema is not None:
        of_number += 4
    if options.embeddings == "dense":
        return rows * width * (2 * of_number + 4)
    of_row = 4 if options.ema is None else 8
    return 2 * rows * (width * of_number + of_row)


class TablePart:
    """The rows of one owner; called with its codes, it returns their rows.

    Attributes:
        table: that holds the rows.
        embeddings: the rows (n, d), like a variable of their own.
        first: the table's row of code 0.
        output_dim: d.
    """

    def __init__(self, table: "Table", first: int, rows: int) -> None:
        self.table, self.first = table, first
        self.embeddings = VariablePart(table.variable, first, rows)
        self.output_dim = table.width

    def __call__(self, codes: Tensor) -> Tensor:
        """Rows (..., d) of codes (...)."""
        return some_rows.gather(self.table.variable, codes + self.first)


class Table(keras.layers.Layer):
    """One variable (N, d) with the rows of several owners, one after the other.

    Args:
        rows: number of rows by owner.
        width: d.
        seeds: of the initial rows by owner, uniform in [-0.05, 0.05); zeros where None.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        width: int,
        seeds: Mapping[str, int | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.variable = self.add_weight(
            shape=(sum(rows.values()), width), initializer="zeros", name="rows"
        )
        self.parts: dict[str, TablePart] = {}
        """By owner."""
        first = 0
        for owner, count in rows.items():
            self.parts[owner] = TablePart(self, first, count)
            if seeds is not None:
                self._initialise(first, count, seeds[owner])
            first += count
        self.built = True

    def look_up(self, codes: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
        """The rows of several features' codes, with one gather.

        Args:
            codes: owner and codes (B,) or (B, L) of each feature.

        Returns:
            (B, d) or (B, L, d) of each.
        """
        ops = keras.ops
        columns = [ids[:, None] if len(ids.shape) == 1 else ids for _, ids in codes]
        widths = [column.shape[1] for column in columns]
        first = np.repeat([self.parts[owner].first for owner, _ in codes], widths)  # (K,)
        joined = ops.concatenate(columns, axis=1) + first.astype(np.int32)
        found = some_rows.gather_batch(self.variable, joined)  # (B, K, d)
        ends = np.cumsum(widths)[:-1].tolist()
        parts = ops.split(found, ends, axis=1) if ends else [found]
        return [
            part[:, 0] if len(ids.shape) == 1 else part
            for part, (_, ids) in zip(parts, codes, strict=True)
        ]

    def _initialise(self, first: int, count: int, seed: int | None) -> None:
        """Draw an owner's rows, some at a time, so that no second table is in memory."""
        for start in range(0, count, _CHUNK):
            rows = min(_CHUNK, count - start)
            drawn = keras.initializers.RandomUniform(
                -0.05, 0.05, seed=derive_seed(seed, start) if start else seed
            )
            VariablePart(self.variable, first + start, rows).assign(
                keras.ops.convert_to_numpy(drawn((rows, self.width)))
            )
