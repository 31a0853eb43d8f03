"""Events of the raw log and features over time, computed again one event at a time: for the audit.

Reading and typing the log is shared with the job; what follows is written from docs/labels.md
alone, so that a defect of the job is found here.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.contract import (
    Count,
    EventCounter,
    Feature,
    IdListFeature,
    Max,
    Mean,
    NumberFeature,
    Rate,
)
from multigate.configs.sections.log import EventLog
from multigate.configs.storage import Place
from multigate.pipeline.compute.rates import categories
from multigate.pipeline.compute.tables import SINCE
from multigate.pipeline.core.columns import COLUMN, ENTRY, FEATURE, KNOWN, entry_categories
from multigate.pipeline.read.erasure import without
from multigate.pipeline.read.inputs import read_log, shards
from multigate.pipeline.read.normalise import normalise

Row = dict[str, Any]


def plain(time: str) -> pl.Expr:
    """A column of times without a zone, in UTC."""
    return pl.col(time).dt.replace_time_zone(None)


def events_of(
    config: Config,
    data: Place,
    rows: list[Row],
    forgotten: pl.Series | None,
    cut_off: datetime | None = None,
    whole_users: bool = False,
) -> tuple[list[Row], "Times"]:
    """The log's events of some users and items, and the times of all its events.

    Args:
        config: names the log.
        data: the folder that holds its files.
        rows: examples, whose users and items these are.
        forgotten: users whose events count nowhere; None where there are none.
        cut_off: later events are no part of the run; None where all are.
        whole_users: whether to read all events of every user of these items.

    Returns:
        The events in the order of time, without duplicates, as `_prepare` leaves them; `shares_id`
        marks those that would be duplicates if impressions and feedback shared their event ids.
    """
    users = pl.Series(sorted({row[config.contract.user] for row in rows}))
    items = pl.Series(sorted({row[config.contract.item] for row in rows}))
    concerned = pl.col("user").is_in(users.implode()) | pl.col("item").is_in(items.implode())
    found, times = [], Times()
    for part in _log(config, data):
        known = without(part, "user", forgotten)
        times.add(known["time"])
        found.append(known.filter(concerned))
    events = pl.concat(found, how="diagonal")
    if whole_users:  # rows that come twice are left out below
        others = events["user"].unique().implode()
        more = [without(part, "user", forgotten) for part in _log(config, data)]
        more = [part.filter(pl.col("user").is_in(others)) for part in more]
        events = pl.concat([events, *more], how="diagonal")
    if "event_id" in events.columns:
        # The first event of an id may name another item than the sample's.
        keys = events.select("user", "event_id").drop_nulls().unique()
        same = [part.join(keys, on=["user", "event_id"], how="semi") for part in _log(config, data)]
        events = pl.concat([events, *same], how="diagonal")
    seen: set[Any] = set()
    ids: dict[Any, Any] = {}
    kept = []
    for event in sorted(
        events.to_dicts(), key=lambda e: (e["time"] or datetime.min, e["fingerprint"])
    ):
        if cut_off is not None and event["time"] is not None and event["time"] >= cut_off:
            continue
        row = ("time", "fingerprint", "user", "item", "event")
        same_event: set[Any] = {tuple(event.get(name) for name in row)}
        if event.get("event_id") is not None:
            same_event.add((event["user"], event["event_id"], event["identity"]))
        if not same_event & seen:
            kept.append(event)
            # The identity of an id is one in each of the two spaces of event ids.
            key = (event["user"], event.get("event_id"))
            first = ids.setdefault(key, event["identity"])
            event["shares_id"] = key[1] is not None and event["identity"] != first
        seen |= same_event
    return _prepare(kept, config), times


class Times:
    """The times of a log's events, day by day (UTC): where the log ends, see docs/labels.md."""

    def __init__(self) -> None:
        self._rows: Counter[date] = Counter()
        self._latest: dict[date, datetime] = {}

    def add(self, times: pl.Series) -> None:
        """Count the events of a part of the log; those without a time count nowhere."""
        table = pl.DataFrame({"time": times, "day": times.dt.date()}).drop_nulls()
        for day, rows, latest in table.group_by("day").agg(pl.len(), pl.max("time")).iter_rows():
            self._rows[day] += rows
            self._latest[day] = max(latest, self._latest.get(day, latest))

    def latest(self) -> datetime | None:
        """The time of the last event of all."""
        return max(self._latest.values(), default=None)

    def last(self) -> datetime | None:
        """The time of the last event before the first gap that ends the log."""
        days, total, before = sorted(self._rows), self._rows.total(), 0
        first = None
        for day, following in itertools.pairwise(days):
            before += self._rows[day]
            if first is None and (before >= 100 or before * 1000 >= total):
                first = day
            gap, span = (following - day).days, (day - (first or days[0])).days + 1
            later = total - before
            few = later < 100 and later * 1000 < total
            if (few and gap > 1 and gap > span / 2) or (later == 1 and gap > 365 and gap > span):
                return self._latest[day]
        return self.latest()


