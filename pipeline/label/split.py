"""Splits impressions into training, validation and test."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, SPLITS, TIME
from multigate.configs.sections.pipeline import Split, TimeSplit
from multigate.pipeline.core.hashing import Hashes, combine, hash_column
from multigate.pipeline.label.labels import open_at, waits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CELL = 1 << 24  # microseconds
_SALT = 0x5350_4C49_54  # keeps the split's draws apart from those of the negatives


def by_shares(split: Split) -> bool:
    """Whether the split is by shares of time, whose boundaries the impressions' times decide."""
    return isinstance(split, TimeSplit) and isinstance(split.validation, float)


def instants(split: Split) -> tuple[datetime, datetime] | None:
    """When validation and test begin, if the configuration says it; otherwise None."""
    if not isinstance(split, TimeSplit):
        return None
    validation, test = split.validation, split.test
    if isinstance(validation, datetime) or isinstance(test, datetime):
        # The configuration takes two instants or two shares.
        return _utc(validation), _utc(test)
    return None


@dataclass(frozen=True)
class Cells:
    """The two cells of time in which validation and test begin, by shares of the impressions."""

    numbers: tuple[int, int]
    ranks: tuple[int, int]
    """Which impression of its cell, in order of time from 0, is the first of the split."""


def count_cells(times: pl.Series) -> pl.DataFrame:
    """How many of these times are in each cell of 2**24 microseconds (16.8 seconds)."""
    cells = (times.drop_nulls().to_physical() // _CELL).alias("cell")
    return cells.value_counts(sort=False).with_columns(pl.col("count").cast(pl.Int64))


def find_cells(split: Split, counts: pl.DataFrame | None) -> Cells | None:
    """Find the cells in which the splits begin.

    Args:
        split: by shares of time.
        counts: what `count_cells` found, added up over all impressions.

    Returns:
        None of no impressions.
    """
    if counts is None or not len(counts):
        return None
    assert isinstance(split, TimeSplit)
    validation, test = split.validation, split.test
    assert isinstance(validation, float)
    assert isinstance(test, float)
    ordered = counts.sort("cell")
    reached = ordered["count"].cum_sum().to_numpy()
    total = int(reached[-1])
    found = []
    for rank in (total - round((validation + test) * total), total - round(test * total)):
        last = min(rank, total - 1)  # shares that round to nothing have the last instant
        at = int(np.searchsorted(reached, last, side="right"))
        found.append((int(ordered["cell"][at]), last - int(reached[at] - ordered["count"][at])))
    (one, first), (two, second) = found
    return Cells((one, two), (first, second))


def count_instants(times: pl.Series, cells: Cells) -> pl.DataFrame:
    """How many of these times there are at each instant of the two cells, in microseconds."""
    numbers = times.drop_nulls().to_physical().alias("time")
    inside = numbers.filter((numbers // _CELL).is_in(list(cells.numbers)))
    return inside.value_counts(sort=False).with_columns(pl.col("count").cast(pl.Int64))


def boundaries(cells: Cells, counts: pl.DataFrame) -> tuple[datetime, datetime]:
    """Instants at which validation and test begin.

    Args:
        cells: what `find_cells` found.
        counts: what `count_instants` found, added up over all impressions.

    Returns:
        The time of the impression at each split's rank: impressions of the same time are never
        torn apart, the later split gets them all.
    """
    found = []
    for cell, rank in zip(cells.numbers, cells.ranks, strict=True):
        of_cell = counts.filter((pl.col("time") // _CELL) == cell).sort("time")
        at = int(np.searchsorted(of_cell["count"].cum_sum().to_numpy(), rank, side="right"))
        found.append(_EPOCH + timedelta(microseconds=int(of_cell["time"][at])))
    return found[0], found[1]


def _utc(limit: float | datetime) -> datetime:
    return (
        limit.astimezone(UTC) if isinstance(limit, datetime) else datetime.max.replace(tzinfo=UTC)
    )


def assign(
    impressions: pl.DataFrame,
    user: str,
    split: Split,
    seed: int,
    limits: tuple[datetime, datetime] | None,
) -> pl.Series:
    """Assign each impression to a split.

    Args:
        impressions: columns `meta/time`, `meta/impression` and the user.
        user: name of the user column.
        split: the configured split.
        seed: of splits by hash.
        limits: what `boundaries` returned.

    Returns:
        (B,) `train`, `validation` or `test`. By hash: a function of the impression (or the user)
        and the seed alone, so that more data move nothing.
    """
    if not len(impressions):
        return pl.Series("split", [], dtype=pl.String)
    if limits is not None:
        later = [impressions[TIME] >= limit for limit in limits]
    else:
        if isinstance(split, TimeSplit):
            raise ValueError("a split by time needs its boundaries")
        key = hash_column(impressions[user if split.by == "user" else IMPRESSION])
        drawn = pl.Series(uniform(combine(key, np.full(len(key), seed ^ _SALT, np.uint64))))
        later = [drawn < split.test + split.validation, drawn < split.test]
    place = later[0].cast(pl.Int8) + later[1].cast(pl.Int8)
    return place.replace_strict(dict(enumerate(SPLITS)), return_dtype=pl.String).alias("split")


def embargoed(config: Config, limits: tuple[datetime, datetime] | None) -> dict[str, pl.Expr]:
    """By task, whether an example's label closes only after the next split has begun.

    Args:
        config: the split, and how long labels wait.
        limits: what `boundaries` returned.

    Returns:
        Flags of a table with `meta/time` and `split`; nothing where no label is masked by this.
    """
    chosen = config.pipeline.split
    if limits is None or not isinstance(chosen, TimeSplit) or not chosen.embargo:
        return {}
    following = pl.col("split").replace_strict(
        dict(zip(SPLITS, limits, strict=False)), default=None, return_dtype=pl.Datetime("us", "UTC")
    )
    return open_at(pl.col(TIME), waits(config), following)


def uniform(hashes: Hashes) -> NDArray[np.float64]:
    """Map hashes to [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
