"""Splits impressions into training, validation and test."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, SPLITS, TIME
from multigate.configs.sections.pipeline import Split, TimeSplit
from multigate.pipeline.hashing import Hashes, combine, hash_column
from multigate.pipeline.labels import open_at, waits

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SALT = 0x5350_4C49_54  # keeps the split's draws apart from those of the negatives


def by_shares(split: Split) -> bool:
    """Whether the split is by shares of time, whose boundaries the impressions' times decide."""
    return isinstance(split, TimeSplit) and isinstance(split.validation, float)


def boundaries(split: Split, times: Sequence[pl.Series]) -> tuple[datetime, datetime] | None:
    """Instants at which validation and test begin; None where the split is not by time.

    Args:
        split: the configured split.
        times: of all impressions, in parts each of which is sorted; read for shares only. Of no
            impressions there are no boundaries.

    Returns:
        For shares, the boundary is the time of the impression at that rank: impressions of the
        same time are never torn apart, the later split gets them all.
    """
    if not isinstance(split, TimeSplit):
        return None
    validation, test = split.validation, split.test
    if isinstance(validation, datetime) or isinstance(test, datetime):
        # The configuration takes two instants or two shares.
        return _utc(validation), _utc(test)
    numbers = [part.to_physical().to_numpy() for part in times if len(part)]
    total = sum(map(len, numbers))
    if not total:
        return None
    return (
        _at_rank(numbers, total - round((validation + test) * total)),
        _at_rank(numbers, total - round(test * total)),
    )


def _at_rank(parts: list[NDArray[np.int64]], rank: int) -> datetime:
    """Time of impression number `rank` in order of time, counted from 0, or of the last one.

    Bisects the span of time and counts how many times of every part are as early, so that parts
    in files are neither merged nor read whole.
    """

    def as_early(time: int) -> int:
        return sum(int(np.searchsorted(part, time, side="right")) for part in parts)

    first, last = min(int(part[0]) for part in parts), max(int(part[-1]) for part in parts)
    time = first + bisect_right(range(first, last), rank, key=as_early)
    return _EPOCH + timedelta(microseconds=time)


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
    """Name each impression's split.

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
    """By task, whether an example's label closes only after the split after its own has begun.

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
