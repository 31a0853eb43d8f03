"""Encoded features to the columns of the mixture's input, with one look-up per width of embedding.

`model.ranker.embedder.Embedder` computes the same part by part.  Here the columns of a side have an
order of their own (`FrozenEmbedder.columns`), so that features that are computed together stay
together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.configs.contract import LENGTH, PRESENT, IdListFeature
from multigate.model.export.frozen.columns import Columns, Layout, join
from multigate.model.export.frozen.trained import embedding_tables, rescaled
from multigate.model.export.frozen.weights import StoredAs, StoredMatrix
from multigate.model.ranker.embedder import Embedder
from multigate.model.ranker.wide import Wide

Tensor = Any
_UNKNOWN = -(1 << 30)
"""Place of an id that is not known: a sum of two such places is still an int32 below 0."""


class StackedTable:
    """Tables of one width, one below the other.

    Args:
        tables: rows (R, d) by owner.
        stored_as: how the file stores them.
    """

    def __init__(self, tables: Mapping[str, np.ndarray], stored_as: StoredAs = "float32") -> None:
        ends = np.cumsum([len(rows) for rows in tables.values()])
        self._first = {
            owner: int(end) - len(rows)
            for (owner, rows), end in zip(tables.items(), ends, strict=True)
        }
        self._rows = StoredMatrix(np.concatenate([*tables.values()]), stored_as, axis=1)

    def take(self, owners: Sequence[str], codes: Tensor) -> Tensor:
        """Rows (N, F, ..., d) of codes (N, F, ...), those of feature f in the table of owner f."""
        first = np.array([self._first[owner] for owner in owners], np.int32)
        if first.any():
            codes += first.reshape([len(owners)] + [1] * (len(codes.shape) - 2))
        return self._rows.take(codes)

    def take_one(self, owner: str, codes: Tensor) -> Tensor:
        """Rows (..., d) of codes (...) in the table of one owner."""
        return self._rows.take(codes + self._first[owner] if self._first[owner] else codes)


class FrozenEmbedder:
    """A trained embedder, for inference only.

    Attributes:
        tables: functions that look up codes, by owner, as `Embedder.call` takes them.
        columns: (d,) by side, the column of the embedder's output for each column of a call's.

    Args:
        embedder: the trained one.
        layouts: the blocks of encoded features, by side: `user`, with the context, and `item`.
        stored_as: how the file stores the tables.
    """

    def __init__(
        self, embedder: Embedder, layouts: Mapping[str, Layout], stored_as: StoredAs = "float32"
    ) -> None:
        self._embedder = embedder
        rows = embedding_tables(embedder)
        self._width_of = {owner: table.shape[1] for owner, table in rows.items()}
        self._stacks = {
            width: StackedTable({o: t for o, t in rows.items() if t.shape[1] == width}, stored_as)
            for width in dict.fromkeys(self._width_of.values())
        }
        self.tables: dict[str, Callable[[Tensor], Tensor]] = {
            owner: self._look_up(owner) for owner in rows
        }
        ends = np.cumsum([*embedder.widths.values()])
        self._start = {
            part: int(end) - width
            for (part, width), end in zip(embedder.widths.items(), ends, strict=True)
        }
        self._rescaled = rescaled(embedder)
        self._steps: dict[str, list[Callable[[Columns], Tensor]]] = {}
        self.columns: dict[str, np.ndarray] = {}
        for side, layout in layouts.items():
            steps = self._plan(layout, embedder.parts_of("item" if side == "item" else "user"))
            self._steps[side] = [step for _, step in steps]
            columns = [column for found, _ in steps for column in found]
            self.columns[side] = np.array(columns, np.int64)

    def __call__(self, side: str, encoded: Columns) -> Tensor:
        """Columns (N, d) of a side."""
        with tf.name_scope(f"embed_{side}"):
            return join([step(encoded) for step in self._steps[side]])

    def _look_up(self, owner: str) -> Callable[[Tensor], Tensor]:
        stack = self._stacks[self._width_of[owner]]
        return lambda codes: stack.take_one(owner, codes)

    def _plan(
        self, layout: Layout, parts: Sequence[str]
    ) -> list[tuple[list[int], Callable[[Columns], Tensor]]]:
        """The steps that give the columns of some parts, each with the columns that it gives."""
        embedder = self._embedder
        steps: list[tuple[list[int], Callable[[Columns], Tensor]]] = []
        for width in self._stacks:
            names = [n for n in layout.codes if self._width_of[embedder.owners[n]] == width]
            if names:
                columns = [c for n in names for c in self._span(n, width)]
                steps.append((columns, self._ids(layout, names, width)))
        left = [name for name in parts if name in layout.vectors]
        for block in layout.lists.values():
            pooled: dict[tuple[int, str], list[str]] = {}
            for name in block:
                feature: Any = embedder.features[name]
                if name not in parts:
                    continue  # attention, or an entry of a history
                if name in embedder.sequences or name in embedder.entries:
                    left.append(name)
                else:
                    width = self._width_of[embedder.owners[name]]
                    pooled.setdefault((width, feature.pooling), []).append(name)
            for (width, pooling), names in pooled.items():
                columns = [c for n in names for c in self._span(n, width)]
                steps.append((columns, self._pooled(block, names, width, pooling)))
        if embedder.lists.length:
            lengths = {n: self._length_column(n.removesuffix(LENGTH)) for n in layout.lengths}
            lengths = {
                n: c for n, c in lengths.items() if c >= 0 and n.removesuffix(LENGTH) not in left
            }
            steps += _pick(layout.lengths, lengths)
        steps += self._numbers(layout)
        indicators = {
            name: self._start[number] + embedder.widths[number] - 1
            for name in layout.present
            for number in [name.removesuffix(PRESENT)]
        }
        steps += _pick(layout.present, indicators)
        if left:
            left = [name for name in embedder.widths if name in left]
            columns = [c for name in left for c in self._span(name, embedder.widths[name])]
            steps.append(
                (columns, lambda encoded: embedder(dict(encoded), names=left, tables=self.tables))
            )
        return steps

    def _span(self, part: str, width: int) -> range:
        """The first columns of a part."""
        return range(self._start[part], self._start[part] + width)

    def _length_column(self, name: str) -> int:
        """The column of a list's length; -1 if it has none."""
        if name + LENGTH in self._start:
            return self._start[name + LENGTH]
        feature = self._embedder.features[name]
        if name not in self._start or (
            isinstance(feature, IdListFeature) and feature.pooling == "attention"
        ):
            return -1
        return self._start[name] + self._embedder.widths[name] - 1

    def _ids(self, layout: Layout, names: list[str], width: int) -> Callable[[Columns], Tensor]:
        """Embeddings of ids, (N, F * d)."""
        owners = [self._embedder.owners[name] for name in names]

        def step(encoded: Columns) -> Tensor:
            codes = _some(encoded, layout.codes, names)
            return tf.reshape(self._stacks[width].take(owners, codes), [-1, len(names) * width])

        return step

    def _pooled(
        self, block: list[str], names: list[str], width: int, pooling: str
    ) -> Callable[[Columns], Tensor]:
        """Pooled embeddings of lists, (N, F * d)."""
        owners = [self._embedder.owners[name] for name in names]

        def step(encoded: Columns) -> Tensor:
            codes = _some(encoded, block, names)  # (N, F, L)
            rows = self._stacks[width].take(owners, codes)  # (N, F, L, d)
            real = tf.cast(codes != 0, tf.float32)
            if pooling == "mean":
                real /= tf.maximum(tf.reduce_sum(real, axis=2, keepdims=True), 1.0)
            pooled = tf.matmul(real[:, :, None, :], rows)  # (N, F, 1, d)
            return tf.reshape(pooled, [-1, len(names) * width])

        return step

    def _numbers(self, layout: Layout) -> list[tuple[list[int], Callable[[Columns], Tensor]]]:
        """Numbers, rescaled where a warm start asks for it, and clipped."""
        if not layout.numbers:
            return []
        scale, shift = np.ones(len(layout.numbers)), np.zeros(len(layout.numbers))
        for place, name in enumerate(layout.numbers):
            if name in self._rescaled:
                (scale[place],), (shift[place],) = self._rescaled[name]
        shifted = [name for place, name in enumerate(layout.numbers) if shift[place]]
        clips = self._embedder.clips
        most = np.array([clips.get(name, np.inf) for name in layout.numbers], np.float32)

        def step(encoded: Columns) -> Tensor:
            values = encoded.block(layout.numbers)
            if (scale != 1).any():
                values *= scale.astype(np.float32)
            if shifted:
                ones = tf.ones_like(values[:, 0])
                known = [encoded.get(n + PRESENT, ones) for n in layout.numbers]
                values += shift.astype(np.float32) * tf.stack(known, axis=1)
            if np.isfinite(most).any():
                values = tf.clip_by_value(values, -most, most)
            return values

        return [([self._start[name] for name in layout.numbers], step)]


