"""Guesses which columns or event types of a log are feedback, and drafts a task for each."""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import polars as pl

from multigate.jobs.onboarding.columns import Column, decides, look
from multigate.jobs.onboarding.roles import Roles

_SATISFIED = (
    r"like|love|fav|bookmark|rat(e|ing)|follow|comment|subscrib|star|vote|thumb|save|review"
)
_AVERSE = r"dis|hide|report|block|skip|unfollow|unlike|negative|spam|return|refund|cancel"
_FEWEST = 30  # positives that a task needs
_SUMS = 0.8
_FEW_MISSING = 0.05
_OFTEN = 300  # positives by which users that differ would show
_DELAYS = (
    *(("10m", 600), ("1h", 3600), ("6h", 21_600), ("1d", 86_400)),
    *(("3d", 259_200), ("7d", 604_800), ("14d", 1_209_600), ("30d", 2_592_000)),
)
_KEPT = 0.98  # of an event type's rows, which a label's window should hold
_WINDOW = 0.1  # of the log's time: a tenth is for testing, whose last labels stay open
_FEW_VALUES = 100  # of one event type, where several have some
_SMALL = 12
_CERTAIN = 0.97  # of the impressions
_LEAK = 0.95
_DECIDED = 0.95


@dataclass
class Labels:
    """The tasks of a draft."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    columns: set[str] = field(default_factory=set)
    """The columns that hold feedback, which no feature may read."""
    position: str | None = None
    events: dict[str, str] = field(default_factory=dict)
    """Task -> the event type, or the 0/1 column, that is its label."""
    wait: str = "10m"
    """After how long a row's feedback is complete."""
    shown_only: bool = False
    """Whether what was shown and not taken is missing from the log."""
    afterwards: dict[str, str] = field(default_factory=dict)
    """Column that no task reads, and why it can be known only afterwards."""
    certain: dict[str, str] = field(default_factory=dict)
    """Event types without a task, and which share of the impressions they follow."""
    value: str | None = None
    """Of an event log: the column of the events' numbers, such as seconds read."""


def feedback_events(roles: Roles) -> Labels:
    """Tasks of an event log: a task for each event type and for its numbers, and dwell.

    The impression itself is a task where the log holds only what users opened; where it holds whole
    lists, what was shown and not taken is the negative.
    """
    found = Labels()
    frame, shown = roles.frame, str(roles.impression)
    delays = _delays(roles)
    span = _span_seconds(roles)
    others = {kind: n for kind, n in roles.event_counts.items() if kind != shown}
    for at, (kind, count) in enumerate(others.items()):
        if count < _FEWEST:
            continue
        name = snake(kind, found.tasks)
        within, kept = _window(delays, kind, span)
        satisfied = re.search(_SATISFIED, kind.lower()) is not None or at >= len(others) / 2
        found.tasks[name] = {
            "group": "satisfaction" if satisfied else "engagement",
            "type": "binary",
            "label": {"rule": "event", "events": [kind], "within": within},
            "score_weight": -1 if re.search(_AVERSE, kind.lower()) else 1,
        }
        found.events[name] = kind
        found.reasons[name] = (
            f"{count} events of type {kind!r}, {kept:.0%} of them within {within} of the impression"
        )
        if kept < _KEPT:
            found.reasons[name] += (
                "; the others count as 0; a longer window leaves more labels at the log's end open"
            )
    _add_value(found, roles)
    _drop_certain(found, roles)
    if found.events and _shows_lists(roles):
        return found
    first = {
        snake("shown" if not re.match(r"^[A-Za-z]", shown) else shown, found.tasks): {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "impression"},
            "score_weight": 1,
        }
    }
    found.shown_only = True
    [name] = first
    found.reasons[name] = (
        f"every {shown!r} is a positive; its negatives are sampled, because the log does not say "
        "what was shown and not taken"
    )
    found.tasks = first | found.tasks
    if roles.session is not None:
        gap = _dwell(frame, roles)
        found.tasks["dwell"] = {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "dwell", "cap": _round_up(gap), "within": "1d", "ends": "other_item"},
            "transform": "log1p",
            "weight": 0.2,
        }
        found.reasons["dwell"] = (
            f"time to the next event on another item in the same {roles.session!r}; 80 % of them "
            f"take at most {gap:.0f} s"
        )
    return found


