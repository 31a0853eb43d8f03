"""Guesses which column of a log holds event types, and which of them is an impression."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import combinations

import polars as pl

from multigate.jobs.onboarding.tables.columns import DECIDES, Column, decides, measures

_SOON = timedelta(minutes=10)
_OTHERS = 0.2  # of the rows


def event_types(
    frame: pl.DataFrame, columns: dict[str, Column], ids: list[str]
) -> tuple[str | None, str | None, float]:
    """The column of event types, the type that is an impression, and how many rows follow one.

    Of event types, most other rows follow an impression of the same user and item. Who user and
    item are is not known yet: any two columns serve of which rows of an impression and its feedback
    agree. Where there is one such column only, it is the item, and they follow soon.

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
) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """The columns that may hold event types, each with pairs of what may be its users and items.

    Where one column decides the others, it may be the item, and there may be no users.
    """
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
        pairs: list[tuple[str, ...]] = list(combinations(keys, 2))
        if keys and all(decides(frame, keys[0], one) >= DECIDES for one in keys[1:]):
            pairs.append((keys[0],))
        if pairs:
            yield name, pairs


def follows(frame: pl.DataFrame, event: str, shown: Sequence[str], keys: tuple[str, ...]) -> float:
    """Which share of the rows of other types have an earlier row of these, of the same keys.

    Of an item alone, one that is little earlier: others have the same item.
    """
    time = pl.col("__time")
    rows = frame.select(*keys, "__time", is_shown=pl.col(event).is_in(shown))
    at = pl.when("is_shown").then(time)
    first = at.min().over(*keys) if len(keys) > 1 else at.forward_fill().over(*keys)
    rows = rows.with_columns(first=first).filter(~pl.col("is_shown"))
    if not len(rows):
        return 0.0
    is_after = pl.col("first") <= time
    if len(keys) == 1:
        is_after &= time - pl.col("first") <= _SOON
    return float(rows.select(is_after.fill_null(False).mean()).item())


def beats_chance(
    frame: pl.DataFrame, event: str, shown: Sequence[str], keys: tuple[str, ...], share: float
) -> bool:
    """Whether fewer rows follow an impression where the types are shuffled.

    Of an item alone, few must follow two: else one cannot tell whose impression it was.
    """
    if len(keys) == 1 and _follow_two(frame, event, shown, keys[0]) > _OTHERS:
        return False
    shuffled = frame.with_columns(pl.col(event).shuffle(seed=0))
    chance = follows(shuffled, event, shown, keys)
    return chance < 0.9 and share - chance >= 0.3 * (1 - chance)


def _follow_two(frame: pl.DataFrame, event: str, shown: Sequence[str], item: str) -> float:
    """Which share of the rows of other types have two such rows of their item little earlier."""
    is_shown = pl.col(event).is_in(shown)
    then = frame.filter(is_shown).select(item, "__time")
    then = then.with_columns(before=pl.col("__time").shift().over(item)).drop_nulls()
    rows = frame.filter(~is_shown).drop_nulls([item, "__time"]).sort("__time")
    last = rows.join_asof(then, on="__time", by=item, check_sortedness=False)
    two = last.select((pl.col("__time") - pl.col("before") <= _SOON).fill_null(False).mean())
    return float(two.item() or 0.0)
