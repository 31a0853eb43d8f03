"""Guesses which columns of a log name its time, user, item, request, session and event type.

The guesses come from the values: which column decides which, how rows of one value stand together
in time, which event types follow which. Words in columns' names break ties only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import polars as pl

from multigate.configs import DataError
from multigate.jobs.onboarding.tables.columns import (
    DECIDES,
    Column,
    Times,
    are_places,
    as_times,
    clustering,
    decides,
    holds_times,
    is_measure,
    is_prose,
    spreads,
)
from multigate.jobs.onboarding.tables.columns import look as look_at
from multigate.jobs.onboarding.tables.event_types import event_types
from multigate.jobs.onboarding.tables.guests import FEW_GUESTS, crowd, of_the_crowd, stand_in
from multigate.jobs.onboarding.tables.outcomes import needs, tells
from multigate.jobs.onboarding.tables.raw import Table, key_of
from multigate.jobs.onboarding.tables.strangers import kinds_of_rows, with_strangers
from multigate.jobs.onboarding.tables.visits import Visits, find_visits, with_openings
from multigate.pipeline.read.derive import first_present
from multigate.pipeline.read.json_lines import as_text

_SMALL = 12  # values that a rating or a place has at most
_REQUEST = timedelta(minutes=1)
_SESSION = timedelta(hours=12)
_GROUP = 50  # rows that a request or a session has at most, on average
_CLEAR = 0.15
_FEW_USERS = 30
_HARDLY = 0.3  # values, of the rows
_MOST_GUESTS = 0.9  # of the rows
_BEFORE = 0.99  # of the rows
_SOON = timedelta(hours=1)
_HINTS = {
    "user": r"user|person|member|customer|visitor|account|client|viewer|reader|login",
    "item": r"item|content|product|movie|film|article|video|book|song|track|sku|post|asset",
    "time": r"time|date|stamp|when|_at$|^ts$",
}


@dataclass
class Roles:
    """What the columns of a log are."""

    frame: pl.DataFrame
    """The sample in the order of time; `__time` holds the times."""
    columns: dict[str, Column]
    time: Times
    user: str
    item: str
    is_stranger: bool = False
    """Whether no column names users or groups of them: `user` holds one for each visit."""
    session: str | None = None
    request: str | None = None
    event: str | None = None
    impression: str | None = None
    """The event type that is an impression."""
    visits: Visits | None = None
    """How events make visits, where no type is an impression: the frame has a row for each."""
    weight: str | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    """Columns that may say what happened, which no row follows clearly -> why."""
    more_groups: frozenset[str] = frozenset()
    """Columns that name requests or sessions of users beside those that have the role."""
    seconds: frozenset[str] = frozenset()
    """Columns whose numbers are seconds, because the log spells them as durations."""
    derive: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Columns that the pipeline makes, as `pipeline.log.derive` takes them."""
    event_counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """By role, why."""

    @property
    def named(self) -> set[str]:
        """The columns that have a role."""
        found = (self.time.column.name, self.user, self.item)
        more = (self.session, self.request, self.event, self.weight)
        return {*found, *self.logins, *(name for name in more if name is not None)}

    @property
    def logins(self) -> list[str]:
        """The file's columns that name users: where the first one is empty, the next one does."""
        return self.derive.get(self.user, {}).get("coalesce", [self.user])

    @property
    def ids(self) -> tuple[str, ...]:
        """Which of `user` and `item` the log has a column of."""
        return ("item",) if self.is_stranger else ("user", "item")

    @property
    def grouped(self) -> bool:
        """Whether no column names single users: the user is a group of them, or unknown."""
        few = self.columns[self.user].distinct < _FEW_USERS
        return self.is_stranger or few or "join" in self.derive.get(self.user, {})

    @property
    def span(self) -> timedelta:
        """From the first time to the last one."""
        known = self.time.values.drop_nulls()
        span = known.max() - known.min()
        return span if isinstance(span, timedelta) else timedelta(0)


