"""Recognises the weights of rows, which training may use and no feature may read."""

import re

from multigate.jobs.onboarding.feedback.labels import DECIDED, snake
from multigate.jobs.onboarding.tables.columns import decides
from multigate.jobs.onboarding.tables.roles import Roles

_WORDS = (
    r"weight|gewicht|pondera|(^|_)(wgt|wt|peso|poids|pond|importance|importancia|wichtigkeit)(_|$)|"
    r"(^|_)(ipw|ips|iptw)(_|$)|inverse_?prop|(^|_)(vikt|waga|вес)(_|$)"
)
_MEANS = (0.05, 20.0)  # of weights: they are about 1, and may be scaled
_ONES = (0.9, 1.1)  # of weights of users or items, which may be kilograms as well
_LONG_TAIL = 1000.0  # times the mean


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
