"""Drafts tasks of numbers that follow what a user did, and finds what is known afterwards."""

import re

import polars as pl

from multigate.jobs.onboarding.feedback.afterwards import carries_over
from multigate.jobs.onboarding.feedback.labels import (
    AVERSE,
    COUNTED,
    DECIDED,
    DELAYS,
    FEWEST,
    SATISFIED,
    SMALL,
    UNSCORED,
    WINDOW,
    Labels,
    is_bounded,
    may_rate,
    snake,
)
from multigate.jobs.onboarding.tables.columns import Column, decides, names_code, ranks
from multigate.jobs.onboarding.tables.outcomes import needs
from multigate.jobs.onboarding.tables.roles import Roles

_LEAK = 0.95
_LITTLE, _SOME_LITTLE = 0.25, 0.1  # of an item's length, and of the rows that took no more
_DAY = 86_400
_LONG = 1000  # seconds, of which half of what users do lasts less
_VERY_LONG = 3 * 3600  # seconds, which half of what users do never lasts
_AS_PRICED = 0.95  # correlation of ranks
_FEW_MISSING = 0.05  # of the rows


def is_duration(column: Column, owner: Column | None) -> bool:
    """Whether a number tells how much was taken: most rows of its owner have one."""
    numbers = column.number
    if owner is None or numbers is None or column.distinct <= SMALL:
        return False
    pairs = pl.DataFrame({"value": numbers, "owner": owner.number})
    taken = pairs.filter(pl.col("owner") == 1)
    return float((taken["value"] > 0).fill_null(False).mean() or 0.0) > 0.3


def owner_of(column: Column, flags: list[Column]) -> Column | None:
    """The rarest flag without which a number is not above 0; an order's price is no click's."""
    return next((flag for flag in reversed(flags) if needs(column, flag)), None)


def length_of(roles: Roles, column: Column) -> Column | None:
    """The number of the item that a duration runs up to, such as the length of a song."""
    for name, length in roles.columns.items():
        if name in roles.named or length.number is None or length.distinct < SMALL:
            continue
        if names_code(name):
            continue
        both = pl.DataFrame({"x": column.number, "y": length.number}).filter(pl.col("x") > 0)
        parts = both.filter(pl.col("y") > 0).select(pl.col("x") / pl.col("y")).to_series()
        if len(parts) < max(FEWEST, 0.9 * len(both)):
            continue
        is_above = float((parts > 1.02).mean() or 0.0)
        whole = float((parts > 0.9).mean() or 0.0)
        # What ends with its item ends there more often than shortly before.
        before = float(parts.is_between(0.78, 0.9).mean() or 0.0)
        if (
            is_above < 0.02 < whole
            and whole - is_above > before
            and decides(roles.frame, roles.item, name) > DECIDED
        ):
            return length
    return None


def is_part(roles: Roles, column: Column, length: Column) -> bool:
    """Whether a number is how much of its item was taken: from little to all, by no habit.

    A price below the list's price is a part of it as well, but near to it, or that of the row
    before.
    """
    part = pl.DataFrame({"x": column.number, "y": length.number}).select(pl.col("x") / pl.col("y"))
    little = float((part.to_series() < _LITTLE).mean() or 0.0)
    return little > _SOME_LITTLE and not carries_over(
        roles.frame, (roles.user, roles.item), column.name
    )


def add_duration(
    found: Labels, roles: Roles, column: Column, main: Column | None, length: Column | None
) -> None:
    """Add tasks of how long, and whether long; where `length` is known, by the share of it.

    Args:
        found: gets them.
        roles: of the log.
        column: the duration.
        main: the flag without which it is not above 0; None where each row has one.
        length: the number of the item that it runs up to, if there is one.
    """
    numbers = column.number
    assert numbers is not None
    positive = numbers.filter(numbers > 0)
    named = (task for task, name in found.events.items() if main and name == main.name)
    when = next(named, None)
    name = snake(column.name, found.tasks)
    label = {"rule": "column", "column": column.name}
    found.columns.add(column.name)
    found.tasks[name] = {
        "group": "engagement",
        "type": "regression",
        "label": label,
        **({} if when is None else {"when": when}),
        **({} if is_bounded(column) else {"transform": "log1p"}),
    }
    found.reasons[name] = (
        f"column {column.name!r} is above 0 only where {when} is 1"
        if when is not None or length is None
        else f"column {column.name!r} is a part of {length.name!r}, from little to all, and "
        "differs from row to row of users and items, so that it is measured afterwards"
    )
    if is_bounded(column):
        found.reasons[name] += may_rate(column)
    beside = _beside(roles, column) if main is not None else None
    if beside is not None:
        found.tasks[name]["weight"] = UNSCORED
        found.reasons[name] += (
            f"; it goes with {beside!r}, so that it tells what was taken, and not how it was liked"
        )
        return
    told = repr(column.name)
    if length is not None:
        # Seconds alone say how long the item is before they say how it was liked.
        label = {"rule": "ratio", "column": column.name, "over": length.name}
        parts = pl.DataFrame({"x": numbers, "y": length.number}).filter(pl.col("x") > 0)
        positive_parts = parts.select(pl.col("x") / pl.col("y")).to_series()
        told = f"{column.name!r} over {length.name!r}, which it hardly ever exceeds,"
        # Where most run to the end, the middle is the end itself.
        middle = min(float(positive_parts.median() or 0.5), 0.9)
    else:
        middle = float(positive.median() or 1.0)
    deep = snake(f"{name}_long", found.tasks)
    found.tasks[deep] = {
        "group": "engagement",
        "type": "binary",
        "label": label,
        "at_least": float(f"{middle:.2g}"),
        "score_weight": 1,
    }
    found.reasons[deep] = f"{told} is above its middle, {middle:.2g}"
    if column.missing > 0 and when is not None:
        found.tasks[deep]["score_weight"] = 0
        found.reasons[deep] += (
            f"; its label is missing where {when} is 0, so that it is a rate of those taken, and "
            "no term of the combined score"
        )
    longest = float(positive.quantile(0.99) or 600.0) / (1000 if _are_ms(roles, column) else 1)
    most = roles.span.total_seconds() * WINDOW
    usable = [text for text, seconds in DELAYS if seconds <= min(most, _DAY)] or [DELAYS[0][0]]
    wait = next((t for t, s in DELAYS if s >= longest and t in usable), usable[-1])
    found.wait = max(found.wait, wait, key=dict(DELAYS).__getitem__)


