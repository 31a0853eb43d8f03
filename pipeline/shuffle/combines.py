"""Beam at the seam: the parcels' coder, and combines that are exact in any order of merging."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from multigate.pipeline.core.counts import add_counts
from multigate.pipeline.core.runner import import_beam
from multigate.pipeline.shuffle.parcel import Parcel

import_beam()
import apache_beam as beam  # noqa: E402

_TOGETHER = 8  # tables that are added up at a time, once there are twice as many


class ParcelCoder(beam.coders.Coder):
    """Parcels as bytes; see `Parcel.encode`."""

    def encode(self, value: Parcel) -> bytes:
        """The bytes of a parcel."""
        return value.encode()

    def decode(self, encoded: bytes) -> Parcel:
        """The parcel of some bytes."""
        return Parcel.decode(encoded)

    def is_deterministic(self) -> bool:
        """Equal parcels have equal bytes."""
        return True

    def to_type_hint(self) -> type:
        """What it encodes."""
        return Parcel


beam.coders.registry.register_coder(Parcel, ParcelCoder)


class AddCounts(beam.CombineFn):
    """Adds up tables of counts, see `add_counts`; None if there are none."""

    def create_accumulator(self) -> list[pl.DataFrame]:
        """No tables yet."""
        return []

    def add_input(self, accumulator: list[pl.DataFrame], table: pl.DataFrame | None) -> Any:
        """Take a table; None counts nothing."""
        return accumulator if table is None else self.merge_accumulators([accumulator, [table]])

    def merge_accumulators(self, accumulators: Iterable[list[pl.DataFrame]]) -> Any:
        """Take the tables of all.

        The smallest are added up where there are many. Ids that each table has alone, such as
        users, are so sorted two or three times, and the largest tables only at the end, when
        nothing else takes memory.
        """
        tables = sorted((one for accumulator in accumulators for one in accumulator), key=len)
        while len(tables) >= 2 * _TOGETHER:
            some = add_counts(tables[:_TOGETHER])
            tables = sorted([some, *tables[_TOGETHER:]], key=len)
        return tables

    def extract_output(self, accumulator: list[pl.DataFrame]) -> pl.DataFrame | None:
        """Add up what is left."""
        return add_counts(accumulator) if accumulator else None


class Merge(beam.CombineFn):
    """Merges values with a plain function of two that is associative and commutative.

    Args:
        function: such as `measure.add`.
        nothing: makes the value that changes no other.
    """

    def __init__(self, function: Any, nothing: Any) -> None:
        self._function, self._nothing = function, nothing

    def create_accumulator(self) -> Any:
        """Nothing."""
        return self._nothing()

    def add_input(self, accumulator: Any, value: Any) -> Any:
        """Merge one value."""
        return self._function(accumulator, value)

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Merge several."""
        merged = self._nothing()
        for one in accumulators:
            merged = self._function(merged, one)
        return merged

    def extract_output(self, accumulator: Any) -> Any:
        """All of them together."""
        return accumulator
