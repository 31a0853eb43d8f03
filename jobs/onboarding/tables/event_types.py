"""Guesses which column of a log holds event types, and which of them is an impression."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import polars as pl

from multigate.jobs.onboarding.tables.columns import Column, decides, measures


def event_types(
    frame: pl.DataFrame, columns: dict[str, Column], ids: list[str]
) -> tuple[str | None, str | None, float]:
    """The column of event types, the type that is an impression, and how many rows follow one.

    Of event types, most other rows follow an impression of the same user and item. Who user and
    item are is not known yet: any two columns serve of which rows of an impression and its feedback
    agree.

    Args:
        frame: the log in the order of time.
        columns: of it.
        ids: names of those that may name users, items or requests.
    """
    best: tuple[float, str | None, str | None] = (0.0, None, None)
    for name, pairs in candidates(frame, columns, ids):
        for shown in frame[name].value_counts(sort=True)[name].head(3):
            for pair in pairs:
                share = follows(frame, name, [shown], pair)
                if share > max(best[0], 0.5) and beats_chance(frame, name, [shown], pair, share):
                    best = (share, name, shown)
    return best[1], best[2], best[0]


def candidates(
    frame: pl.DataFrame, columns: dict[str, Column], ids: list[str]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The columns that may hold event types, each with pairs of what may be its users and items."""
    for name, column in columns.items():
        few = 2 <= column.distinct <= 40 and column.missing < 0.01
        if not few or column.number is not None or column.is_list:
            continue
        large = [one for one in ids if one != name and columns[one].distinct > column.distinct]
        # How long a row lasted may say which types it can be of.
        ids_alone = [one for one in large if not measures(columns[one])]
        large = ids_alone if len(ids_alone) >= 2 else large
        # Attributes of a user, an item or a session are no event types.
        if any(decides(frame, one, name) > 0.9 for one in large[:8]):
            continue
        keys = sorted(large, key=lambda one: -columns[one].distinct)[:3]
        if len(keys) >= 2:
            yield name, list(combinations(keys, 2))


def follows(frame: pl.DataFrame, event: str, shown: Sequence[str], keys: tuple[str, str]) -> float:
    """Which share of the rows of other types have an earlier row of these, of the same keys."""
    rows = frame.select(*keys, "__time", is_shown=pl.col(event).is_in(shown))
    first = pl.when("is_shown").then(pl.col("__time")).min().over(*keys)
    rows = rows.with_columns(first=first).filter(~pl.col("is_shown"))
    if not len(rows):
        return 0.0
    return float(rows.select((pl.col("first") <= pl.col("__time")).fill_null(False).mean()).item())


def beats_chance(
    frame: pl.DataFrame, event: str, shown: Sequence[str], pair: tuple[str, str], share: float
) -> bool:
    """Whether fewer rows follow an impression where the types are shuffled."""
    shuffled = frame.with_columns(pl.col(event).shuffle(seed=0))
    chance = follows(shuffled, event, shown, pair)
    return chance < 0.9 and share - chance >= 0.3 * (1 - chance)