def _drop_certain(found: Labels, roles: Roles) -> None:
    """Drop the tasks of types that follow nearly every impression: they tell nothing apart."""
    pairs = roles.frame.select(e=str(roles.event), u=roles.user, i=roles.item).unique()
    shown = pairs.filter(pl.col("e") == roles.impression)
    for name, kind in list(found.events.items()):
        after = shown.join(pairs.filter(pl.col("e") == kind), on=["u", "i"], how="semi")
        if len(found.events) > 1 and len(after) > _CERTAIN * len(shown):
            del found.tasks[name], found.events[name], found.reasons[name]
            found.certain[kind] = f"{len(after) / max(len(shown), 1):.0%}"


def _shows_lists(roles: Roles) -> bool:
    """Whether most impressions stand beside others of one user and instant: who opens has one."""
    shown = roles.frame.filter(pl.col(str(roles.event)) == roles.impression)
    together = pl.col(roles.item).n_unique().over(roles.user, "__time") > 1
    return float(shown.select(together.mean()).item() or 0.0) > 0.5


def _window(delays: pl.DataFrame, kind: str, span: float) -> tuple[str, float]:
    """The shortest window that holds nearly all feedback of a type, and the share that it holds."""
    seconds = delays.filter(pl.col("e") == kind)["delay"].drop_nulls()
    usable = [one for one in _DELAYS if one[1] <= _WINDOW * span] or [_DELAYS[0]]
    shares = {
        text: float((seconds <= limit).mean() or 0.0) if len(seconds) else 1.0
        for text, limit in usable
    }
    most = max(shares.values())
    return next((text, kept) for text, kept in shares.items() if kept >= min(_KEPT, most))


def _add_value(found: Labels, roles: Roles) -> None:
    """A task for the numbers of an event type, such as seconds of `read` or stars of `rate`."""
    for name, column in roles.columns.items():
        if name in roles.named or column.number is None or column.flag or column.distinct < 3:
            continue
        number = pl.col(name).cast(pl.Float64, strict=False)  # some logs write 0 for no number
        with_value = roles.frame.filter(number.is_not_null() & (number != 0))
        kinds = dict(with_value[str(roles.event)].value_counts(sort=True).iter_rows())
        owners = {
            task: kind
            for task, kind in found.events.items()
            if kinds.get(kind, 0) >= max(_FEWEST, 0.5 * roles.event_counts[kind])
        }
        known = sum(kinds[kind] for kind in owners.values())
        if not owners or known < 0.95 * len(with_value):
            continue  # the impressions have such numbers, too: it is a feature
        given = {
            task: look(name, with_value.filter(pl.col(str(roles.event)) == kind)[name])
            for task, kind in owners.items()
        }
        # A number that a type hardly varies, such as how many pieces, says little more than it.
        told = {
            task: one
            for task, one in given.items()
            if len(given) == 1 or (one.distinct > 3 and one.rows >= _FEW_VALUES)
        }
        for task, one in told.items():
            found.value, stars = name, _is_small(one)
            found.columns.add(name)
            label = found.tasks[task]["label"] | {"aggregate": "max" if stars else "sum"}
            own = snake(name if len(told) == 1 else f"{task}_{name}", found.tasks)
            found.tasks[own] = {
                "group": "satisfaction" if stars else "engagement",
                "type": "regression",
                "label": label,
            } | ({} if stars or one.lowest < 0 else {"transform": "log1p"})
            found.reasons[own] = (
                f"{kinds[owners[task]]} of the {len(with_value)} values of {name!r} belong to "
                f"{owners[task]!r}"
            )
        if told:
            return


def _delays(roles: Roles) -> pl.DataFrame:
    """Each row of feedback: its type `e`, and the seconds since the impression, `delay`."""
    event, shown = str(roles.event), roles.impression
    rows = roles.frame.select("__time", u=roles.user, i=roles.item, e=event).drop_nulls()
    views = rows.filter(pl.col("e") == shown).select("u", "i", "__time", seen="__time")
    joined = (
        rows.filter(pl.col("e") != shown)
        .sort("__time")
        .join_asof(views.sort("__time"), on="__time", by=["u", "i"], check_sortedness=False)
    )
    return joined.select("e", delay=(pl.col("__time") - pl.col("seen")).dt.total_seconds())