def guess_roles(log: Table, others: Sequence[Table] = ()) -> Roles:
    """Guess the roles of a log's columns.

    Args:
        log: the table of events or impressions.
        others: tables beside it; users and items may be the keys of one.

    Raises:
        DataError: no column holds times, or none names users or items.
    """
    columns = {name: look_at(name, log.frame[name]) for name in log.frame.columns}
    time = _time(columns)
    derive: dict[str, dict[str, Any]] = {}
    if time is None:
        time = _no_time(columns, len(log.frame))
        derive = {time.column.name: {"constant": "0"}}
    frame = log.frame.with_columns(__time=time.values).with_columns(
        as_text(log.frame[name]).replace("", None).alias(name) for name in columns
    )
    frame = frame.sort("__time", maintain_order=True)
    named = _ids(columns, {time.column.name})
    event, impression, follows = event_types(frame, columns, named)
    visits = find_visits(frame, columns, named) if event is None else None
    if visits is not None:
        event, impression, follows = visits.event, visits.opened, visits.share
    taken = {time.column.name, event or ""}
    ids = _ids(columns, taken)
    few = _ids(columns, taken, fewest=3)
    if len(ids) < 2 <= len(few):  # so few items that numbers of them look like steps of a scale
        ids = few
    if not ids:
        lists = [name for name, column in columns.items() if column.is_list]
        hint = (
            f"; {', '.join(map(repr, lists))} holds lists: write one row for each item of a list"
            if lists
            else ""
        )
        raise DataError(
            f"{', '.join(log.files)}: expected a column of items, and one of users where they are "
            f"known, whose values repeat; found none among {', '.join(columns)}{hint}"
        )
    given, crowds = (frame, columns), _crowds(frame, columns, ids, taken)
    for name, word in crowds.items():
        frame, columns = _without(frame, columns, name, word)
    guests = _guests(frame, columns, ids, taken)
    ids = [name for name in columns if name in ids or name in guests]
    groups = [name for name in ids if _is_group(frame, columns, name, ids)]
    apart = {*groups, *guests.values()}
    roots = _roots(frame, columns, [name for name in ids if name not in apart])
    kinds = kinds_of_rows(frame, columns, ids) if event is None else {}
    plain = [name for name in roots if name not in kinds]
    if kinds and len(plain) == 1:
        roots = ids = plain
    else:
        kinds = {}
    # Where requests or sessions belong to someone, the one root is a user, and items are missing.
    lone = len(roots) < 2 and not apart
    is_stranger = lone and (len(ids) < 2 or _is_item(frame, roots[0]))
    if len(roots) < 2 and not is_stranger:
        roots += sorted((set(ids) - set(roots) - apart), key=lambda n: -columns[n].distinct)
        if len(roots) < 2:
            raise DataError(
                f"{', '.join(log.files)}: expected a column of users and one of items; of "
                f"{', '.join(ids)}, each decides the others"
            )
    if is_stranger:
        item, opens = roots[0], [str(impression)] if visits is None else visits.opens
        frame, columns, user = with_strangers(frame, columns, item, event, opens)
        why = (
            "no column names users, nor groups of them, so that requests need none"
            + ("" if event is None else ": feedback is that of its item's last impression"),
            f"{columns[item].distinct} values",
        )
    else:
        keys = [name for name in roots if any(key_of(one, columns[name]) for one in others)]
        ranked = [*keys, *(name for name in roots if name not in keys)]
        measures = _measures(frame, columns, roots)
        names = [name for name in ranked if name in keys or name not in measures]
        user, item, why = _user_and_item(
            frame, columns, names if len(names) > 1 else ranked, groups
        )
    for name in crowds.keys() - {user}:
        frame = frame.with_columns(given[0][name])
        columns[name] = given[1][name]
    roles = Roles(
        frame,
        columns,
        time,
        user,
        item,
        is_stranger,
        kinds=kinds,
        seconds=log.seconds,
        derive=derive,
    )
    roles.reasons["time"] = _time_reason(time)
    roles.reasons["user"], roles.reasons["item"] = why
    for name in groups:
        if decides(frame, name, user) < DECIDES:
            continue
        lasts = _span(frame, name, 0.9)
        unknown = not frame["__time"].drop_nulls().len()
        what = "request" if (unknown or lasts <= _REQUEST) and event is None else "session"
        if getattr(roles, what) is not None:
            roles.more_groups |= {name}
        else:
            setattr(roles, what, name)
            roles.reasons[what] = (
                f"each of its {columns[name].distinct} values belongs to one user and "
                + ("stands in rows together" if unknown else f"lasts {_spoken(lasts)}")
            )
    if visits is not None:
        roles.frame, roles.visits = with_openings(visits, frame, user, item)
    if event is not None:
        counts = roles.frame[event].drop_nulls().value_counts(sort=True)
        roles.event, roles.impression = event, impression
        roles.event_counts = dict(counts.iter_rows())
        first = f"a {impression!r}"
        if visits is not None:
            first = f"one of {', '.join(map(repr, visits.opens))}"
        roles.reasons["event"] = (
            f"{columns[event].distinct} values; {follows:.0%} of the other rows follow {first} of "
            + ("the same item within minutes" if is_stranger else "the same user and item")
        )
    if columns[user].distinct < _FEW_USERS:
        _join_user(roles)
    elif user in guests:
        _add_guests(roles, guests[user], crowds.get(user))
    elif (most := crowd(frame[user])) is not None:
        roles.reasons["user"] += f"; {of_the_crowd(*most, user)}"
    return roles


