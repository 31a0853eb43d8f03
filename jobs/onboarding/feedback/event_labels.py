"""Guesses which event types of a log are feedback, and drafts a task for each."""

import re
from datetime import timedelta

import polars as pl

from multigate.jobs.onboarding.feedback.afterwards import (
    Outcome,
    is_decided,
    known_afterwards,
    outcomes_of_groups,
    sounds_measured,
)
from multigate.jobs.onboarding.feedback.labels import (
    AVERSE,
    DELAYS,
    FEWEST,
    SATISFIED,
    UNSCORED,
    WINDOW,
    Labels,
    has_an_end,
    is_bounded,
    is_scale,
    is_small,
    may_rate,
    snake,
)
from multigate.jobs.onboarding.feedback.places import position_of
from multigate.jobs.onboarding.feedback.ratings import add_high, lowers
from multigate.jobs.onboarding.feedback.shown import is_drawn, shows
from multigate.jobs.onboarding.tables.columns import DECIDES, Column, decides, look
from multigate.jobs.onboarding.tables.outcomes import NEARLY_ALL
from multigate.jobs.onboarding.tables.roles import Roles

_KEPT = 0.98  # of an event type's rows, which a label's window should hold
_FEW_VALUES = 100  # of one event type, where several have some
_SOON_AFTER = "1d"


def feedback_events(roles: Roles) -> Labels:
    """Tasks of an event log: a task for each event type and for its numbers, and dwell.

    The impression itself is a task where the log holds only what users opened; where it holds what
    was shown to them, what was shown and not taken is the negative.

    Args:
        roles: the log; a column of values may be derived.
    """
    found = Labels()
    frame, shown = roles.frame, str(roles.impression)
    delays = _delays(roles)
    span = _span_seconds(roles)
    of_items = frame.drop_nulls([roles.user, roles.item])
    counts = of_items[str(roles.event)].drop_nulls().value_counts(sort=True)
    others = {kind: n for kind, n in counts.iter_rows() if kind != shown}
    for kind, count in roles.event_counts.items():
        if others.get(kind, 0) < 0.1 * count and kind != shown:
            found.no_task[kind] = f"names no {roles.item!r}"
    for at, (kind, count) in enumerate(others.items()):
        if count < FEWEST:
            continue
        name = snake(kind, found.tasks)
        within, kept = _window(delays, kind, span)
        satisfied = re.search(SATISFIED, kind.lower()) is not None or at >= len(others) / 2
        found.tasks[name] = {
            "group": "satisfaction" if satisfied else "engagement",
            "type": "binary",
            "label": {"rule": "event", "events": [kind], "within": within},
            "score_weight": -1 if re.search(AVERSE, kind.lower()) else 1,
        }
        found.events[name] = kind
        found.reasons[name] = (
            f"{count} events of type {kind!r}, {kept:.0%} of them within {within} of the impression"
        )
        if kept < _KEPT:
            found.reasons[name] += (
                "; the others count as 0; a longer window leaves more labels at the log's end open"
            )
    _add_values(found, roles)
    _drop_certain(found, roles)
    _drop_measured(found, roles)
    if found.events and (_drop_contrary(found, roles) or shows(roles)):
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
    if found.events and is_drawn(roles):
        first[name]["score_weight"] = 0
        found.reasons[name] += (
            f"; items and users have {shown!r} as by chance, so that it tells no choice and the "
            "combined score leaves it out"
        )
    found.tasks = first | found.tasks
    if roles.session is not None:
        gap = _dwell(frame, roles)
        found.tasks["dwell"] = {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "dwell", "cap": _round_up(gap), "within": "1d", "ends": "other_item"},
            "transform": "log1p",
            "weight": UNSCORED,
        }
        found.reasons["dwell"] = (
            f"time to the next event on another item in the same {roles.session!r}; 80 % of them "
            f"take at most {gap:.0f} s"
        )
    return found


def _drop_certain(found: Labels, roles: Roles) -> None:
    """Drop the tasks of types that follow nearly every impression, or come with another type.

    They tell nothing apart, or what the other one tells.
    """
    pairs = roles.frame.select(e=str(roles.event), u=roles.user, i=roles.item).unique()
    of = {kind: pairs.filter(pl.col("e") == kind) for kind in roles.event_counts}

    def both(one: str, other: str) -> int:
        return len(of[one].join(of[other], on=["u", "i"], how="semi"))

    shown = str(roles.impression)
    told: list[str] = []
    for name, kind in list(found.events.items()):
        follows = both(shown, kind) / max(len(of[shown]), 1)
        most = {other: NEARLY_ALL * max(len(of[kind]), len(of[other])) for other in told}
        twin = next((other for other in told if both(kind, other) > most[other]), None)
        if len(found.events) > 1 and (follows > NEARLY_ALL or twin is not None):
            del found.tasks[name], found.events[name], found.reasons[name]
            found.no_task[kind] = (
                f"comes with {twin!r}" if twin is not None else f"follows {follows:.0%} of them"
            )
        else:
            told.append(kind)


