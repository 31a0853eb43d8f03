"""Finds visits in logs of events of which no type is an impression, such as `play` and `skip`.

A visit begins with one of several types, of which each row is what came of it; rows of other types
follow. The pipeline reads such a log twice: each row is an impression, of which those that follow
soon repeat the first one, and each row is feedback.
"""

from dataclasses import dataclass, replace
from datetime import timedelta

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column, decides, ranks
from multigate.jobs.onboarding.tables.event_types import beats_chance, candidates, follows

_FEWEST = 30  # rows that follow
_MOST_OPENS = 4
_ENOUGH = 0.9  # of the other rows
_KEPT = 0.98  # of the rows that follow
_TOLD = 0.8  # AUC, from which on a number was measured after a visit began
_SPANS = (("10m", 600), ("1h", 3600), ("6h", 21_600), ("1d", 86_400))
OPENED = "opened"


@dataclass(frozen=True)
class Visits:
    """How the events of a log make visits."""

    event: str
    """The column of event types."""
    opens: tuple[str, ...]
    """The types that begin a visit, the most frequent first."""
    share: float
    """Of the rows of other types, those that follow one of these."""
    opened: str = OPENED
    """A name for the beginning of a visit that no type has."""
    within: str = "10m"
    """How soon after the row before it a row belongs to the same visit."""


def find_visits(frame: pl.DataFrame, columns: dict[str, Column], ids: list[str]) -> Visits | None:
    """The column of event types and those that begin visits; None where there is none.

    Args:
        frame: the log in the order of time.
        columns: of it. Where a flag differs within users and items, it says what came of a row, and
            rows are no events.
        ids: names of those that may name users, items or requests.
    """
    for name, column in columns.items():
        if column.flag and not any(decides(frame, one, name) > 0.9 for one in ids):
            return None
    best = None
    for name, pairs in candidates(frame, columns, ids):
        counts = frame[name].drop_nulls().value_counts(sort=True)
        types, rows = counts[name].to_list(), dict(counts.iter_rows())
        for pair in pairs:
            opens: list[str] = []
            share = 0.0
            while len(opens) < min(_MOST_OPENS, len(types) - 1) and share < _ENOUGH:
                others = [one for one in types if one not in opens]
                more = {one: follows(frame, name, [*opens, one], pair) for one in others}
                opens.append(max(others, key=lambda one: more[one]))
                share = more[opens[-1]]
            left = sum(rows[one] for one in types if one not in opens)
            if len(opens) < 2 or left < _FEWEST or share <= max(0.5, best.share if best else 0):
                continue
            if beats_chance(frame, name, opens, pair, share):
                opens.sort(key=lambda one: -rows[one])
                best = Visits(name, tuple(opens), share, _free(types))
    return best


def with_openings(
    visits: Visits, frame: pl.DataFrame, user: str, item: str
) -> tuple[pl.DataFrame, Visits]:
    """Add a row for the beginning of each visit, at its first row, before it.

    Such a row has no value in columns that tell what type it begins with.

    Args:
        visits: of the log.
        frame: the log in the order of time.
        user: the column of users.
        item: the column of items.

    Returns:
        The rows, and the visits with how soon their rows follow.
    """
    by, event = [user, item], pl.col(visits.event)
    is_open = event.is_in(visits.opens)
    began = pl.when(is_open).then(pl.col("__time")).forward_fill().over(by)
    later = frame.filter(event.is_not_null()).with_columns(wait=pl.col("__time") - began)
    waits = later.filter(~is_open)["wait"].drop_nulls()
    within = next(
        (text for text, most in _SPANS if (waits <= timedelta(seconds=most)).mean() > _KEPT),
        _SPANS[-1][0],
    )
    gap = pl.col("__time") - pl.col("__time").shift().over(by)
    repeats = (gap <= timedelta(seconds=dict(_SPANS)[within])).fill_null(False)
    first = frame.filter(pl.col(user).is_not_null() & pl.col(item).is_not_null() & ~repeats)
    first = first.with_columns(
        **{visits.event: pl.lit(visits.opened)},
        **{name: pl.lit(None, frame[name].dtype) for name in _told(visits, frame.drop(by))},
    )
    both = pl.concat([first, frame]).sort("__time", maintain_order=True, nulls_last=False)
    return both, replace(visits, within=within)


def _told(visits: Visits, frame: pl.DataFrame) -> list[str]:
    """Columns of numbers by which types that begin visits are told apart, such as seconds."""
    begin = frame.filter(pl.col(visits.event).is_in(visits.opens))
    found = []
    for name in frame.columns:
        if name in (visits.event, "__time"):
            continue
        numbers = begin[name].cast(pl.Float64, strict=False)  # of texts, none: they tell nothing
        areas = (ranks(numbers, (begin[visits.event] == one)) for one in visits.opens)
        if any(max(area, 1 - area) > _TOLD for area in areas):
            found.append(name)
    return found


def _free(types: list[str]) -> str:
    name = OPENED
    while name in types:
        name += "_"
    return name
