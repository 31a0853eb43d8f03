"""Recognises the weights of rows, which training may use and no feature may read."""

import re

import polars as pl

from multigate.jobs.onboarding.feedback.labels import DECIDED, FEWEST, SMALL, snake
from multigate.jobs.onboarding.tables.columns import Column, decides
from multigate.jobs.onboarding.tables.roles import Roles

_WORDS = (
    r"weight|gewicht|pondera|(^|_)(wgt|wt|peso|poids|pond|importance|importancia|wichtigkeit)(_|$)|"
    r"(^|_)(ipw|ips|iptw)(_|$)|inverse_?prop|(^|_)(vikt|waga|вес)(_|$)"
)
_MEANS = (0.05, 20.0)  # of weights: they are about 1, and may be scaled
_ONES = (0.9, 1.1)  # of weights of users or items, which may be kilograms as well
_LONG_TAIL = 1000.0  # times the mean
_TELLS = 0.02  # of the rarer outcome, which values that tell outcomes may confuse


def guess_weight(roles: Roles) -> None:
    """Give a log's column of rows' weights its role.

    Values alone do not tell a weight from a feature, so that its name must say it too; what a user
    or an item always has, such as kilograms, is a weight of rows only where its mean is 1.

    Args:
        roles: gets the role and its reason.
    """
    for name, column in roles.columns.items():
        number = column.number
        if name in roles.named or number is None or column.flag or column.distinct < 2:
            continue
        mean = float(number.mean() or 0.0)
        if column.lowest < 0 or not re.search(_WORDS, snake(name)):
            continue
        owned = any(decides(roles.frame, one, name) > DECIDED for one in (roles.user, roles.item))
        low, high = _ONES if owned else _MEANS
        if low <= mean <= high and column.highest <= _LONG_TAIL * mean:
            roles.weight = name
            roles.reasons["weight"] = (
                f"numbers from {column.lowest:g} to {column.highest:g} with the mean {mean:.3g}, "
                "and its name: rows' weights in training, and no feature"
            )
            return


def tells_outcome(column: Column, flag: Column) -> bool:
    """Whether a column has some values where a flag is 1 and others where it is 0.

    So do weights that were set by the outcome, and words for it; of a column of many values, only
    whether there is one counts.
    """
    if column.is_list or column.flag:
        return False
    values = column.raw if column.distinct <= SMALL else column.raw.is_null()
    rows = pl.DataFrame({"value": values, "flag": flag.number}).drop_nulls("flag")
    counts = rows.group_by("value").agg(
        ones=(pl.col("flag") == 1).sum(), zeros=(pl.col("flag") == 0).sum()
    )
    rarer = min(int(counts["ones"].sum()), int(counts["zeros"].sum()))
    confused = int(counts.select(pl.min_horizontal("ones", "zeros").sum()).item())
    return rarer >= FEWEST and confused <= _TELLS * rarer