def _dwell(frame: pl.DataFrame, roles: Roles) -> float:
    gaps = frame.select(
        gap=(pl.col("__time").shift(-1) - pl.col("__time")).over(str(roles.session)),
        other=pl.col(roles.item).shift(-1).over(str(roles.session)) != pl.col(roles.item),
    ).filter("other")
    value = gaps["gap"].dt.total_seconds().quantile(0.8)
    return float(value or 600)


def _round_up(seconds: float) -> str:
    for text, limit in (("1m", 60), ("5m", 300), ("10m", 600), ("30m", 1800)):
        if seconds <= limit:
            return text
    return "30m"


def _span_seconds(roles: Roles) -> float:
    known = roles.time.values.drop_nulls()
    span = known.max() - known.min()
    return span.total_seconds() if isinstance(span, timedelta) else 0.0


def feedback_columns(roles: Roles) -> Labels:
    """Tasks of an impression log: its flags, ratings and durations that vary within a user."""
    found = Labels()
    free = [c for name, c in roles.columns.items() if name not in roles.named and c.distinct > 1]
    free = [column for column in free if not column.serial and not _decided(roles, column)]
    flags = [c for c in free if c.flag and _FEWEST <= c.ones <= 0.97 * c.rows]
    flags.sort(key=lambda c: -c.ones)
    flags = [flag for flag in flags if not _is_given(roles, flag, flags)]
    found.position = _position(roles, free)
    small = [c for c in free if _is_small(c) and c.name != found.position]
    ratings = small if len(small) < 2 else [c for c in small if c.missing > 0] or small[:1]
    main = flags[0] if flags else None
    for at, flag in enumerate(flags):
        name = snake(flag.name, found.tasks)
        share = flag.ones / max(flag.raw.len(), 1)
        nested = main is not None and at > 0 and _share_of(flag, main) > 0.95
        # What mostly comes with a click is compared among clicks: else the click would speak.
        mostly = main is not None and at > 0 and _share_of(flag, main) > 0.5
        within = main if mostly else None
        averse = re.search(_AVERSE, flag.name.lower()) is not None or (
            any(_lowers(flag, rating, within) for rating in ratings)
            and not _is_welcome(flag, flags, within)
        )
        named = re.search(_SATISFIED, flag.name.lower()) is not None
        satisfied = named or averse or (at > 0 and nested)
        found.tasks[name] = {
            "group": "satisfaction" if satisfied else "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": flag.name},
            "score_weight": -1 if averse else 1,
        }
        found.events[name] = flag.name
        found.columns.add(flag.name)
        found.reasons[name] = (
            f"column {flag.name!r} is 1 in {share:.2%} of the rows and varies within users and "
            "items" + ("; its name or lower ratings say that it is unwelcome" if averse else "")
        )
    for rating in ratings:
        _add_rating(found, rating)
    if not (flags or ratings):
        for scale in free:
            if scale.name != found.position and _has_zeros(scale):
                _add_given(found, scale)
                break
    for column in free:
        if column.name in (*found.columns, found.position):
            continue
        owner = _owner(column, flags)
        if _is_duration(column, owner):
            _add_duration(found, column, owner, _length(roles, column))
        elif owner is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = (
                f"it is above 0 only where {owner.name!r} is 1, so that it can be known only "
                "afterwards"
            )
        elif (never := next((flag for flag in flags if _excludes(column, flag)), None)) is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = (
                f"where it is 0 or missing, {never.name!r} is never 1, and it differs within users "
                "and items, as what is measured afterwards does"
            )
        else:
            _add_leak(found, column, flags)
    for column in roles.columns.values():
        known = column.name in roles.named or column.name in found.columns
        counted = None if known else next((f for f in flags if _sums(roles, column, f)), None)
        if counted is not None:
            found.columns.add(column.name)
            found.afterwards[column.name] = (
                f"it goes with how many {counted.name!r} its own {roles.request!r} has, so that it "
                "can be known only afterwards"
            )
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
    if len(several) < _FEWEST or float((several["x"] == several["low"]).mean() or 0) < _DECIDED:
        return False
    together = several.select(pl.corr("x", "y", method="spearman").fill_nan(0.0)).item()
    return float(together or 0.0) > _SUMS


