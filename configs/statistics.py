"""What the pipeline measures on the training split and the model reads: `statistics.json`."""

import json

from pydantic import Field

from multigate.configs.errors import DataError
from multigate.configs.sections.base import Frozen, parse
from multigate.configs.storage import Place


class NumberStatistics(Frozen):
    """One number feature, after its transform, over the training rows that have a value."""

    count: int
    missing: int
    mean: float
    std: float
    """Population standard deviation; 1 where it would be 0, so that dividing is safe."""
    boundaries: tuple[float, ...] = ()
    """Ascending inner edges of the quantile buckets, for `scale: buckets`."""


class VectorStatistics(Frozen):
    """One vector feature under `scale: standardise`, over the training rows that have a value."""

    count: int
    missing: int
    mean: tuple[float, ...]
    """Of each place."""
    std: tuple[float, ...]
    """Population standard deviation of each place; 1 where it would be 0."""


class TaskStatistics(Frozen):
    """One task's label, over the training rows where it is not masked."""

    count: int
    masked: int
    mean: float
    """Of a binary label: its rate. Of a regression label: its mean after the transform."""
    std: float
    """After the transform; 1 where it would be 0."""
    quantiles: tuple[float, ...] = Field((), exclude_if=lambda values: not values)
    """Evenly spaced quantiles of a regression label after the transform, from the smallest to the
    largest label; only in checkpoints, and only where the task's loss reads them."""
    thresholds: tuple[float, ...] = Field((), exclude_if=lambda values: not values)
    """Of an ordinal loss, ascending, after the transform; only in checkpoints. A warm start keeps
    them, because the outputs belong to them."""


class Statistics(Frozen):
    """Measured on the training split only."""

    features: dict[str, NumberStatistics]
    tasks: dict[str, TaskStatistics]
    rows: dict[str, int]
    """Examples of each split."""
    negatives_kept: float = 1.0
    """Share of the logged impressions without a positive label that the training split holds. A
    probability p that was learnt from it is corrected to p / (p + (1 - p) / negatives_kept)."""
    vectors: dict[str, VectorStatistics] = Field({})
    """Of the vector features under `scale: standardise`."""
    priors: dict[str, float] = Field({})
    """By feature, what a rate or mean over past labels is without any: the prior that the
    configuration names, or the task's mean over the training split's logged impressions."""

    @classmethod
    def read(cls, path: Place) -> "Statistics":
        """Read `statistics.json`.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: no statistics here; expected an examples folder") from None
        except ValueError as error:
            raise DataError(f"{path}: not valid JSON: {error}") from None
        return parse(cls, values, str(path))