def _drop_contrary(found: Labels, roles: Roles) -> bool:
    """Where each visit is of one type or the other, drop the task of the unwelcome one.

    Unwelcome is what its name says, or else the type that less feedback follows.

    Returns:
        Whether there are two such types: then visits of the one are negatives of the other.
    """
    if roles.visits is None or len(roles.visits.opens) != 2:
        return False
    tasks = {kind: task for task, kind in found.events.items()}
    if not all(kind in tasks for kind in roles.visits.opens):
        return False
    event = pl.col(str(roles.event))
    began = (event == roles.impression).cum_sum().over(roles.user, roles.item)
    rows = roles.frame.drop_nulls([roles.user, roles.item]).with_columns(began=began)
    has = {kind: (event == kind).any() for kind in roles.event_counts}
    visits = rows.group_by(roles.user, roles.item, "began").agg(**has)
    one, other = roles.visits.opens
    if float((visits[one] != visits[other]).mean() or 0.0) < NEARLY_ALL:
        return False
    more = [kind for kind in found.events.values() if kind not in (one, other)]
    liked = {
        kind: float(visits.filter(kind).select(pl.any_horizontal(more).mean()).item() or 0.0)
        for kind in (one, other)
    }
    averse = min(
        (one, other), key=lambda kind: (re.search(AVERSE, kind.lower()) is None, liked[kind])
    )
    welcome = other if averse == one else one
    task = tasks[averse]
    del found.tasks[task], found.events[task], found.reasons[task]
    found.no_task[averse] = f"comes wherever no {welcome!r} does"
    found.tasks[tasks[welcome]]["score_weight"] = 1
    return True


def _drop_measured(found: Labels, roles: Roles) -> None:
    """Leave out what an impression's row knows of the events after it; find its place."""
    event, ids = str(roles.event), [roles.user, roles.item]
    of_items = roles.frame.drop_nulls(ids)
    shown = of_items.filter(pl.col(event) == roles.impression).sort("__time", maintain_order=True)
    by = ids if roles.session is None else [*ids, roles.session]
    kinds = sorted(set(found.events.values()), key=lambda kind: -roles.event_counts[kind])
    for kind in kinds:
        then = of_items.filter(pl.col(event) == kind).select(*by, "__time", one=pl.lit(1))
        after = shown.join_asof(
            then.sort("__time"),
            on="__time",
            by=by,
            strategy="forward",
            tolerance=_SOON_AFTER,
            check_sortedness=False,
        )
        shown = shown.with_columns(after["one"].fill_null(0).alias(_follows(kind)))
    flags = {_follows(kind): f"a later {kind!r}" for kind in kinds}
    of_rows = [
        Outcome(f"a {kind!r} follows", look(name, shown[name]), f"no {kind!r} follows")
        for kind, name in zip(kinds, flags, strict=True)
    ]
    of_groups = outcomes_of_groups(shown, roles, flags)
    free = []
    for name in roles.columns:
        column = look(name, shown[name])
        if name in roles.named or name in found.columns or column.distinct < 2:
            continue
        why = None
        if not is_decided(shown, column, by):
            free.append(column)
            why = known_afterwards(roles, column, of_rows)
            if why is None and sounds_measured(shown, roles, name):
                why = "its name says that it is measured afterwards"
        why = why or known_afterwards(roles, column, of_groups)
        if why is not None:
            found.columns.add(name)
            found.afterwards[name] = why
    free = [column for column in free if column.name not in found.columns]
    found.position = position_of(shown, roles, free)


def _follows(kind: str) -> str:
    return f"{kind} follows"


def _window(delays: pl.DataFrame, kind: str, span: float) -> tuple[str, float]:
    """The shortest window that holds nearly all feedback of a type, and the share that it holds."""
    seconds = delays.filter(pl.col("e") == kind)["delay"].drop_nulls()
    usable = [one for one in DELAYS if one[1] <= WINDOW * span] or [DELAYS[0]]
    shares = {
        text: float((seconds <= limit).mean() or 0.0) if len(seconds) else 1.0
        for text, limit in usable
    }
    most = max(shares.values())
    return next((text, kept) for text, kept in shares.items() if kept >= min(_KEPT, most))


def _add_values(found: Labels, roles: Roles) -> None:
    """Tasks for the numbers of event types, such as seconds of `read` and stars of `rate`.

    A log has one column of values; where several columns never have one in the same row, one is
    derived of them. Some logs write 0 for no number.
    """
    told: dict[str, dict[str, Column]] = {}
    for name, column in roles.columns.items():
        if name in roles.named or column.number is None or column.flag or column.distinct < 3:
            continue
        if tasks := _numbers_of(found, roles, name):
            told[name] = tasks
    if not told:
        return
    numbers = roles.frame.select(pl.col(*told).cast(pl.Float64, strict=False))
    first, *others = told
    apart = [first]
    for name in others:
        filled = numbers.select(pl.sum_horizontal(pl.col(*apart, name).fill_null(0) != 0))
        if int(filled.to_series().max() or 0) <= 1:
            apart.append(name)
        else:
            found.columns.add(name)
            found.afterwards[name] = (
                f"it stands in rows that have a number in {apart[0]!r} too: of a row one is a label"
            )
    found.value = first
    if len(apart) > 1:
        found.value = snake("value", roles.columns)
        rule: dict[str, object] = {"coalesce": apart}
        if zeros := _zeros(roles, numbers, apart):
            rule["empty"] = zeros
        roles.derive = roles.derive | {found.value: rule}
    for name in apart:
        _add_value(found, roles, name, told[name])
        found.columns.add(name)