def _is_given(roles: Roles, flag: Column, flags: list[Column]) -> bool:
    """Whether a flag was there before the user did anything, such as a badge of the offer.

    What users do differs from user to user and from item to item; where neither differs in a flag
    that is often 1, and other flags do, it was drawn for each row. What is nested, as an order is
    within a click, is done.
    """
    others = [other for other in flags if other is not flag]
    if flag.ones < _OFTEN or not any(_varies(roles, other) for other in others):
        return False
    if any(max(_share_of(flag, other), _share_of(other, flag)) > 0.95 for other in others):
        return False
    return not _varies(roles, flag)


def _varies(roles: Roles, flag: Column) -> bool:
    """Whether users, or items, differ in how often a flag is 1 by more than chance."""
    ones = roles.frame.select(
        roles.user, roles.item, one=look(flag.name, roles.frame[flag.name]).number
    )
    for by in (roles.user, roles.item):
        rows = ones.drop_nulls([by, "one"])
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


def _decided(roles: Roles, column: Column) -> bool:
    """Whether the user, the item or the request decides a column: then it is a feature."""
    by = [roles.user, roles.item, roles.request, roles.session]
    frame, name = roles.frame, column.name
    for one in by:
        if one is None:
            continue
        if column.flag:
            # Where a value is rare, most groups have none of it by chance: those that do decide.
            rare = frame[name].drop_nulls().value_counts(sort=True)[name][-1]
            some = frame.filter((pl.col(name) == rare).any().over(one))
        else:
            some = frame
        if decides(some, one, name) > _DECIDED:
            return True
    return False


def _is_small(column: Column) -> bool:
    """Whether values are few steps of one scale, such as stars."""
    if column.number is None or column.flag or not 3 <= column.distinct <= _SMALL:
        return False
    numbers = column.number.drop_nulls()
    halves = bool((numbers * 2 % 1 == 0).all())
    if float((numbers == column.lowest).mean() or 0.0) > 0.6:
        return False  # a count of something rare
    return halves and column.highest - column.lowest <= 10


def _position(roles: Roles, free: list[Column]) -> str | None:
    """The column of places: each place once in a request, or all places alike frequent."""
    for column in free:
        if column.number is None or not column.whole or column.lowest not in (0.0, 1.0):
            continue
        if column.flag or column.missing > 0 or column.highest > 1000:
            continue
        if roles.request is not None:
            lists = roles.frame.select(r=roles.request, p=column.name, i=roles.item)
            lists = lists.drop_nulls().unique()  # some logs write rows twice
            lists = lists.group_by("r").agg(n=pl.len(), d=pl.col("p").n_unique())
            several = lists.filter(pl.col("n") > 1)
            if len(several) and (several["n"] == several["d"]).mean() > 0.97:
                return column.name
        elif column.distinct <= 50 and column.distinct == column.highest - column.lowest + 1:
            shares = column.raw.value_counts()["count"] / column.rows * column.distinct
            if shares.min() > 0.85 and shares.max() < 1.15:
                return column.name
    return None


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
        if other is flag or other is within or re.search(_AVERSE, other.name.lower()):
            continue
        rows = _pairs(flag, other, within)
        one, zero = (rows.filter(pl.col("flag") == at)["other"] for at in (1, 0))
        with_it, without = float(one.mean() or 0.0), float(zero.mean() or 0.0)
        if float(one.sum()) >= _FEWEST and with_it > 1.5 * without:
            return True
    return False


def _lowers(flag: Column, rating: Column, within: Column | None) -> bool:
    pairs = _pairs(flag, rating, within).drop_nulls()
    one, zero = pairs.filter(pl.col("flag") == 1), pairs.filter(pl.col("flag") == 0)
    if len(one) < 20 or len(zero) < 20:
        return False
    spread = float(pairs["other"].std() or 1.0)
    return float(one["other"].mean() or 0) < float(zero["other"].mean() or 0) - 0.3 * spread