def _prepare(events: list[Row], config: Config) -> list[Row]:
    """Mark repeated impressions (`repeated`, and in `start` the one that they repeat).

    Feedback that clocks put before its impression moves to the impression's time.
    """
    log, collapse = config.pipeline.log, config.pipeline.collapse
    if not isinstance(log, EventLog):
        return [event | {"repeated": False} for event in events]
    pairs = defaultdict(list)
    for event in events:
        event["repeated"], event["start"] = False, event
        pairs[event["user"], event["item"]].append(event)
    for pair in pairs.values():
        shown = [event for event in pair if event["event"] == log.impression]
        for before, event in itertools.pairwise(shown):
            if None not in (collapse, before["time"], event["time"]) and (
                event["time"] - before["time"] <= collapse
            ):
                event["repeated"], event["start"] = True, before["start"]
        moved = [(event, _moved(event, shown, config)) for event in pair if event not in shown]
        for event, time in moved:
            event["time"] = time
    return sorted(events, key=lambda e: (e["time"] or datetime.min, e["fingerprint"]))


def _moved(feedback: Row, shown: list[Row], config: Config) -> datetime | None:
    """When a feedback event counts: at the next impression, if it follows within the skew."""
    skew, time = config.pipeline.clock_skew, feedback["time"]
    if skew is None or time is None or owners(feedback, shown, config):
        return time
    following = [e["time"] for e in _same_request(feedback, shown, config) if e["time"] is not None]
    following = [later for later in following if later > time]
    return min(following) if following and min(following) - time <= skew else time


def owners(feedback: Row, shown: list[Row], config: Config) -> list[Row]:
    """The impression that a feedback event belongs to; several where they have the same time.

    Args:
        feedback: the event.
        shown: the impressions of its user and item, repetitions too.
        config: how long feedback is waited for, and what it belongs to.
    """
    time, within = feedback["time"], config.pipeline.attribution
    if time is None:
        return []
    earlier = [
        event
        for event in _same_request(feedback, shown, config)
        if event["time"] is not None and event["time"] <= time
    ]
    last = max((event["time"] for event in earlier), default=None)
    starts = {id(e["start"]): e["start"] for e in earlier if e["time"] == last}
    return [e for e in starts.values() if within is None or time - e["time"] <= within]


def _same_request(feedback: Row, shown: list[Row], config: Config) -> list[Row]:
    if config.pipeline.attribute_by == "latest" or feedback.get("request") is None:
        return shown
    return [event for event in shown if event["request"] == feedback["request"]]


def _log(config: Config, data: Place) -> Iterator[pl.DataFrame]:
    """The log's good rows, some at a time, with the columns that are read here."""
    for shard in shards(config, data):
        for chunk in read_log(config, shard):
            events, _ = normalise(chunk, config, shard.name, shard.feedback)
            names = ["user", "item", "identity", "fingerprint", "event", "event_id"]
            names += ["session", "request", "value"]
            names += [FEATURE + name for name in {*categories(config), *entry_categories(config)}]
            kept = [n for n in events.columns if n in names or n.startswith(COLUMN)]
            times = [n for n in events.columns if n == "time" or n.startswith(KNOWN)]
            yield events.select(*kept, *(plain(name) for name in times))


def groups(events: list[Row], key: str) -> dict[Any, list[Row]]:
    """The events of each user or item, in the order that they have."""
    found = defaultdict(list)
    for event in events:
        found[event[key]].append(event)
    return found


def compute(
    feature: Feature,
    events: list[Row],
    time: datetime | None,
    config: Config,
    until: datetime | None = None,
    early: bool = False,
) -> Any:
    """Compute a feature from a user's or item's events.

    Args:
        feature: a history or a counter of events.
        events: of the user or item, in the order of time, without repeated impressions.
        time: the example's; None where it is unknown.
        config: tells which events count.
        until: take the events up to then (included) instead of those strictly before `time`: what a
            leak would give.
        early: take the feedback of an impression log for known at its impression: another leak.

    Returns:
        The value as an example holds it.
    """
    if time is None:
        return [] if isinstance(feature, IdListFeature) else None
    if isinstance(feature, IdListFeature):
        return _history(feature, events, time, config, until, early)
    rule: Any = _counter(feature)
    if rule is None:
        raise ValueError(f"not a computed feature: {feature!r}")

    counting = sorted(
        _past(rule, rule.events, events, time, config, until, early),
        key=lambda one: (one[0], one[1]["item"]),
    )
    if isinstance(rule, Count):
        return float(len(counting))
    if isinstance(rule, Rate):
        per = len(_past(rule, rule.per, events, time, config, until, early))
        return float(np.float32(len(counting) / per)) if per else None
    if isinstance(rule, Mean | Max):
        log = config.pipeline.log
        column = "value" if isinstance(log, EventLog) else COLUMN + rule.events[0]
        values = [float(e[column]) for _, e in counting if e.get(column) is not None]
        if not values:
            return None
        found = max(values) if isinstance(rule, Max) else math.fsum(values) / len(values)
        return float(np.float32(found))
    if not counting:
        return None
    then, _ = counting[-1] if rule.which == "last" else counting[0]
    return float(np.float32((time - then) / timedelta(microseconds=1) / 1e6))


