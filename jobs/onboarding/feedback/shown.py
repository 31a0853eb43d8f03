"""Tells event types of what was shown from types of what users chose, by how their rows stand."""

from datetime import timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.jobs.onboarding.feedback.labels import DECIDED
from multigate.jobs.onboarding.tables.columns import decides
from multigate.jobs.onboarding.tables.roles import Roles

_QUICK = timedelta(seconds=10)  # nobody opens one item after another so quickly
_LISTS = 0.5  # of the impressions
_ENOUGH = 2000  # impressions, by which a choice would show
_MOST = 50_000
_ITEMS = 300
_DRAWS = 20
_BEYOND = 4.0  # deviations from chance


def shows(roles: Roles) -> bool:
    """Whether most impressions stand beside others of one user: whole lists, or one by one.

    Who opens items has one at an instant, and reads it.  Times of whole days tell nothing.
    """
    shown = _impressions(roles)
    times = shown["__time"].drop_nulls()
    if not len(times) or (times.dt.truncate("1h") == times).all():
        return False
    user, item, time = pl.col(roles.user), pl.col(roles.item), pl.col("__time")
    together = item.n_unique().over(roles.user, "__time") > 1
    parts = []
    for step in (1, -1):
        other = item.shift(step).over(user) != item
        parts.append(other & ((time - time.shift(step).over(user)).abs() <= _QUICK))
    near = shown.sort("__time", maintain_order=True).select(
        (together | parts[0].fill_null(False) | parts[1].fill_null(False)).mean()
    )
    return float(near.item() or 0.0) > _LISTS


def is_drawn(roles: Roles) -> bool:
    """Whether impressions say nothing of users or items, as those of items drawn at random do.

    Then all items are alike frequent, and neither kinds of items nor items stand together within
    users more than where the items are shuffled among the rows.
    """
    shown = _impressions(roles).drop_nulls([roles.user, roles.item])
    if len(shown) < _ENOUGH:
        return False
    shown = shown.head(_MOST)
    counts = shown[roles.item].value_counts()["count"].to_numpy().astype(np.float64)
    middle = counts.mean()
    uneven = ((counts - middle) ** 2 / middle).sum() - (len(counts) - 1)
    if uneven > _BEYOND * (2 * len(counts)) ** 0.5:
        return False
    users = _codes(shown[roles.user])
    kinds = [roles.item] + [
        name
        for name, column in roles.columns.items()
        if name not in roles.named
        and not column.is_list
        and 2 <= column.distinct <= _ITEMS
        and decides(roles.frame, roles.item, name) > DECIDED
    ]
    draw = np.random.default_rng(0)
    for name in kinds:
        values = _codes(shown[name].fill_null(""))
        frequent = np.argsort(-np.bincount(values), kind="stable")[:_ITEMS]
        kept = np.isin(values, frequent)
        who, what = _codes(pl.Series(users[kept])), _codes(pl.Series(values[kept]))
        found = _together(who, what)
        chance = [_together(who, draw.permutation(what)) for _ in range(_DRAWS)]
        if found > np.mean(chance) + _BEYOND * np.std(chance):
            return False
    return True


def _impressions(roles: Roles) -> pl.DataFrame:
    return roles.frame.filter(pl.col(str(roles.event)) == roles.impression)


def _codes(values: pl.Series) -> NDArray[np.int64]:
    return values.rank("dense").to_numpy().astype(np.int64) - 1


def _together(users: NDArray[np.int64], kinds: NDArray[np.int64]) -> float:
    """How unevenly pairs of kinds, a kind with itself included, stand together within users."""
    counts = np.zeros((users.max() + 1, kinds.max() + 1), np.float32)
    np.add.at(counts, (users, kinds), 1)
    pairs = counts.T @ counts - np.diag(counts.sum(axis=0))  # without a row and itself
    of = counts.sum(axis=0)
    expected = np.outer(of, of)
    expected *= pairs.sum() / expected.sum()
    return float(((pairs - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
