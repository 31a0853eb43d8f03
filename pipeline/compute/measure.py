"""Statistics of the training split, independent of the order in which parts are merged.

Sums are exact integers and quantiles come from a fixed grid, so that the numbers are the same to
the last bit however Beam bundles the rows. Sketches of libraries (t-digest, KLL of DataSketches)
were considered: their results depend on the order in which parts are merged.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs.contract import Contract, NumberFeature, VectorFeature
from multigate.configs.files import LABEL
from multigate.configs.statistics import (
    NumberStatistics,
    Statistics,
    TaskStatistics,
    VectorStatistics,
)

_FLOOR = 1200  # doubles are whole multiples of 2**-1074: sums are kept as multiples of 2**-1200
_CELL = 12  # bits of a float32 that a cell of the grid leaves out: 11 bits of mantissa remain


@dataclass
class Moments:
    """Of some float32 numbers: how many, their exact sum and sum of squares, and their grid.

    `total` and `squares` count multiples of 2**-1200. `cells` counts numbers by cell.
    """

    count: int = 0
    missing: int = 0
    total: int = 0
    squares: int = 0
    cells: dict[int, int] = field(default_factory=dict)

    def __add__(self, other: "Moments") -> "Moments":
        cells = dict(self.cells)
        for cell, count in other.cells.items():
            cells[cell] = cells.get(cell, 0) + count
        return Moments(
            self.count + other.count,
            self.missing + other.missing,
            self.total + other.total,
            self.squares + other.squares,
            cells,
        )

    @property
    def mean(self) -> float:
        """The mean of the numbers; 0 if there are none."""
        return float(Fraction(self.total, self.count << _FLOOR)) if self.count else 0.0

    @property
    def std(self) -> float:
        """Population standard deviation; 1 where it would be 0."""
        if not self.count:
            return 1.0
        variance = Fraction(self.squares, self.count << _FLOOR)
        variance -= Fraction(self.total, self.count << _FLOOR) ** 2
        return math.sqrt(variance) or 1.0

    def quantiles(self, buckets: int) -> tuple[float, ...]:
        """Inner edges of `buckets` equally full buckets.

        Edge j is the lower end of the cell of the number of rank j * count / buckets, so that the
        numbers below it are at most that many; edges that coincide are one, and none has nothing
        below it. Whole numbers up to 4096 are their cell's lower end.
        """
        ordered = sorted(self.cells.items())
        reached = np.cumsum([count for _, count in ordered])
        edges = []
        for j in range(1, buckets):
            at = int(np.searchsorted(reached, j * self.count // buckets, side="right"))
            if 0 < at < len(ordered):
                edges.append(_lower_end(ordered[at][0]))
        return tuple(sorted(set(edges)))


def moments(values: Any, *, log: bool, grid: bool = False) -> Moments:
    """Measure a column.

    Args:
        values: (B,) numbers, null where missing.
        log: whether to take log(1 + max(x, 0)) first.
        grid: whether to count cells as well.
    """
    present = values.drop_nulls().cast(pl.Float64).to_numpy()
    if log:
        present = np.log1p(np.maximum(present, 0))
    narrow = present.astype(np.float32)
    wide = narrow.astype(np.float64)  # the square of a float32 is exact in a double
    cells = {}
    if grid:
        keys, counts = np.unique(_ordered(narrow) >> _CELL, return_counts=True)
        cells = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    missing = len(values) - len(present)
    return Moments(len(present), missing, _exact_sum(wide), _exact_sum(wide * wide), cells)


def _exact_sum(values: NDArray[np.float64]) -> int:
    """Exact sum in multiples of 2**-1200: mantissas are added up by exponent, as integers."""
    mantissas, exponents = np.frexp(values)
    whole = (mantissas * 2.0**53).astype(np.int64)
    total = 0
    for exponent in np.unique(exponents).tolist():
        same = whole[exponents == exponent]
        # Two halves, so that 2**36 rows cannot overflow.
        high, low = int((same >> 26).sum()), int((same & ((1 << 26) - 1)).sum())
        total += ((high << 26) + low) << (exponent - 53 + _FLOOR)
    return total


def _ordered(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Integers in the order of the floats: the bits, turned over for negative numbers."""
    bits = (values + np.float32(0)).view(np.int32)  # -0 becomes 0
    return np.where(bits >= 0, bits, bits ^ np.int32(0x7FFFFFFF))


def _lower_end(cell: int) -> float:
    ordered = np.int32(cell << _CELL)
    bits = ordered if ordered >= 0 else ordered ^ np.int32(0x7FFFFFFF)
    return float(np.array([bits], np.int32).view(np.float32)[0])


def measure(training: pl.DataFrame, contract: Contract) -> dict[str, Moments]:
    """Measure number features and labels of a part of the training split.

    Args:
        training: examples, sampled negatives included: what the model will see.
        contract: the features and tasks.

    Returns:
        By column of the examples.
    """
    found = {}
    for name, feature in contract.features.items():
        if isinstance(feature, NumberFeature):
            log, grid = feature.transform == "log1p", feature.scale == "buckets"
            found[name] = moments(training[name], log=log, grid=grid)
        elif isinstance(feature, VectorFeature) and feature.scale == "standardise":
            given = training[name].drop_nulls()
            values = given.explode().to_numpy().reshape(len(given), feature.size)
            for place in range(feature.size):
                measured = moments(pl.Series(values[:, place]), log=False)
                measured.missing = len(training) - len(given)
                found[_place(name, place)] = measured
    for name, task in contract.tasks.items():
        found[LABEL + name] = moments(training[LABEL + name], log=task.transform == "log1p")
    return found


def _place(name: str, place: int) -> str:
    """The column of one place of a vector."""
    return f"{name}/{place}"


def add(left: dict[str, Moments], right: dict[str, Moments]) -> dict[str, Moments]:
    """Merge the measurements of two parts; either may be empty."""
    return {
        name: left[name] + right[name] if name in left and name in right else found
        for name, found in (left | right).items()
    }


def statistics(
    found: dict[str, Moments],
    contract: Contract,
    rows: dict[str, int],
    kept: float,
    priors: dict[str, float],
) -> Statistics:
    """Turn merged measurements into what the model reads; see `Statistics` for the last two."""
    numbers, vectors = {}, {}
    for name, feature in contract.features.items():
        if isinstance(feature, NumberFeature):
            m = found[name]
            edges = m.quantiles(feature.buckets) if feature.scale == "buckets" else ()
            numbers[name] = NumberStatistics(
                count=m.count, missing=m.missing, mean=m.mean, std=m.std, boundaries=edges
            )
        elif isinstance(feature, VectorFeature) and feature.scale == "standardise":
            places = [found[_place(name, place)] for place in range(feature.size)]
            vectors[name] = VectorStatistics(
                count=places[0].count,
                missing=places[0].missing,
                mean=tuple(m.mean for m in places),
                std=tuple(m.std for m in places),
            )
    tasks = {}
    for name in contract.tasks:
        m = found[LABEL + name]
        tasks[name] = TaskStatistics(count=m.count, masked=m.missing, mean=m.mean, std=m.std)
    return Statistics(
        features=numbers,
        tasks=tasks,
        rows=rows,
        negatives_kept=kept,
        vectors=vectors,
        priors=priors,
    )
