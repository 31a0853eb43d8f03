"""Finds the columns whose values can be known only after what users did.

An outcome is whether something came of a row: a flag of the row, an event that follows it, or any
such one in the row's session. A column that goes with outcomes as no forecast does is one of them,
whatever its name. Where the values leave it open, a column's name may say so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from multigate.jobs.onboarding.feedback.labels import DECIDED, OUTCOME, is_bounded, snake
from multigate.jobs.onboarding.tables.columns import Column, decides, look
from multigate.jobs.onboarding.tables.outcomes import needed, needs, tells
from multigate.jobs.onboarding.tables.roles import Roles

_CARRIES = 0.5  # correlation of a running count with itself, a row of the user or item before
_FEW = 100  # such rows
_RARELY = 0.5  # of the rows
MAY_BE_OUTCOME = (
    "it differs from row to row of users and items as what users do: if it is not known when the "
    "item is shown, leave it out, or make it a label"
)


@dataclass(frozen=True)
class Outcome:
    """Whether something came of each row."""

    told: str
    """As `'clicked' is 1`."""
    flag: Column
    never: str = ""
    """The contrary, as `'clicked' is never 1`; of rows only."""
    by: str | None = None
    """The column of the groups of which any row may have it; None where the row itself has it."""


def outcomes_of_groups(
    frame: pl.DataFrame, roles: Roles, flags: Mapping[str, str]
) -> list[Outcome]:
    """Whether any row of a session, request or user has an outcome, of the first row of each.

    Args:
        frame: rows of a log, in the order of time.
        roles: of its columns.
        flags: the columns of 0 and 1 that are outcomes, and what a row has where one is 1.
    """
    found = []
    for by in (roles.session, roles.request, roles.user):
        for name, what in flags.items() if by is not None else ():
            number = look(name, frame[name]).number
            rows = frame.select(by, one=number)
            # A group counts once.
            first = pl.when(pl.col(by).is_first_distinct()).then(pl.col("one").max().over(by))
            any_one = rows.select(first).to_series()
            told = f"any row of its {by!r} has {what}"
            found.append(Outcome(told, look(name, any_one), by=by))
    return found


def known_afterwards(roles: Roles, column: Column, outcomes: Sequence[Outcome]) -> str | None:
    """Why a column can be known only afterwards; None where its values do not say so.

    Args:
        roles: of the log.
        column: of it, with rows as `outcomes` has them. Where these are of rows, neither users nor
            items nor requests decide it.
        outcomes: the most frequent first.
    """
    for outcome in outcomes:
        if tells(column, outcome.flag):
            may_weigh = outcome.by is None and column.number is not None
            return f"its values tell whether {outcome.told}, so that it can be known only " + (
                "afterwards; if it is a weight of rows, columns.weight takes it"
                if may_weigh
                else "afterwards"
            )
    for at, outcome in enumerate(outcomes):
        # Who buys much has bought before: a user's numbers may need an outcome and be of the past.
        if outcome.by != roles.user and needs(column, outcome.flag):
            what = "one of its words stands" if column.number is None else "it is above 0"
            return f"{what} only where {outcome.told}, so that it can be known only afterwards"
        # A word may be missing for a reason that forbids a rare outcome, such as no login.
        may_lack = outcome.by is None and (column.number is not None or at == 0)
        if may_lack and needed(column, outcome.flag):
            return (
                f"where it is 0 or missing, {outcome.never}, and it differs within users and "
                "items, as what is measured afterwards does"
            )
    return None


def sounds_measured(frame: pl.DataFrame, roles: Roles, name: str) -> bool:
    """Whether a column's name says that it is measured afterwards, and its values allow it.

    A count of the past, such as clicks so far, has such a name as well; it carries over from one
    row of a user or an item to the next.
    """
    number = look(name, frame[name]).number
    if number is None or re.search(OUTCOME, snake(name)) is None:
        return False
    return not carries_over(frame, (roles.user, roles.item), name)


def carries_over(frame: pl.DataFrame, ids: Sequence[str], name: str) -> bool:
    """Whether a number goes with that of the row before, of the same user or the same item.

    Args:
        frame: rows of a log, in the order of time.
        ids: its columns of users and items.
        name: of the number's column.
    """
    rows = frame.select(*ids, x=look(name, frame[name]).number).drop_nulls()
    for by in ids:
        pairs = rows.select("x", before=pl.col("x").shift().over(by)).drop_nulls()
        carried = pairs.select(pl.corr("x", "before", method="spearman").fill_nan(0.0)).item()
        if len(pairs) >= _FEW and float(carried or 0.0) > _CARRIES:
            return True
    return False


def may_be_outcome(frame: pl.DataFrame, ids: Sequence[str], column: Column) -> bool:
    """Whether a number may as well be what users then did, which no name and no flag beside it say.

    It counts something rare, or is a scale of which many rows reach the end, such as a percent; it
    is no flag; and neither users nor items decide it or carry it over from row to row.

    Args:
        frame: rows of a log, in the order of time.
        ids: its columns of users and items.
        column: of it.
    """
    numbers = column.number
    if numbers is None or column.flag or column.distinct < 3 or column.lowest != 0:
        return False
    some = int((numbers > 0).sum())
    counts = column.whole and _FEW <= some < _RARELY * column.rows
    if not (counts or is_bounded(column)) or is_decided(frame, column, ids):
        return False
    return not carries_over(frame, ids, column.name)


def is_decided(frame: pl.DataFrame, column: Column, by: Sequence[str | None]) -> bool:
    """Whether one of the columns `by` decides a column."""
    name = column.name
    for one in by:
        if one is None:
            continue
        some = frame
        if column.flag:
            # Where a value is rare, most groups have none of it by chance: those that do decide.
            rare = frame[name].drop_nulls().value_counts(sort=True)[name][-1]
            some = frame.filter((pl.col(name) == rare).any().over(one))
        if decides(some, one, name) > DECIDED:
            return True
    return False
