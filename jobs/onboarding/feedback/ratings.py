"""Drafts tasks of ratings: columns of few steps of one scale."""

from typing import Any

import polars as pl

from multigate.jobs.onboarding.feedback.labels import Labels, is_small, snake
from multigate.jobs.onboarding.tables.columns import Column, look

FEW_MISSING = 0.05  # of the rows: they have no label
_FEW_RATED = 20
_LOWER = 0.3  # standard deviations


def add_rating(found: Labels, rating: Column) -> None:
    """Add a task of a rating, and one of whether it is high."""
    name = snake(rating.name, found.tasks)
    numbers = rating.number
    assert numbers is not None
    label = {"rule": "column", "column": rating.name}
    found.columns.add(rating.name)
    found.tasks[name] = {
        "group": "satisfaction",
        "type": "regression",
        "label": label,
        "score_weight": 0.2,
    }
    given = "" if rating.missing == 0 else f"; {rating.missing:.0%} of the rows have none"
    found.reasons[name] = (
        f"column {rating.name!r} has {rating.distinct} steps from {rating.lowest:g} to "
        f"{rating.highest:g}{given}"
    )
    add_high(found, name, rating.name, numbers, label, rating.missing > FEW_MISSING)


def add_high(
    found: Labels,
    name: str,
    column: str,
    numbers: pl.Series,
    label: dict[str, Any],
    is_rare: bool,
) -> None:
    """Add a task of whether a rating is high, beside the one of its value.

    Args:
        found: gets it.
        name: of the task of the value.
        column: that holds the values.
        numbers: the values that were given.
        label: what reads the value.
        is_rare: whether rows without a rating have no label.
    """
    steps = sorted(numbers.drop_nulls().unique())[1:]
    shares = {step: float((numbers >= step).mean() or 0.0) for step in steps}
    good = min(steps, key=lambda step: (round(abs(shares[step] - 0.5), 2), -step))
    liked = snake(f"{name}_high", found.tasks)
    found.tasks[liked] = {
        "group": "satisfaction",
        "type": "binary",
        "label": label,
        "at_least": good,
        "score_weight": 1,
    }
    told = "about half" if 0.4 <= shares[good] <= 0.6 else f"{shares[good]:.0%}"
    found.reasons[liked] = f"{column!r} is at least {good:g}: {told} of the rows"
    if is_rare:
        for task in (name, liked):
            found.tasks[task]["score_weight"] = 0
        found.reasons[liked] += (
            "; most rows have no rating, so that it is a rate of those rated, and no term of the "
            "combined score"
        )


def lowers(flag: pl.Series, rating: pl.Series) -> bool:
    """Whether ratings are lower where a flag is 1, so that what it tells is unwelcome."""
    one, zero = rating.filter(flag == 1), rating.filter(flag == 0)
    if len(one) < _FEW_RATED or len(zero) < _FEW_RATED:
        return False
    spread = float(rating.std() or 1.0)
    return float(one.mean() or 0) < float(zero.mean() or 0) - _LOWER * spread


def has_zeros(column: Column) -> bool:
    """Whether values are few steps of one scale and mostly 0, as where no rating was given."""
    rated = None if column.number is None else look(column.name, column.number.replace(0.0, None))
    return rated is not None and column.lowest == 0 and is_small(rated)


def add_given(found: Labels, scale: Column) -> None:
    """Add a task of whether a rating was given, of a scale that is mostly 0."""
    name = snake(f"{scale.name}_given", found.tasks)
    numbers = scale.number
    assert numbers is not None
    least = float(numbers.filter(numbers > 0).min())
    found.columns.add(scale.name)
    found.tasks[name] = {
        "group": "satisfaction",
        "type": "binary",
        "label": {"rule": "column", "column": scale.name},
        "at_least": least,
        "score_weight": 1,
    }
    found.reasons[name] = (
        f"column {scale.name!r} has steps from {least:g} to {scale.highest:g} and is mostly 0, as "
        "where none was given; raise at_least to learn the high ones"
    )