def _past(
    rule: Any,
    names: tuple[str, ...],
    events: list[Row],
    time: datetime,
    config: Config,
    until: datetime | None,
    early: bool,
) -> list[tuple[datetime, Row]]:
    """The events that a rule counts, and since when each does; arguments as of `compute`."""
    counted = []
    for event in events:
        then = _counts_from(event, names, config, early, valued=isinstance(rule, Mean | Max))
        if then is None or (then >= time if until is None else then > until):
            continue
        if rule.within is None or then >= time - rule.within:
            counted.append((then, event))
    return counted


def _history(
    feature: IdListFeature,
    events: list[Row],
    time: datetime,
    config: Config,
    until: datetime | None,
    early: bool,
) -> list[Any]:
    """A history, or what is known of its entries; arguments as of `compute`."""
    entry = feature.entry
    owner = feature if entry is None else config.contract.features[entry.of]
    rule = getattr(owner, "history", None)
    if rule is None:
        raise ValueError(f"not a computed feature: {feature!r}")
    entries = []
    for then, event in _past(rule, rule.events, events, time, config, until, early):
        known = {"item": event["item"], "event": _kind(event, rule.events, config)}
        known |= {what: event[ENTRY + what] for what in rule.with_ if what not in ("event", "age")}
        # Entries of one instant are in the order of items, then of what is known of them.
        columns = sorted("event" if w == "event" else ENTRY + w for w in rule.with_ if w != "age")
        order = [known["item"], *(known[column.removeprefix(ENTRY)] for column in columns)]
        key = (then, *((value is not None, value) for value in order))
        entries.append((key, known | {"age": (time - then) // timedelta(seconds=1)}))
    entries.sort(key=lambda one: one[0])
    what = "item" if entry is None else entry.what
    return [known[what] for _, known in entries][-min(rule.last, feature.max_length) :]


def add_categories(events: list[Row], config: Config, items: list[Row]) -> None:
    """Add what histories hold of each event's item, as of the event.

    Args:
        events: as of `events_of`.
        config: names the features.
        items: the rows of the items' side table, in the order of time.
    """
    contract, table = config.contract, groups(items, config.contract.item)
    pairs: dict[Any, Row] = defaultdict(dict)
    shown = config.pipeline.log.impression if isinstance(config.pipeline.log, EventLog) else None
    ordered = sorted(
        events, key=lambda e: (e["time"] or datetime.min, shown is not None and e["event"] != shown)
    )
    for name in entry_categories(config):
        for event in ordered:
            if contract.features[name].source == "log":
                seen = pairs[event["user"], event["item"]]
                if not event["repeated"] and event[FEATURE + name] is not None:
                    seen[name] = event[FEATURE + name], event["time"]
                value, then = seen.get(name, (None, None))
                longest = config.pipeline.attribution
                if longest is not None and None not in (then, event["time"]):
                    value = value if event["time"] - then <= longest else None
                event[ENTRY + name] = value
                continue
            event[ENTRY + name] = None
            for row in table[event["item"]]:
                since = row.get(SINCE)
                if since is None or (event["time"] and since.replace(tzinfo=None) <= event["time"]):
                    event[ENTRY + name] = row[name]


def _kind(event: Row, names: tuple[str, ...], config: Config) -> str:
    """What an entry of a history over these events was: the first that was known of several."""
    if isinstance(config.pipeline.log, EventLog):
        return event["event"]
    if "impression" in names:
        return "impression"
    known = {name: _counts_from(event, (name,), config, early=False) for name in names}
    first = min(time for time in known.values() if time is not None)
    return next(name for name in names if known[name] == first)


def _counter(feature: Feature) -> EventCounter | None:
    return feature.event_counter if isinstance(feature, NumberFeature) else None


def _counts_from(
    event: Row, names: tuple[str, ...], config: Config, early: bool, valued: bool = False
) -> datetime | None:
    """The time from which a history or counter over these events counts this one; None: never.

    If the values count (`valued`), any value of an impression log's column does, also 0.
    """
    log, time = config.pipeline.log, event["time"]
    if time is None:
        return None
    if isinstance(log, EventLog):
        wanted = [log.impression if name == "impression" else name for name in names]
        return time if event["event"] in wanted else None
    if "impression" in names:
        return time
    known = []
    for name in names:
        value = event[COLUMN + name]
        if value is not None and (valued or value > 0):
            if name not in log.known_at:
                known.append(time + (log.known_after or timedelta(0)))
            elif event[KNOWN + log.known_at[name]] is not None:
                known.append(max(time, event[KNOWN + log.known_at[name]]))
    return (time if early else min(known)) if known else None
