"""Guesses which columns of a log of impressions are feedback, and drafts a task for each."""

import re

import polars as pl

from multigate.jobs.onboarding.feedback.afterwards import (
    Outcome,
    is_decided,
    known_afterwards,
    outcomes_of_groups,
    sounds_measured,
)
from multigate.jobs.onboarding.feedback.durations import (
    add_count,
    add_duration,
    add_leak,
    add_measured,
    is_count,
    is_duration,
    is_part,
    length_of,
    owner_of,
)
from multigate.jobs.onboarding.feedback.labels import (
    AVERSE,
    DECIDED,
    DONE,
    FEWEST,
    SATISFIED,
    SMALL,
    Labels,
    is_scale,
    is_small,
    snake,
)
from multigate.jobs.onboarding.feedback.outcome_words import spell_outcomes
from multigate.jobs.onboarding.feedback.places import lists_of, position_of
from multigate.jobs.onboarding.feedback.ratings import (
    FEW_MISSING,
    add_given,
    add_rating,
    has_zeros,
    lowers,
)
from multigate.jobs.onboarding.tables.columns import Column, decides, look
from multigate.jobs.onboarding.tables.outcomes import NEARLY_ALL
from multigate.jobs.onboarding.tables.roles import Roles

_SUMS = 0.8
_OFTEN_SEEN, _MOSTLY_SEEN = 0.8, 0.5  # of the rows
_KINDS = 50  # values
_SAYS_THE_SAME = 0.95  # correlation of ranks
_OFTEN = 300  # positives by which users that differ would show


def feedback_columns(roles: Roles) -> Labels:
    """Tasks of an impression log: its flags, ratings and durations that vary within a user.

    Words that differ within a list may be made flags.
    """
    found = Labels()
    free = _free(roles)
    spelled = spell_outcomes(roles, free, found)
    free = [column for column in _free(roles) if column.name not in found.columns]
    flags = [c for c in free if c.flag and FEWEST <= c.ones <= NEARLY_ALL * c.rows]
    # 0.0 and 1.0 may be a measure of few values, such as an affinity.
    flags = [c for c in flags if c.whole or (c.ones >= _OFTEN and _varies(roles, c))]
    flags.sort(key=lambda c: -c.ones)
    flags = [flag for flag in flags if not _is_given(roles, flag, flags)]
    found.position = position_of(roles.frame, roles, free)
    if found.position is not None and lists_of(roles.frame, roles) == [roles.session]:
        roles.request = roles.session
        roles.reasons["request"] = f"the session, of which {found.position!r} counts the rows"
    small = [c for c in free if is_small(c) or is_scale(c)]
    small = [c for c in small if c.name != found.position]
    ratings = small if len(small) < 2 else [c for c in small if c.missing > 0] or small[:1]
    parts = _parts(roles, free, flags)
    scales = [*ratings, *(look(name, part) for name, (_, part) in parts.items())]
    seen = flags[0] if flags and _tells_seen(roles, flags[0], flags[1:]) else None
    main = next((flag for flag in flags if flag is not seen), None)
    for flag in flags:
        later = flag is not seen and flag is not main
        name = snake(flag.name, found.tasks)
        share = flag.ones / max(flag.raw.len(), 1)
        nested = main is not None and later and _share_of(flag, main) > 0.95
        # What mostly comes with a click is compared among clicks: else the click would speak.
        mostly = main is not None and later and _share_of(flag, main) > 0.5
        within = main if mostly else None
        averse = re.search(AVERSE, flag.name.lower()) is not None or (
            any(_lowers(flag, scale, within) for scale in scales)
            and not _is_welcome(flag, flags, within)
        )
        named = re.search(SATISFIED, flag.name.lower()) is not None
        satisfied = named or averse or nested
        found.tasks[name] = {
            "group": "satisfaction" if satisfied else "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": flag.name},
            "score_weight": 0 if flag is seen else -1 if averse else 1,
        }
        found.events[name] = flag.name
        found.columns.add(flag.name)
        found.reasons[name] = (
            f"column {flag.name!r} is 1 in {share:.2%} of the rows and varies within users and "
            "items"
            + ("; its name or lower values beside it say that it is unwelcome" if averse else "")
        )
        if flag.missing > FEW_MISSING and any(one.missing <= FEW_MISSING for one in flags):
            found.tasks[name]["score_weight"] = 0
            found.reasons[name] += (
                f"; {flag.missing:.0%} of the rows have none and no label, so that it is a rate of "
                "the others, and no term of the combined score"
            )
        if flag is seen:
            found.reasons[name] += (
                "; no other flag is 1 without it, and it tells no choice, but what was seen: the "
                "combined score leaves it out"
            )
    for task, of in found.events.items():
        found.reasons[task] += f"; {spelled[of]}" if of in spelled else ""
    for rating in ratings:
        add_rating(found, rating)
    if not (flags or ratings):
        for scale in free:
            if scale.name != found.position and has_zeros(scale):
                add_given(found, scale)
                break
    outcomes = [Outcome(f"{f.name!r} is 1", f, f"{f.name!r} is never 1") for f in flags]
    for column in free:
        if column.name in (*found.columns, found.position):
            continue
        owner = owner_of(column, flags)
        if is_duration(column, owner):
            add_duration(found, roles, column, owner, length_of(roles, column))
        elif column.name in parts:
            add_duration(found, roles, column, None, parts[column.name][0])
        elif (why := known_afterwards(roles, column, outcomes)) is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = why
        elif sounds_measured(roles.frame, roles, column.name):
            add_measured(found, column, is_main=not (flags or ratings))
        elif is_count(roles, column):
            add_count(found, column)
        else:
            add_leak(found, column, flags)
    names = {flag.name: repr(flag.name) for flag in flags}
    of_groups = outcomes_of_groups(roles.frame, roles, names)
    measured = _measured(roles, found)
    for column in roles.columns.values():
        if column.name in (*roles.named, *found.columns, found.position):
            continue
        counted = next((f for f in flags if _sums(roles, column, f)), None)
        twin = next((told for told, one in measured.items() if _agrees(column, one)), None)
        if twin is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = f"it says what {twin} says: known only afterwards"
            continue
        why = (
            f"it goes with how many {counted.name!r} its own {roles.request!r} has, so that it can "
            "be known only afterwards"
            if counted is not None
            else known_afterwards(roles, look(column.name, roles.frame[column.name]), of_groups)
        )
        if why is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = why
    if not any(
        task["type"] == "binary" and name in found.events for name, task in found.tasks.items()
    ):
        name = snake("chosen", found.tasks)
        found.shown_only = True
        found.tasks = {
            name: {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "impression"},
                "score_weight": 1,
            }
        } | found.tasks
        found.reasons[name] = (
            "every row is a positive; its negatives are sampled, because no column says what was "
            "shown and not taken"
        )
    return found


