"""Encoded features in a few large tensors: one for all ids, one for all numbers.

A served call is small, so that its time is the number of its operations: an operation on 20 columns
takes hardly longer than one on a single column.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)

Tensor = Any


class Block(NamedTuple):
    """Features that are encoded together, side by side.

    Attributes:
        names: F encoded names, see `model.data.encoding.Encoder`.
        values: (N, F, ...), in the order of `names`.
    """

    names: tuple[str, ...]
    values: Tensor


class Columns(Mapping[str, Tensor]):
    """Encoded features by name, and the blocks that they are columns of.

    Args:
        blocks: each name is in one of them.
        read: makes a block's values when they are first needed, of those given; so what is never
            needed is not in a graph's file.
    """

    def __init__(
        self, blocks: Iterable[Block], read: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._blocks = {block.names: block for block in blocks}
        self._read = read
        self._values: dict[tuple[str, ...], Tensor] = {}
        self._place = {
            name: (names, column) for names in self._blocks for column, name in enumerate(names)
        }

    def block(self, names: Sequence[str]) -> Tensor:
        """Values (N, F, ...) of the block that has exactly these names."""
        names = tuple(names)
        if names not in self._values:
            values = self._blocks[names].values
            self._values[names] = values if self._read is None else self._read(values)
        return self._values[names]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Columns":
        """The same names with other values, made when they are first needed."""
        return Columns([Block(names, self.block(names)) for names in self._blocks], function)

    def __getitem__(self, name: str) -> Tensor:
        names, column = self._place[name]
        return self.block(names)[:, column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


class Layout:
    """Which features of a side form which blocks.

    Attributes:
        codes: names of ids (N,), and of numbers in buckets.
        lists: names of lists and texts, by their L: those of one L form a block (N, F, L).
        lengths: `<list>__length` of the lists.
        numbers: names of numbers outside buckets, those with a logarithm first.
        logarithms: how many of them have one.
        present: `<number>__present` of the numbers with an indicator.
        vectors: names of vectors and their indicators; each is a block of its own.

    Args:
        contract: the features.
        names: those of the side.
    """

    def __init__(self, contract: Contract, names: Iterable[str]) -> None:
        self.codes: list[str] = []
        self.lists: dict[int, list[str]] = {}
        self.vectors: list[str] = []
        logarithms: list[str] = []
        others: list[str] = []
        present: list[str] = []
        for name in names:
            feature = contract.features[name]
            if isinstance(feature, IdListFeature | TextFeature):
                self.lists.setdefault(feature.as_list.max_length, []).append(name)
            elif isinstance(feature, IdFeature):
                self.codes.append(name)
            elif isinstance(feature, NumberFeature):
                if feature.scale == "buckets":
                    self.codes.append(name)
                else:
                    (logarithms if feature.transform == "log1p" else others).append(name)
                if feature.missing == "indicator":
                    present.append(name + PRESENT)
            elif isinstance(feature, VectorFeature):
                self.vectors.append(name)
                if feature.missing == "indicator":
                    self.vectors.append(name + PRESENT)
        self.lengths = [name + LENGTH for names in self.lists.values() for name in names]
        self.numbers = logarithms + others
        self.logarithms = len(logarithms)
        order = {name: place for place, name in enumerate(self.numbers)}
        self.present = sorted(
            present, key=lambda name: order.get(name.removesuffix(PRESENT), len(order))
        )

    def blocks(self) -> list[tuple[str, ...]]:
        """Names of each block; empty ones are left out."""
        groups = [
            self.codes,
            *self.lists.values(),
            self.lengths,
            self.numbers,
            self.present,
            *([name] for name in self.vectors),
        ]
        return [tuple(group) for group in groups if group]

    def pack(self, encoded: Mapping[str, np.ndarray]) -> Columns:
        """What `Encoder` gives, as arrays in the same blocks."""
        return Columns(
            Block(names, np.stack([encoded[name] for name in names], axis=1))
            for names in self.blocks()
        )


def side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    """F tensors (N, ...) as one (N, F, ...)."""
    return tf.expand_dims(tensors[0], 1) if len(tensors) == 1 else tf.stack(tensors, axis=1)


def join(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (N, F, ...) joined along F."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