def _crowds(
    frame: pl.DataFrame, columns: dict[str, Column], ids: Sequence[str], taken: set[str]
) -> dict[str, str]:
    """Columns that name users -> the word in them for all whom another column tells apart."""
    found = {}
    for name in ids:
        most = crowd(frame[name])
        if most is not None and name in _guests(
            *_without(frame, columns, name, most[0]), ids, taken
        ):
            found[name] = most[0]
    return found


def _without(
    frame: pl.DataFrame, columns: dict[str, Column], name: str, word: str
) -> tuple[pl.DataFrame, dict[str, Column]]:
    """The log where a word of a column is no value, in any spelling that the pipeline takes out."""
    other = first_present([frame[name]], [word]).alias(name)
    raw = first_present([columns[name].raw], [word]).alias(name)
    return frame.with_columns(other), columns | {name: look_at(name, raw)}


def _guests(
    frame: pl.DataFrame, columns: dict[str, Column], ids: Sequence[str], taken: set[str]
) -> dict[str, str]:
    """Columns that name users and are empty for guests -> the column that tells guests apart.

    A session or a name that says so is needed: of a user and what users have, such as a town, the
    values tell nothing else apart.
    """
    found = {}
    for name in _ids(columns, taken, most_missing=_MOST_GUESTS):
        if columns[name].missing < FEW_GUESTS or columns[name].distinct < _FEW_USERS:
            continue
        other = stand_in(frame, columns, name, ids)
        if other is not None and (
            _span(frame, other, 0.5) <= _SESSION or _says(name, "user") > _says(other, "user")
        ):
            found[name] = other
    return found


def _add_guests(roles: Roles, other: str, word: str | None) -> None:
    """Let another column name the users whom their own column does not.

    Args:
        roles: get the column of both.
        other: the column that tells guests apart.
        word: for all guests, in the column of users; None where it is empty.
    """
    login, name = roles.user, "user"
    while name in roles.columns:
        name += "_"
    parts, missing = [login, other], roles.columns[login].missing
    roles.frame = roles.frame.with_columns(pl.coalesce(parts).alias(name))
    # The frame is in the order of time, columns are in that of the files.
    joined = first_present([roles.columns[part].raw for part in parts]).alias(name)
    roles.columns = {name: look_at(name, joined), **roles.columns}
    rule = {"coalesce": parts} | ({} if word is None else {"empty": [word]})
    roles.user, roles.derive = name, roles.derive | {name: rule}
    none = "none" if word is None else f"none or {word!r}"
    roles.reasons["user"] = (
        f"{login!r}, or {other!r} where a row has {none} ({missing:.1%} of the rows): a guest, who "
        f"is a user of that one {other!r}; {login!r}: {roles.reasons['user']}"
    )