def _zeros(roles: Roles, numbers: pl.DataFrame, apart: list[str]) -> list[str]:
    """The texts that mean 0 where several of these columns have one; none where at most one has."""
    given = numbers.select(pl.sum_horizontal(pl.col(apart).is_not_null())).to_series()
    if int(given.max() or 0) <= 1:
        return []
    texts = (roles.frame[name].filter((numbers[name] == 0).fill_null(False)) for name in apart)
    return sorted({text for one in texts for text in one.unique()})


def _numbers_of(found: Labels, roles: Roles, name: str) -> dict[str, Column]:
    """The tasks whose events have numbers in a column, and these numbers; none for features."""
    number = pl.col(name).cast(pl.Float64, strict=False)  # some logs write 0 for no number
    with_value = roles.frame.filter(number.is_not_null() & (number != 0))
    kinds = dict(with_value[str(roles.event)].value_counts(sort=True).iter_rows())
    owners = {
        task: kind
        for task, kind in found.events.items()
        if kinds.get(kind, 0) >= max(FEWEST, 0.5 * roles.event_counts[kind])
    }
    known = sum(kinds[kind] for kind in owners.values())
    if not owners or known < 0.95 * len(with_value):
        return {}  # the impressions have such numbers, too: it is a feature
    given = {
        task: look(name, with_value.filter(pl.col(str(roles.event)) == kind)[name])
        for task, kind in owners.items()
    }
    # A number that a type hardly varies, such as how many pieces, says little more than it.
    return {
        task: one
        for task, one in given.items()
        if len(given) == 1 or (one.distinct > 3 and one.rows >= _FEW_VALUES)
    }


def _add_value(found: Labels, roles: Roles, name: str, told: dict[str, Column]) -> None:
    """A task for each event type that has numbers in a column."""
    rows = roles.frame[name].cast(pl.Float64, strict=False)
    count = int((rows.is_not_null() & (rows != 0)).sum())
    for task, one in told.items():
        is_named = is_scale(one, found.events[task])
        stars = is_small(one) or is_named
        ends = stars or has_an_end(one)
        label = found.tasks[task]["label"] | {"aggregate": "max" if ends else "sum"}
        own = snake(name if len(told) == 1 else f"{task}_{name}", found.tasks)
        found.tasks[own] = {
            "group": "satisfaction" if stars else "engagement",
            "type": "regression",
            "label": label,
        } | ({} if ends or one.lowest < 0 else {"transform": "log1p"})
        if not stars:
            found.tasks[own]["weight"] = UNSCORED
        found.reasons[own] = (
            f"{one.rows} of the {count} values of {name!r} belong to {found.events[task]!r}"
        ) + (f", by name a scale up to {one.highest:g}" if is_named else "")
        if is_bounded(one) and not stars:
            found.reasons[own] += may_rate(one)
        of_type = roles.frame.filter(pl.col(str(roles.event)) == found.events[task])
        if decides(of_type, roles.item, name) >= DECIDES:
            found.of_items.append(own)
            found.reasons[own] += "; the item decides it, as a price"
        if stars and one.number is not None:
            add_high(found, own, name, one.number, label, is_rare=True)
            _weigh(found, roles, task, name)


def _weigh(found: Labels, roles: Roles, rated: str, name: str) -> None:
    """Count a type against an item where those who did it rate the item lower.

    Args:
        found: the tasks.
        roles: the log.
        rated: the task of the type of ratings.
        name: the column that holds them.
    """
    number = pl.col(name).cast(pl.Float64, strict=False)
    rows = roles.frame.select(e=str(roles.event), u=roles.user, i=roles.item, x=number)
    ratings = rows.filter(pl.col("e") == found.events[rated]).group_by("u", "i").agg(pl.mean("x"))
    ratings = ratings.drop_nulls()
    for task, kind in found.events.items():
        if task == rated:
            continue
        pairs = rows.filter(pl.col("e") == kind).select("u", "i", one=pl.lit(1)).unique()
        both = ratings.join(pairs, on=["u", "i"], how="left")
        if lowers(both["one"].fill_null(0), both["x"]):
            found.tasks[task]["score_weight"] = -1
            found.reasons[task] += "; lower ratings beside it say that it is unwelcome"


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
    """The 0.8 quantile of the seconds from an impression to the next event on another item."""
    by, item, time = str(roles.session), pl.col(roles.item), pl.col("__time")
    leaves = item.shift(-1).over(by) != item
    then = pl.when(leaves).then(time.shift(-1).over(by))
    rows = frame.with_columns(then=then).with_columns(
        gap=(pl.col("then").backward_fill().over(by) - time).dt.total_seconds()
    )
    gaps = rows.filter(pl.col(str(roles.event)) == roles.impression)["gap"]
    value = gaps.quantile(0.8)
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