class FrozenWide:
    """The wide term: one weight per task and known id or pair of ids, for inference only.

    Args:
        tables: weights (R, T) by feature and cross.
        layouts: as in `FrozenEmbedder`.
        wide: the trained term, which knows the crosses' codes.
    """

    def __init__(
        self, tables: Mapping[str, np.ndarray], layouts: Mapping[str, Layout], wide: Wide
    ) -> None:
        self._table = StackedTable(tables)
        self._layouts = layouts
        self._names = {
            side: [name for name in layout.codes if name in tables]
            for side, layout in layouts.items()
        }
        self._crosses, self._sizes, self._first = dict(wide.crosses), wide.sizes, wide.first

    def __call__(self, side: str, encoded: Columns) -> Tensor | None:
        """What the ids of a side add to the towers' outputs, (N, T); None if there are none."""
        names = self._names[side]
        if not names:
            return None
        with tf.name_scope(f"wide_{side}"):
            codes = _some(encoded, self._layouts[side].codes, names)
            return tf.reduce_sum(self._table.take(names, codes), axis=1)

    def crosses(
        self, users: Columns, items: Columns, of_rows: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """What pairs of a user's and an item's id add, (N, T); None if there are none.

        Args:
            users: of the users and the context (M, ...).
            items: of the candidates (N, ...).
            of_rows: gives each candidate its user's (M, F) as (N, F), or as (1, F).
        """
        if not self._crosses:
            return None
        with tf.name_scope("wide_crosses"):
            pairs = list(self._crosses.values())
            first = self._places(users, "user", [one for one, _ in pairs])
            second = self._places(items, "item", [other for _, other in pairs])
            sizes = np.array([self._sizes[other] for _, other in pairs], np.int32)
            places = of_rows(tf.where(first < 0, _UNKNOWN, first * sizes)) + second
            return tf.reduce_sum(
                self._table.take(list(self._crosses), tf.maximum(places + 1, 0)), axis=1
            )

    def _places(self, encoded: Columns, side: str, names: list[str]) -> Tensor:
        """Places (N, F) in their vocabularies of known ids; far below 0 for others."""
        codes = _some(encoded, self._layouts[side].codes, names)
        places = codes - np.array([self._first[name] for name in names], np.int32)
        return tf.where(places < 0, _UNKNOWN, places)


def _some(encoded: Columns, block: Sequence[str], names: Sequence[str]) -> Tensor:
    """Some columns of a block."""
    values = encoded.block(block)
    if list(names) == list(block):
        return values
    return tf.gather(values, [list(block).index(name) for name in names], axis=1)


def _pick(
    block: Sequence[str], columns: Mapping[str, int]
) -> list[tuple[list[int], Callable[[Columns], Tensor]]]:
    """A step that takes some columns of a block of numbers as they are."""
    if not columns:
        return []
    return [([*columns.values()], lambda encoded: _some(encoded, block, [*columns]))]