def _join_user(roles: Roles) -> None:
    """Where no column names single users, take what is known of them together for the user.

    What tells a flag is no part of it: it may be a word for what came of the row.
    """
    frame = roles.frame
    flags = [column for column in roles.columns.values() if column.flag]
    parts = [
        name
        for name, column in roles.columns.items()
        if name not in (roles.item, roles.event, roles.time.column.name)
        and column.number is None
        and not (column.is_list or is_prose(column))
        and 2 <= column.distinct <= _FEW_USERS
        and decides(frame, roles.item, name) < DECIDES
        and not any(tells(column, flag) for flag in flags)
    ]
    if roles.user not in parts or len(parts) < 2:
        return
    joined = frame.select(pl.concat_str(pl.col(parts).fill_null(""), separator="|")).to_series()
    if joined.n_unique() < 2 * roles.columns[roles.user].distinct:
        return
    name = "user"
    while name in roles.columns:
        name += "_"
    roles.frame = frame.with_columns(joined.alias(name))
    roles.columns = {name: look_at(name, joined), **roles.columns}
    roles.user, roles.derive = name, roles.derive | {name: {"join": parts}}
    roles.reasons["user"] = (
        f"no column names single users: {joined.n_unique()} groups of those who are alike in "
        f"{', '.join(map(repr, parts))}"
    )


def _no_time(columns: dict[str, Column], rows: int) -> Times:
    """Of a log without times: each row's is unknown."""
    name = "time"
    while name in columns:
        name += "_"
    column = look_at(name, pl.Series(name, ["0"]).new_from_index(0, rows))
    values = pl.Series("time", [None], dtype=pl.Datetime("us", "UTC")).new_from_index(0, rows)
    return Times(column, "s", 0, values)


def _time(columns: dict[str, Column]) -> Times | None:
    """The column of times; None where no column holds any."""
    found = [times for column in columns.values() if (times := as_times(column)) is not None]
    if not found:
        return None

    def score(times: Times) -> tuple[float, float]:
        values = times.values.drop_nulls()
        order = values.dt.epoch("us").diff().drop_nulls()
        rising = float((order >= 0).mean() or 0.0)
        full = 1.0 - times.column.missing
        return (
            round(full + 0.1 * _says(times.column.name, "time"), 1),
            rising + times.column.distinct / max(len(values), 1),
        )

    best = max(found, key=score)
    return min((one for one in found if _precedes(one, best)), key=_middle, default=best)


def _precedes(one: Times, best: Times) -> bool:
    """Whether rows happened at a time, and came to the log a little later, at the best one."""
    if one.column.missing > best.column.missing:
        return False
    if one.column.distinct < 0.5 * best.column.distinct:
        return False  # such as when the item was listed
    lags = (best.values - one.values).drop_nulls()
    return len(lags) > 0 and bool(
        (lags >= timedelta(0)).mean() > _BEFORE and lags.quantile(0.5) < _SOON
    )


def _middle(times: Times) -> Any:
    return times.values.median()


def _time_reason(time: Times) -> str:
    if not time.values.drop_nulls().len():
        return (
            "no column holds times (seconds, milliseconds or microseconds since 1970, ISO 8601, or "
            "dates of another form), so that each row's is unknown"
        )
    known = time.values.drop_nulls()
    text = f"times from {known.min():%Y-%m-%d} to {known.max():%Y-%m-%d}, read as {time.unit}"
    if time.unknown is not None:
        share = time.values.null_count() / len(time.values)
        text += f"; {time.unknown} stands for an unknown time ({share:.0%} of the rows)"
    return text


