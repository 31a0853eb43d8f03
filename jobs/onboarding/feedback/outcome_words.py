"""Makes flags of a column of words that tell what came of a row."""

import re

import polars as pl

from multigate.jobs.onboarding.feedback.labels import (
    AVERSE,
    FEWEST,
    OUTCOME,
    SATISFIED,
    Labels,
    snake,
)
from multigate.jobs.onboarding.tables.columns import Column, look
from multigate.jobs.onboarding.tables.roles import Roles
from multigate.pipeline.read.derive import flag

_MOST_WORDS = 6
_COMES = 0.99  # of the rows of such a word
_SAME = 0.02  # of them
_NOTHING = 0.5  # of the rows: where of several words one means that nothing came


def spell_outcomes(roles: Roles, free: list[Column], found: Labels) -> dict[str, str]:
    """Make flags of columns of a few words that differ within lists.

    Where each row stands alone, words are outcomes if they or the column's name say so, and no flag
    tells what came of a row.

    Of two words the rarer one is taken for 1. Of more, the one that most rows have means that
    nothing came; what says otherwise is one flag, and each word but the first of these another.
    Beside flags, such as of what was seen, only words that one of these comes with are outcomes.

    Args:
        roles: the log; gets the flags and their rules.
        free: columns that neither users nor items nor requests decide.
        found: gets the columns of words whose flags have other names, which no feature may read.

    Returns:
        Flag -> why.
    """
    reasons = {}
    flags = [column for column in free if column.flag]
    for column in free:
        if column.number is not None or column.is_list or not 2 <= column.distinct <= _MOST_WORDS:
            continue
        if not _differs_in_lists(roles, column.name) and (flags or not _sounds(column)):
            continue
        counts = roles.frame[column.name].drop_nulls().value_counts(sort=True)
        most, *words = counts[column.name].to_list()
        rows = dict(counts.iter_rows())
        if flags and not any(_comes_with(column, most, one) for one in flags):
            continue
        if len(words) == 1:
            if any(_agree(column, words, one) for one in flags):
                continue
            _add(roles, column.name, column.name, words)
            reasons[column.name] = f"{words[0]!r}, the rarer one of its two values, is taken for 1"
            continue
        if rows[most] < _NOTHING * sum(rows.values()):
            continue
        found.columns.add(column.name)
        found.afterwards[column.name] = "its words are labels, as flags"
        welcome = [word for word in words if not re.search(AVERSE, word.lower())]
        averse = [word for word in words if word not in welcome]
        if welcome and not any(_agree(column, welcome, one) for one in flags):
            name = snake(f"{column.name}_any", roles.columns)
            _add(roles, name, column.name, welcome)
            reasons[name] = (
                f"of the words of {column.name!r}, most rows have {most!r}, so that "
                f"{', '.join(map(repr, welcome))} are taken for 1"
            )
        for word in [*welcome[1:], *averse]:
            told = any(_agree(column, [word], one) for one in flags)
            if rows[word] >= FEWEST and not told:
                name = snake(f"{column.name}_{word}", roles.columns)
                _add(roles, name, column.name, [word])
                reasons[name] = f"{word!r} of {column.name!r} is taken for 1"
    return reasons


def _comes_with(column: Column, most: str, flag: Column) -> bool:
    """Whether other words than the one that most rows have stand only where a flag is 1."""
    rows = pl.DataFrame({"word": column.raw, "flag": flag.number}).drop_nulls()
    there = float(rows.filter(pl.col("word") != most)["flag"].mean() or 0.0)
    zeros = int((rows["flag"] == 0).sum())
    by_chance = float((rows["word"] != most).mean() or 0.0) * zeros
    return there > _COMES and by_chance >= FEWEST


def _agree(column: Column, ones: list[str], flag: Column) -> bool:
    """Whether a flag says already which rows have one of these words."""
    rows = pl.DataFrame({"word": column.raw, "flag": flag.number}).drop_nulls()
    has = rows["word"].is_in(ones)
    differ = int((has != (rows["flag"] == 1)).sum())
    return differ <= _SAME * int(has.sum())


def _add(roles: Roles, name: str, source: str, ones: list[str]) -> None:
    made = flag(roles.frame[source], ones).cast(pl.String).alias(name)
    roles.frame = roles.frame.with_columns(made)
    # The frame is in the order of time, columns are in that of the files.
    roles.columns[name] = look(name, flag(roles.columns[source].raw, ones).cast(pl.String))
    roles.derive = roles.derive | {name: {"flag": source, "ones": ones}}


def _sounds(column: Column) -> bool:
    """Whether the name of a column, or all of its words but the most frequent one, say so."""
    said = re.compile("|".join((OUTCOME, SATISFIED, AVERSE)))
    counts = column.raw.drop_nulls().value_counts(sort=True)
    _, *words = counts[column.name].cast(pl.String).to_list()
    return bool(
        re.search(OUTCOME, column.name.lower()) or all(said.search(one.lower()) for one in words)
    )


def _differs_in_lists(roles: Roles, name: str) -> bool:
    """Whether rows of one request, or of one user and instant, differ in a column."""
    by = [roles.user, "__time"] if roles.request is None else [roles.request]
    lists = roles.frame.group_by(by).agg(n=pl.len(), d=pl.col(name).n_unique())
    several = lists.filter(pl.col("n") > 1)
    return len(several) >= FEWEST and float((several["d"] > 1).mean() or 0.0) > 0.1