def _beside(roles: Roles, column: Column) -> str | None:
    """A number of all rows that goes with one of some rows, as an item's price with what was paid.

    Values of both are in the order of the files.
    """
    for name, other in roles.columns.items():
        if name == column.name or name in roles.named or other.number is None:
            continue
        if other.distinct <= SMALL or float((other.number > 0).mean() or 0.0) < 1 - _FEW_MISSING:
            continue
        both = pl.DataFrame({"x": column.number, "y": other.number}).filter(pl.col("x") > 0)
        both = both.drop_nulls()
        alike = both.select(pl.corr("x", "y", method="spearman").fill_nan(0.0)).item()
        if len(both) >= FEWEST and float(alike or 0.0) > _AS_PRICED:
            return name
    return None


def _are_ms(roles: Roles, column: Column) -> bool:
    """Whether a duration is one of milliseconds: its name says so, or the log's times are such."""
    if column.name in roles.seconds:
        return False
    if re.search(r"(^|[^a-z])ms([^a-z]|$)|milli", column.name.lower()):
        return True
    least = _LONG if roles.time.unit == "ms" else _VERY_LONG
    return column.whole and _middle(column) >= least


def _middle(column: Column) -> float:
    positive = None if column.number is None else column.number.filter(column.number > 0)
    return 0.0 if positive is None else float(positive.median() or 0.0)


def add_leak(found: Labels, column: Column, flags: list[Column]) -> None:
    """A number that alone ranks a label is feedback as well: seconds played, beside skipped."""
    for flag in flags:
        if column.number is None or flag.number is None:
            continue
        area = ranks(column.number, flag.number)
        if max(area, 1 - area) > _LEAK and column.lowest >= 0 and column.distinct > SMALL:
            name = snake(column.name, found.tasks)
            found.columns.add(column.name)
            found.tasks[name] = {
                "group": "engagement",
                "type": "regression",
                "label": {"rule": "column", "column": column.name},
                "transform": "log1p",
            }
            found.reasons[name] = (
                f"column {column.name!r} alone ranks {flag.name!r} with AUC "
                f"{max(area, 1 - area):.2f}, so that it can be known only afterwards"
            )
            return


def add_measured(found: Labels, column: Column, is_main: bool) -> None:
    """Add a task of a number whose name says that it is measured afterwards.

    Args:
        found: gets it.
        column: of the log.
        is_main: whether no other column says what came of a row; then high values are a task, too.
    """
    name = snake(column.name, found.tasks)
    label = {"rule": "column", "column": column.name}
    found.columns.add(column.name)
    found.tasks[name] = {"group": "engagement", "type": "regression", "label": label}
    if column.lowest >= 0 and column.highest > SMALL:
        found.tasks[name]["transform"] = "log1p"
    found.reasons[name] = (
        f"the name of {column.name!r} says that it is measured afterwards, and its values carry "
        "over from no row to the next of a user or an item; if it is known beforehand, make it a "
        "feature"
    )
    numbers = column.number
    if is_main and numbers is not None:
        high = snake(f"{name}_high", found.tasks)
        middle = float(f"{float(numbers.median() or 0.0):.2g}")
        found.tasks[high] = {
            "group": "engagement",
            "type": "binary",
            "label": label,
            "at_least": middle,
            "score_weight": 1,
        }
        found.reasons[high] = f"{column.name!r} is at least its middle, {middle:g}"


def add_count(found: Labels, column: Column) -> None:
    """Add a task of whether a count of what the user then did is above 0."""
    name = snake(f"{column.name}_any", found.tasks)
    found.columns.add(column.name)
    found.tasks[name] = {
        "group": "satisfaction" if re.search(SATISFIED, column.name.lower()) else "engagement",
        "type": "binary",
        "label": {"rule": "column", "column": column.name},
        "at_least": 1,
        "score_weight": -1 if re.search(AVERSE, column.name.lower()) else 1,
    }
    found.reasons[name] = (
        f"the name of {column.name!r} says that it counts what users do, it is mostly 0, and it "
        "carries over from no row to the next of a user or an item, as a count of the past does; "
        "if it is known beforehand, make it a feature"
    )


def is_count(roles: Roles, column: Column) -> bool:
    """Whether a number counts what the user then did: its name says so, its values allow it."""
    numbers = column.number
    if numbers is None or not column.whole or column.flag or column.lowest < 0:
        return False
    if re.search(COUNTED, snake(column.name)) is None:
        return False
    done = int((numbers >= 1).sum())
    return FEWEST <= done < 0.5 * column.rows and not carries_over(
        roles.frame, (roles.user, roles.item), column.name
    )
