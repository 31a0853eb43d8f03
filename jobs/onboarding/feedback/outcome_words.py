"""Makes flags of a column of words that tell what came of a row."""

import re

import polars as pl

from multigate.jobs.onboarding.feedback.labels import AVERSE, FEWEST, Labels, snake
from multigate.jobs.onboarding.tables.columns import Column, look
from multigate.jobs.onboarding.tables.roles import Roles
from multigate.pipeline.read.derive import flag

_MOST_WORDS = 6
_NOTHING = 0.5  # of the rows: where of several words one means that nothing came


def spell_outcomes(roles: Roles, free: list[Column], found: Labels) -> dict[str, str]:
    """Make flags of columns of a few words that differ within lists.

    Of two words the rarer one is taken for 1. Of more, the one that most rows have means that
    nothing came; what says otherwise is one flag, and each word but the first of these another.

    Args:
        roles: the log; gets the flags and their rules.
        free: columns that neither users nor items nor requests decide; no flag is among them.
        found: gets the columns of several words, which no feature may read.

    Returns:
        Flag -> why.
    """
    reasons = {}
    for column in free:
        if column.number is not None or column.is_list or not 2 <= column.distinct <= _MOST_WORDS:
            continue
        if not _differs_in_lists(roles, column.name):
            continue
        counts = roles.frame[column.name].drop_nulls().value_counts(sort=True)
        most, *words = counts[column.name].to_list()
        if len(words) == 1:
            _add(roles, column.name, column.name, words)
            reasons[column.name] = f"{words[0]!r}, the rarer one of its two values, is taken for 1"
            continue
        rows = dict(counts.iter_rows())
        if rows[most] < _NOTHING * sum(rows.values()):
            continue
        found.columns.add(column.name)
        found.afterwards[column.name] = "its words are labels, as flags"
        welcome = [word for word in words if not re.search(AVERSE, word.lower())]
        averse = [word for word in words if word not in welcome]
        if welcome:
            name = snake(f"{column.name}_any", roles.columns)
            _add(roles, name, column.name, welcome)
            reasons[name] = (
                f"of the words of {column.name!r}, most rows have {most!r}, so that "
                f"{', '.join(map(repr, welcome))} are taken for 1"
            )
        for word in [*welcome[1:], *averse]:
            if rows[word] >= FEWEST:
                name = snake(f"{column.name}_{word}", roles.columns)
                _add(roles, name, column.name, [word])
                reasons[name] = f"{word!r} of {column.name!r} is taken for 1"
    return reasons


def _add(roles: Roles, name: str, source: str, ones: list[str]) -> None:
    made = flag(roles.frame[source], ones).cast(pl.String).alias(name)
    roles.frame = roles.frame.with_columns(made)
    roles.columns[name] = look(name, roles.frame[name])
    roles.derive = roles.derive | {name: {"flag": source, "ones": ones}}


def _differs_in_lists(roles: Roles, name: str) -> bool:
    """Whether rows of one request, or of one user and instant, differ in a column."""
    by = [roles.user, "__time"] if roles.request is None else [roles.request]
    lists = roles.frame.group_by(by).agg(n=pl.len(), d=pl.col(name).n_unique())
    several = lists.filter(pl.col("n") > 1)
    return len(several) >= FEWEST and float((several["d"] > 1).mean() or 0.0) > 0.1