def _add_rating(found: Labels, rating: Column) -> None:
    name = snake(rating.name, found.tasks)
    numbers = rating.number
    assert numbers is not None
    label = {"rule": "column", "column": rating.name}
    found.columns.add(rating.name)
    found.tasks[name] = {
        "group": "satisfaction",
        "type": "regression",
        "label": label,
        "score_weight": 0.2,
    }
    given = "" if rating.missing == 0 else f"; {rating.missing:.0%} of the rows have none"
    found.reasons[name] = (
        f"column {rating.name!r} has {rating.distinct} steps from {rating.lowest:g} to "
        f"{rating.highest:g}{given}"
    )
    steps = sorted(numbers.drop_nulls().unique())[1:]
    good = min(steps, key=lambda step: abs(float((numbers >= step).mean() or 0) - 0.5))
    liked = snake(f"{name}_high", found.tasks)
    found.tasks[liked] = {
        "group": "satisfaction",
        "type": "binary",
        "label": label,
        "at_least": good,
        "score_weight": 1,
    }
    found.reasons[liked] = f"{rating.name!r} is at least {good:g}: about half of the rows"
    if rating.missing > _FEW_MISSING:
        for task in (name, liked):
            found.tasks[task]["score_weight"] = 0
        found.reasons[liked] += (
            "; most rows have no rating, so that it is a rate of those rated, and no term of the "
            "combined score"
        )


def _has_zeros(column: Column) -> bool:
    """Whether values are few steps of one scale and mostly 0, as where no rating was given."""
    rated = None if column.number is None else look(column.name, column.number.replace(0.0, None))
    return rated is not None and column.lowest == 0 and _is_small(rated)


def _add_given(found: Labels, scale: Column) -> None:
    name = snake(f"{scale.name}_given", found.tasks)
    numbers = scale.number
    assert numbers is not None
    least = float(numbers.filter(numbers > 0).min())  # type: ignore[arg-type]
    found.columns.add(scale.name)
    found.tasks[name] = {
        "group": "satisfaction",
        "type": "binary",
        "label": {"rule": "column", "column": scale.name},
        "at_least": least,
        "score_weight": 1,
    }
    found.reasons[name] = (
        f"column {scale.name!r} has steps from {least:g} to {scale.highest:g} and is mostly 0, as "
        "where none was given; raise at_least to learn the high ones"
    )


def _is_duration(column: Column, owner: Column | None) -> bool:
    """Whether a number tells how much was taken: most rows of its owner have one."""
    numbers = column.number
    if owner is None or numbers is None or column.distinct <= _SMALL:
        return False
    pairs = pl.DataFrame({"value": numbers, "owner": owner.number})
    taken = pairs.filter(pl.col("owner") == 1)
    return float((taken["value"] > 0).fill_null(False).mean() or 0.0) > 0.3


def _owner(column: Column, flags: list[Column]) -> Column | None:
    """The rarest flag without which a number is not above 0; an order's price is no click's."""
    return next((flag for flag in reversed(flags) if _follows(column, flag)), None)


def _follows(column: Column, main: Column) -> bool:
    """Whether a number that varies is above 0 only where something was taken."""
    numbers = column.number
    if numbers is None or column.flag or column.distinct < 2 or column.lowest < 0:
        return False
    positive = pl.DataFrame({"value": numbers, "main": main.number}).filter(pl.col("value") > 0)
    share = main.ones / max(main.rows, 1)
    return len(positive) >= _FEWEST and share < 0.9 and float(positive["main"].mean() or 0.0) > 0.95


def _excludes(column: Column, flag: Column) -> bool:
    """Whether a flag is never 1 where a number is 0 or missing, though by chance it often would."""
    if column.number is None or column.distinct <= _SMALL or column.lowest < 0:
        return False
    pairs = pl.DataFrame({"x": column.number.fill_null(0), "flag": flag.number}).drop_nulls()
    zero = pairs.filter(pl.col("x") == 0)["flag"]
    rate = float(pairs["flag"].mean() or 0.0)
    return rate * len(zero) >= _FEWEST and float(zero.sum()) == 0


