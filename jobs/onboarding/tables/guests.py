"""Finds which column names a user where the column of users does not, as a guest's session does.

There it is empty, or holds one word for all guests, such as `guest` or `0`.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from multigate.jobs.onboarding.tables.columns import DECIDES, Column, decides
from multigate.pipeline.read.json_lines import as_text

FEW_GUESTS = 0.003  # of the rows
_FILLS = 0.95  # of the rows without a user
_SEVERAL = 1.05  # sessions or devices of a user
_MOSTLY = 0.5  # of the rows of those who have a user at some time
_VISIT = timedelta(minutes=30)
_ONE = 0.9  # of the rows of a visit
_ALIKE = 0.01
_SHARE, _TIMES = 0.05, 10  # of the rows, and as often as the next user
_USERS = 30


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


def crowd(users: pl.Series) -> tuple[str, float] | None:
    """The one user who has so many rows that it may stand for all who are not known.

    Args:
        users: (N,) ids; nulls do not count.

    Returns:
        The id and its share of the rows, in all spellings that `empty` of derive takes out: with
        capitals or without, and blanks around it. None where no user has so many.
    """
    texts = as_text(users.drop_nulls()).alias("text").to_frame()
    texts = texts.with_columns(one=pl.col("text").str.strip_chars().str.to_lowercase())
    counts = texts["one"].value_counts(sort=True, name="rows").rows()
    if len(counts) < _USERS or counts[0][1] < max(_SHARE * len(users), _TIMES * counts[1][1]):
        return None
    most, rows = counts[0]
    spellings = texts.filter(pl.col("one") == most)["text"].value_counts(sort=True)
    return str(spellings["text"][0]).strip(), rows / len(users)


def of_the_crowd(word: str, share: float, column: str) -> str:
    """What to do about one user of so many rows.

    Args:
        word: the user.
        share: of the rows.
        column: of users.
    """
    return (
        f"{word!r} has {share:.1%} of the rows: if it stands for all who are not known, they share "
        "one past and one embedding, and features of the user say little; derive the user: "
        f"{{coalesce: [{column}, THAT], empty: [{word}]}}, where THAT tells them apart; without it "
        "such rows are left out"
    )