def _ids(
    columns: dict[str, Column],
    taken: set[str],
    fewest: int = _SMALL + 1,
    most_missing: float = 0.2,
) -> list[str]:
    """The columns that may name something: values that repeat and are no measurements.

    Args:
        columns: of the log.
        taken: those that are something else.
        fewest: values that a column of numbers has.
        most_missing: the share of the rows that may have no value.
    """
    found = []
    flags = [column for column in columns.values() if column.flag]
    for name, column in columns.items():
        if name in taken or column.is_list or is_prose(column):
            continue
        if column.missing > most_missing:
            continue
        if any(needs(column, flag) for flag in flags):
            continue  # milliseconds in view, which are 0 without a click, are no id
        if column.serial:
            continue
        if column.number is not None and (not column.whole or column.flag):
            continue
        if column.number is not None and column.distinct < fewest:
            continue
        if column.distinct < 3 or column.distinct > 0.9 * max(column.rows, 1):
            continue
        found.append(name)
    return found


def _span(frame: pl.DataFrame, name: str, share: float) -> timedelta:
    """How long the rows of one value last, for this share of the rows whose value repeats."""
    times = pl.col("__time")
    spans = frame.drop_nulls([name, "__time"]).select(
        span=(times.max() - times.min()).over(name), rows=pl.len().over(name)
    )
    spans = spans.filter(pl.col("rows") > 1)
    value = spans["span"].quantile(share) if len(spans) else None
    return value if isinstance(value, timedelta) else timedelta(days=10_000)


def _is_group(
    frame: pl.DataFrame, columns: dict[str, Column], name: str, ids: Sequence[str]
) -> bool:
    """Whether a column names requests or sessions: short, of few rows, and each of one user."""
    column, span = columns[name], _span(frame, name, 0.5)
    least = max(20.0, 0.01 * column.distinct)
    if column.rows > _GROUP * column.distinct:
        return False
    if not frame["__time"].drop_nulls().len():
        # Without times: a list's rows stand together, and so do its user's lists.
        return _is_together(frame, name) and any(
            least <= columns[other].distinct <= 0.5 * column.distinct
            and decides(frame, name, other) >= DECIDES
            and _is_together(frame, other)
            for other in ids
            if other != name
        )
    if span > _SESSION:
        return False
    return any(
        least <= columns[other].distinct < column.distinct
        and decides(frame, name, other) >= DECIDES
        and _span(frame, other, 0.5) > 2 * span
        for other in ids
        if other != name
    )


def _is_together(frame: pl.DataFrame, name: str) -> bool:
    """Whether the rows of each value follow one another in the file."""
    values = frame[name].drop_nulls()
    runs = int((values != values.shift()).fill_null(True).sum())
    return runs <= 1.1 * values.n_unique() + 20  # a sample is of some blocks


def _roots(frame: pl.DataFrame, columns: dict[str, Column], ids: Sequence[str]) -> list[str]:
    """The columns that no finer column decides, the one with most values first.

    Of two columns that decide one another, such as an item's id and the instant of its listing, the
    one that holds no times names the item.
    """
    found: list[str] = []
    order = {one: (-columns[one].distinct, holds_times(columns[one])) for one in ids}
    for name in sorted(ids, key=lambda one: order[one]):
        if not any(decides(frame, other, name) >= DECIDES for other in found):
            found.append(name)
    return found


def _is_item(frame: pl.DataFrame, root: str) -> bool:
    """Whether a column that decides all others names an item: a request or a session is short."""
    known = len(frame["__time"].drop_nulls()) > 0
    return known and _span(frame, root, 0.5) > _SESSION


