"""Finds the column of the places at which items were shown."""

from collections.abc import Iterable

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column
from multigate.jobs.onboarding.tables.roles import Roles

_FEW = 30  # lists
_ONCE = 0.97  # of the lists
_PLACES = 50
_ALIKE = 0.15


def position_of(frame: pl.DataFrame, roles: Roles, free: Iterable[Column]) -> str | None:
    """The column of places: each place once in a list, or all places alike frequent.

    Args:
        frame: rows of items that were shown.
        roles: of the log. Without requests, a list is what a user was shown at one instant; where
            items come one after the other, what a session showed.
        free: columns of `frame` that neither users nor items nor requests decide.
    """
    by = lists_of(frame, roles)
    for column in free:
        if column.number is None or not column.whole or column.lowest not in (0.0, 1.0):
            continue
        if column.flag or column.missing > 0 or column.highest > 1000:
            continue
        rows = frame.select(*by, place=column.name, item=roles.item).drop_nulls().unique()
        lists = rows.group_by(by).agg(n=pl.len(), d=pl.col("place").n_unique())
        several = lists.filter(pl.col("n") > 1)  # some logs write rows twice
        if len(several) >= _FEW:
            if (several["n"] == several["d"]).mean() > _ONCE:
                return column.name
        elif column.distinct <= _PLACES and column.distinct == column.highest - column.lowest + 1:
            shares = column.raw.value_counts()["count"] / column.rows * column.distinct
            if shares.min() > 1 - _ALIKE and shares.max() < 1 + _ALIKE:
                return column.name
    return None


def lists_of(frame: pl.DataFrame, roles: Roles) -> list[str]:
    """The columns whose values together name the lists that users were shown."""
    if roles.request is not None:
        return [roles.request]
    instants = [roles.user, "__time"]
    if roles.session is None or roles.event is not None:
        return instants
    items = frame.drop_nulls(instants).group_by(instants).agg(n=pl.col(roles.item).n_unique())
    return instants if len(items.filter(pl.col("n") > 1)) >= _FEW else [roles.session]
