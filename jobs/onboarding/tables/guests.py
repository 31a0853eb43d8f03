"""Finds which column names a user where the column of users is empty, as a guest's session does."""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from multigate.jobs.onboarding.tables.columns import DECIDES, Column, decides

FEW_GUESTS = 0.003  # of the rows
_FILLS = 0.95  # of the rows without a user
_SEVERAL = 1.05  # sessions or devices of a user
_MOSTLY = 0.5  # of the rows of those who have a user at some time
_VISIT = timedelta(minutes=30)
_ONE = 0.9  # of the rows of a visit
_ALIKE = 0.01


def stand_in(
    frame: pl.DataFrame, columns: dict[str, Column], login: str, ids: Sequence[str]
) -> str | None:
    """The column that tells guests apart, the coarsest one; None where there is none.

    Each of its values belongs to one user, of whom several have one value at a time; and no value
    of it is that of a user as well, whom a guest would be taken for.

    Args:
        frame: the log in the order of time.
        columns: of it.
        login: the column that names users and is empty in some rows.
        ids: the columns that may name something.
    """
    guests = frame.filter(pl.col(login).is_null())
    if len(guests) < FEW_GUESTS * len(frame):
        return None
    users = frame[login].drop_nulls().unique()
    found = []
    for other in ids:
        if other == login or guests[other].null_count() > (1 - _FILLS) * len(guests):
            continue
        both = frame.select("__time", login=pl.col(login), other=pl.col(other)).drop_nulls("other")
        known = both.drop_nulls("login")
        several = known["other"].n_unique() > _SEVERAL * len(users)
        if not several or decides(frame, other, login) < DECIDES:
            continue
        has_some = pl.col("login").is_not_null().any().over("other")
        if float((~both.filter(has_some)["login"].is_null()).mean() or 0.0) < _MOSTLY:
            continue  # an order's number stands in few rows of its session
        if float(guests[other].drop_nulls().is_in(users.implode()).mean() or 0.0) > _ALIKE:
            continue
        if _in_turn(known):
            found.append(other)
    return min(found, key=lambda name: columns[name].distinct, default=None)


def _in_turn(known: pl.DataFrame) -> bool:
    """Whether a visit of one user is mostly of one session, as no visit of one town is."""
    near = pl.col("__time") - pl.col("__time").shift().over("login") <= _VISIT
    same = pl.col("other") == pl.col("other").shift().over("login")
    pairs = known.select(near=near, same=same).filter(pl.col("near"))
    return float(pairs["same"].mean() or 0.0) >= _ONE