def _length(roles: Roles, column: Column) -> Column | None:
    """The number of the item that a duration runs up to, such as the length of a song."""
    for name, length in roles.columns.items():
        if name in roles.named or length.number is None or length.distinct < _SMALL:
            continue
        both = pl.DataFrame({"x": column.number, "y": length.number}).filter(pl.col("x") > 0)
        parts = both.filter(pl.col("y") > 0).select(pl.col("x") / pl.col("y")).to_series()
        if len(parts) < max(_FEWEST, 0.9 * len(both)):
            continue
        whole = float((parts > 0.9).mean() or 0.0)
        is_above = float((parts > 1.02).mean() or 0.0)
        if is_above < 0.02 < whole and decides(roles.frame, roles.item, name) > _DECIDED:
            return length
    return None


def _add_duration(
    found: Labels, column: Column, main: Column | None, length: Column | None
) -> None:
    numbers = column.number
    assert numbers is not None
    positive = numbers.filter(numbers > 0)
    when = next(task for task, name in found.events.items() if main and name == main.name)
    name = snake(column.name, found.tasks)
    label = {"rule": "column", "column": column.name}
    found.columns.add(column.name)
    found.tasks[name] = {
        "group": "engagement",
        "type": "regression",
        "label": label,
        "when": when,
        "transform": "log1p",
    }
    found.reasons[name] = f"column {column.name!r} is above 0 only where {when} is 1"
    told = repr(column.name)
    if length is not None:
        # Seconds alone say how long the item is before they say how it was liked.
        label = {"rule": "ratio", "column": column.name, "over": length.name}
        parts = pl.DataFrame({"x": numbers, "y": length.number}).filter(pl.col("x") > 0)
        positive_parts = parts.select(pl.col("x") / pl.col("y")).to_series()
        told = f"{column.name!r} over {length.name!r}, which it hardly ever exceeds,"
        # Where most run to the end, the middle is the end itself.
        middle = min(float(positive_parts.median() or 0.5), 0.9)
    else:
        middle = float(positive.median() or 1.0)
    deep = snake(f"{name}_long", found.tasks)
    found.tasks[deep] = {
        "group": "engagement",
        "type": "binary",
        "label": label,
        "at_least": float(f"{middle:.2g}"),
        "score_weight": 1,
    }
    found.reasons[deep] = f"{told} is above its middle, {middle:.2g}"
    if column.missing > 0:
        found.tasks[deep]["score_weight"] = 0
        found.reasons[deep] += (
            f"; its label is missing where {when} is 0, so that it is a rate of those taken, and "
            "no term of the combined score"
        )
    longest = float(positive.quantile(0.99) or 600.0)
    found.wait = next((text for text, seconds in _DELAYS if seconds >= longest), "1d")


def _add_leak(found: Labels, column: Column, flags: list[Column]) -> None:
    """A number that alone ranks a label is feedback as well: seconds played, beside skipped."""
    for flag in flags:
        area = _auc(column, flag)
        if max(area, 1 - area) > _LEAK and column.lowest >= 0 and column.distinct > _SMALL:
            name = snake(column.name, found.tasks)
            found.columns.add(column.name)
            found.tasks[name] = {
                "group": "engagement",
                "type": "regression",
                "label": {"rule": "column", "column": column.name},
                "transform": "log1p",
            }
            found.reasons[name] = (
                f"column {column.name!r} alone ranks {flag.name!r} with AUC "
                f"{max(area, 1 - area):.2f}, so that it can be known only afterwards"
            )
            return


def _auc(column: Column, flag: Column) -> float:
    """AUC of a number for a flag."""
    if column.number is None:
        return 0.5
    pairs = pl.DataFrame({"x": column.number, "y": flag.number}).drop_nulls()
    ones = int(pairs["y"].sum())
    zeros = len(pairs) - ones
    if ones < _FEWEST or zeros < _FEWEST:
        return 0.5
    ranks = float(pairs.with_columns(r=pl.col("x").rank()).filter(pl.col("y") == 1)["r"].sum())
    return (ranks - ones * (ones + 1) / 2) / (ones * zeros)


def snake(text: str, taken: Any = ()) -> str:
    """A name as features and tasks have it: `eventType` -> `event_type`; none that is taken."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", text).lower()
    name = re.sub(r"[^a-z0-9]+", "_", name).strip("_")
    name = re.sub(r"_+", "_", name) or "column"
    if not name[0].isalpha():
        name = f"c_{name}"
    free, at = name, 2
    while free in taken or free in ("score", "self", "task_weights", "user_index"):
        free, at = f"{name}_{at}", at + 1
    return free