def _measured(roles: Roles, found: Labels) -> dict[str, pl.Series]:
    """What tasks tell of each row in numbers, (N,) in the order of the files, by what it is."""
    told = {}
    for task in found.tasks.values():
        label = task["label"]
        column = roles.columns.get(label.get("column", ""))
        if column is None or column.number is None or column.distinct <= SMALL:
            continue
        told[repr(column.name)] = column.number
        over = roles.columns.get(label.get("over", ""))
        if over is not None and over.number is not None:
            both = pl.DataFrame({"x": column.number, "y": over.number})
            part = both.select(pl.col("x") / pl.col("y")).to_series()
            told[f"{column.name!r} over {over.name!r}"] = part
    return told


def _agrees(column: Column, measured: pl.Series) -> bool:
    """Whether a number rises with what was measured, where that is above 0, and is 0 elsewhere."""
    if column.number is None or column.distinct <= SMALL:
        return False
    both = pl.DataFrame({"x": column.number, "y": measured}).fill_null(0.0)
    taken = both.filter(pl.col("y") > 0)
    alike = taken.select(pl.corr("x", "y", method="spearman").fill_nan(0.0)).item()
    elsewhere = both.filter(pl.col("y") == 0)["x"]
    none = not len(elsewhere) or float((elsewhere == 0).mean() or 0.0) > DECIDED
    return len(taken) >= FEWEST and none and float(alike or 0.0) > _SAYS_THE_SAME


def _parts(
    roles: Roles, free: list[Column], flags: list[Column]
) -> dict[str, tuple[Column, pl.Series]]:
    """Columns of how much of its item each row took -> the item's length, and the part, (N,)."""
    found = {}
    for column in free:
        if column.number is None or column.distinct <= SMALL or owner_of(column, flags) is not None:
            continue
        length = length_of(roles, column)
        if length is not None and is_part(roles, column, length):
            both = pl.DataFrame({"x": column.number, "y": length.number})
            found[column.name] = length, both.select(pl.col("x") / pl.col("y")).to_series()
    return found


def _free(roles: Roles) -> list[Column]:
    """The columns without a role that neither users nor items nor requests decide."""
    taken = roles.named | roles.kinds.keys()
    free = [c for name, c in roles.columns.items() if name not in taken and c.distinct > 1]
    by = (roles.user, roles.item, roles.request, roles.session)
    return [c for c in free if not c.serial and not is_decided(roles.frame, c, by)]