def _user_and_item(
    frame: pl.DataFrame,
    columns: dict[str, Column],
    roots: Sequence[str],
    groups: Sequence[str],
) -> tuple[str, str, tuple[str, str]]:
    for group in groups:
        owners = [name for name in roots if decides(frame, group, name) >= DECIDES]
        rest = [name for name in roots if name not in owners]
        if owners and rest:
            user, item = owners[0], rest[0]
            why = (
                f"{columns[user].distinct} values; each value of {group!r} has one of them",
                f"{columns[item].distinct} values, many of them within one value of {group!r}",
            )
            return user, item, why
    near = {name: clustering(frame[name]) for name in roots}
    said = {name: _says(name, "user") - _says(name, "item") for name in roots}
    unclear = None
    user, *rest = sorted(roots, key=lambda name: -near[name])
    if near[user] - near[rest[0]] >= _CLEAR:
        owned = {name: _decided_by(frame, columns, name) for name in rest}
        item = max(rest, key=lambda name: (owned[name], columns[name].distinct))
        why = (
            f"{columns[user].distinct} values; {near[user]:.0%} of the rows stand close to another "
            f"row of the same value, as in a visit (of {item!r}: {near[item]:.0%})",
            f"{columns[item].distinct} values, which decide {owned[item]} other columns",
        )
        if said[user] < 0 < said[item]:  # news is read at once, by readers who come one by one
            user, item = item, user
            unclear = (
                f"uncertain: its name says so, but rows of one {item!r} stand closer together "
                f"({near[item]:.0%}) than those of one {user!r} ({near[user]:.0%})"
            )
    else:
        first = sorted(roots, key=lambda name: -columns[name].distinct)[:2]
        item, user = sorted(first, key=lambda name: (said[name], -columns[name].distinct))
        by = "their names" if said[item] != said[user] else "their numbers of values"
        unclear = f"uncertain: the rows do not tell users from items, so {by} decide"
    if unclear is not None:
        why = (
            f"{columns[user].distinct} values; {unclear}",
            f"{columns[item].distinct} values; {unclear}",
        )
    if columns[item].distinct <= _SMALL < columns[user].distinct:
        user, item, why = item, user, (why[1], why[0])  # groups of users, and no four items
    if columns[user].distinct < _FEW_USERS:
        why = (f"{why[0]}; no column names single users: this one names groups of them", why[1])
    return user, item, why


def _decided_by(frame: pl.DataFrame, columns: dict[str, Column], name: str) -> int:
    """How many other columns a column decides, such as the topic and the author of an item."""
    return sum(
        decides(frame, name, other) >= DECIDES
        for other, column in columns.items()
        if other != name and 2 <= column.distinct < columns[name].distinct
    )


def _measures(frame: pl.DataFrame, columns: dict[str, Column], roots: Sequence[str]) -> set[str]:
    """The roots whose numbers measure something, such as milliseconds watched, or are places.

    An item has an author or a topic; that most rows have the same flag is none of its own.  Numbers
    that decide nothing are a measure where they lie as one, or hardly repeat beside what decides.
    """
    varied = {
        other: one
        for other, one in columns.items()
        if one.rows and not one.is_list and _most(one) < one.rows / 2
    }
    some = {name for name in roots if _decided_by(frame, varied | {name: columns[name]}, name)}
    found = {name for name in roots if is_measure(columns[name]) or are_places(columns[name])}
    for name in set(roots) - some:
        column = columns[name]
        rare = column.number is not None and column.distinct > _HARDLY * column.rows
        if spreads(column) or (rare and some - found):
            found.add(name)
    return found


def _most(column: Column) -> int:
    """How many rows have the most frequent value."""
    counts = column.raw.drop_nulls().value_counts(sort=True)
    return int(counts["count"][0])


def _says(name: str, role: str) -> int:
    """Whether a column's name has a word for a role, as a weak hint."""
    return int(re.search(_HINTS[role], name.lower()) is not None)


def side_tables(roles: Roles, others: Sequence[Table]) -> dict[str, tuple[Table, str]]:
    """`users` and `items` -> the table whose keys are their ids, and its key column.

    Small whole numbers fit many keys: the tables are chosen together, such that the values fill
    their keys best.
    """
    fits = {}
    for source, name in (("users", roles.logins[0]), ("items", roles.item)):
        for at, table in enumerate(others):
            found = key_of(table, roles.columns[name])
            if found is not None:
                fits[source, at] = found
    places = range(len(others))
    choices: list[dict[str, int]] = [{}]
    choices += [{source: at} for source, at in fits]
    choices += [
        {"users": one, "items": two}
        for one in places
        for two in places
        if one != two and ("users", one) in fits and ("items", two) in fits
    ]
    best = max(choices, key=lambda c: sum(fits[source, at][1] for source, at in c.items()))
    return {source: (others[at], fits[source, at][0]) for source, at in best.items()}


def _spoken(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"at most {seconds / size:.0f} {unit}"
    return f"at most {seconds:.0f} s"