def _sums(roles: Roles, column: Column, flag: Column) -> bool:
    """Whether a number of the request goes with how often a flag is 1 in that request."""
    if roles.request is None or column.number is None or column.flag or column.distinct < 3:
        return False
    rows = roles.frame.select(
        r=roles.request,
        x=look(column.name, roles.frame[column.name]).number,
        y=look(flag.name, roles.frame[flag.name]).number,
    ).drop_nulls()
    requests = rows.group_by("r").agg(
        pl.col("x").max(), pl.col("y").sum(), low=pl.col("x").min(), n=pl.len()
    )
    several = requests.filter(pl.col("n") > 1)
    if len(several) < FEWEST or float((several["x"] == several["low"]).mean() or 0) < DECIDED:
        return False
    together = several.select(pl.corr("x", "y", method="spearman").fill_nan(0.0)).item()
    return float(together or 0.0) > _SUMS


def _is_given(roles: Roles, flag: Column, flags: list[Column]) -> bool:
    """Whether a flag was there before the user did anything, such as a badge of the offer.

    What users do differs from user to user and from item to item; where neither differs in a flag
    that is often 1, and other flags do, it was drawn for each row. What is nested, as an order is
    within a click, is done; so is, where no column names single users, what its name says.
    """
    others = [other for other in flags if other is not flag]
    if roles.grouped and re.search(DONE, flag.name.lower()):
        return False
    if flag.ones < _OFTEN or not any(_varies(roles, other) for other in others):
        return False
    if any(max(_share_of(flag, other), _share_of(other, flag)) > 0.95 for other in others):
        return False
    return not _varies(roles, flag)


def _tells_seen(roles: Roles, main: Column, others: list[Column]) -> bool:
    """Whether a flag tells that a row was seen: all other feedback needs it, and choice is not it.

    It is 1 in most rows; and in nearly all, or neither users nor items nor users by kinds of items
    differ in it.
    """
    share = main.ones / max(main.rows, 1)
    nested = max(0.95, 1 - 0.1 * (1 - share))  # where nearly all rows have it, more than by chance
    if not others or share < _MOSTLY_SEEN or any(_share_of(o, main) < nested for o in others):
        return False
    if share > _OFTEN_SEEN:
        return True
    kinds = [
        name
        for name, column in roles.columns.items()
        if name not in roles.named
        and 2 <= column.distinct <= _KINDS
        and not column.is_list
        and decides(roles.frame, roles.item, name) > DECIDED
    ]
    return main.ones >= _OFTEN and not _varies(roles, main, *([roles.user, k] for k in kinds))


def _varies(roles: Roles, flag: Column, *more: list[str]) -> bool:
    """Whether users, or items, differ in how often a flag is 1 by more than chance.

    Args:
        roles: the log.
        flag: the flag.
        more: columns that together name further groups.
    """
    ones = roles.frame.with_columns(one=look(flag.name, roles.frame[flag.name]).number)
    for by in ([roles.user], [roles.item], *more):
        rows = ones.drop_nulls([*by, "one"])
        rate = float(rows["one"].mean() or 0.0)
        spread = rate * (1 - rate)
        if not spread:
            return False
        groups = rows.group_by(by).agg(n=pl.len(), k=pl.col("one").sum())
        n, k = groups["n"].cast(pl.Float64), groups["k"]
        # Pearson's statistic, and its variance where the groups are alike.
        statistic = float(((k - n * rate) ** 2 / (n * spread)).sum())
        variance = float((2 + (1 / spread - 6) / n).sum())
        if statistic - len(groups) > 4 * variance**0.5:
            return True
    return False


def _share_of(flag: Column, main: Column) -> float:
    both = pl.DataFrame({"flag": flag.number, "main": main.number}).filter(pl.col("flag") == 1)
    return float(both["main"].mean() or 0.0)


def _pairs(flag: Column, other: Column, within: Column | None) -> pl.DataFrame:
    """A flag beside another column, in the rows where `within` is 1.

    A flag that is never 1 without another one says what only that other one says elsewhere.
    """
    rows = pl.DataFrame({"flag": flag.number, "other": other.number})
    return rows if within is None or within.number is None else rows.filter(within.number == 1)


def _is_welcome(flag: Column, flags: list[Column], within: Column | None) -> bool:
    """Whether other feedback comes more often where a flag is 1, whatever one scale says."""
    for other in flags:
        if other is flag or other is within or re.search(AVERSE, other.name.lower()):
            continue
        rows = _pairs(flag, other, within)
        one, zero = (rows.filter(pl.col("flag") == at)["other"] for at in (1, 0))
        with_it, without = float(one.mean() or 0.0), float(zero.mean() or 0.0)
        if float(one.sum()) >= FEWEST and with_it > 1.5 * without:
            return True
    return False


def _lowers(flag: Column, rating: Column, within: Column | None) -> bool:
    pairs = _pairs(flag, rating, within).drop_nulls()
    return lowers(pairs["flag"], pairs["other"])
