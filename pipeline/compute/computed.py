"""Features that are computed over time: which events count, and what they come to.

The user's are computed within the user's bucket. The item's need the events of all users: each
bucket of users sends its events, and the queries of its examples, to the buckets of items, which
answer them (`finishing.count_items`). So neither the log's items nor their events must fit in
memory at once.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.contract import Max, Mean, NumberFeature
from multigate.configs.sections.log import EventLog, ImpressionLog
from multigate.features import (
    Slices,
    count_events,
    event_rate,
    largest_value,
    last_entries,
    mean_value,
    seconds_since,
)
from multigate.pipeline.compute import tables, totals
from multigate.pipeline.compute.totals import Totals
from multigate.pipeline.core.columns import (
    COLUMN,
    ENTRY,
    FEATURE,
    KNOWN,
    counters,
    entry_categories,
    entry_lists,
    history_features,
    id_type,
)

Columns = dict[str, pl.Series]

_HISTORY = "history/"  # kinds of tables that hold the items of one


def counting(events: pl.DataFrame, config: Config, names: tuple[str, ...]) -> pl.DataFrame:
    """The events that count: of these types, or whose columns of these names are above zero.

    The feedback of an impression log counts once a row, from when the first of it is known; then
    column `event` names the first one.
    """
    log = config.pipeline.log
    if isinstance(log, EventLog):
        types = [log.impression if name == "impression" else name for name in names]
        return events.filter(pl.col("event").is_in(types))
    if "impression" in names:
        return events.with_columns(event=pl.lit("impression"))
    known = [pl.when(pl.col(COLUMN + name) > 0).then(_known(name, log)) for name in names]
    first = pl.min_horizontal(known)
    kinds = [
        pl.when(time == first).then(pl.lit(name)) for name, time in zip(names, known, strict=True)
    ]
    counted = events.with_columns(time=first, event=pl.coalesce(kinds))
    return counted.filter(pl.col("time").is_not_null())


class _Set(NamedTuple):
    """Events that counters count together.

    Attributes:
        names: event types or feedback columns.
        valued: whether their values count, so that any value does, also one of zero or below.
    """

    names: tuple[str, ...]
    valued: bool = False

    def of(self, events: pl.DataFrame, config: Config) -> pl.DataFrame:
        """The events of the set; with column `value` if their values count."""
        log = config.pipeline.log
        if not self.valued or isinstance(log, EventLog):
            return counting(events, config, self.names)
        (name,) = self.names
        known = pl.when(pl.col(COLUMN + name).is_not_null()).then(_known(name, log))
        counted = events.with_columns(time=known, value=pl.col(COLUMN + name))
        return counted.filter(pl.col("time").is_not_null())


def _known(column: str, log: ImpressionLog) -> pl.Expr:
    """When a row's feedback is known, which is not before its impression; null: never."""
    if column in log.known_at:
        at = pl.col(KNOWN + log.known_at[column])
        return pl.when(at.is_not_null()).then(pl.max_horizontal("time", at))
    return pl.col("time") + (log.known_after or timedelta(0))


def of_user(
    events: pl.DataFrame, queries: pl.DataFrame, config: Config, before: Totals | None = None
) -> Columns:
    """Compute the user's histories and counters of events.

    Args:
        events: all events of the users; those that `before` holds may be absent.
        queries: columns `user`, `time`.
        config: names the features.
        before: what counters without a window go on from.

    Returns:
        (B,) by feature.
    """
    found = history_lists(histories(events, queries, config), queries["time"], config)
    return found | user_counters(events, queries, config, before)


def histories(events: pl.DataFrame, queries: pl.DataFrame, config: Config) -> dict[str, Slices]:
    """Find the user's histories, see `of_user`, without making lists of them.

    Of the ages of entries, the slices hold the instants.
    """
    found = {}
    for name, feature in history_features(config).items():
        history = feature.history
        if history is not None:
            lists = config.contract.entries_of(name)
            columns = {what: _column(what) for what in lists}
            beside = sorted({column for column in columns.values() if column != "time"})
            past = counting(events, config, history.events)
            past = past.select("user", "time", "item", *beside)
            last = min(history.last, feature.max_length)
            entries = last_entries(past, queries, last, history.within, beside)
            found[name] = entries["item"]
            found |= {other: entries[columns[what]] for what, other in lists.items()}
    return found


def _column(what: str) -> str:
    """The column of events that says something of a history's entry."""
    return {"event": "event", "age": "time"}.get(what, ENTRY + what)


def history_lists(histories: dict[str, Slices], times: pl.Series, config: Config) -> Columns:
    """Make lists of what `histories` found, for queries at these times."""
    ages = {name for name, feature in entry_lists(config).items() if feature.is_age}
    return {
        name: one.ages(times) if name in ages else one.lists() for name, one in histories.items()
    }


def with_entries(
    events: pl.DataFrame, config: Config, side_tables: dict[str, pl.DataFrame]
) -> pl.DataFrame:
    """Add what histories hold of each event's item, as of the event.

    A feature of the log is the event's own; where it has none, that of the user's latest earlier
    event on the item, at most `pipeline.attribution` ago.
    """
    contract, names = config.contract, entry_categories(config)
    longest = config.pipeline.attribution
    for name in names:
        if contract.features[name].source == "log":
            log, order = config.pipeline.log, [pl.col("time")]
            if isinstance(log, EventLog):
                order.append(pl.col("event") != log.impression)
            order.append(pl.col("fingerprint"))  # a sort by `order_by` leaves ties in no order
            given = pl.col(FEATURE + name)
            told = pl.when(given.is_not_null()).then(pl.col("time"))
            value, then = (
                column.forward_fill().over("user", "item", order_by=order)
                for column in (given, told)
            )
            if longest is not None:
                value = pl.when(given.is_not_null() | (pl.col("time") - then <= longest)).then(
                    value
                )
            events = events.with_columns(value.alias(ENTRY + name))
        else:
            items = events.select(pl.col("item").alias(contract.item), "time")
            joined = tables.join_table(items, config, "items", side_tables["items"], "time")
            events = events.with_columns(joined[name].alias(ENTRY + name))
    return events


def histories_to_tables(histories: dict[str, Slices]) -> dict[str, pl.DataFrame]:
    """What `histories` found of a bucket as tables, by kind, to be read once more."""
    columns: dict[str, Any] = {}
    for name, one in histories.items():
        columns |= {f"start/{name}": one.start, f"stop/{name}": one.stop}
    items = {_HISTORY + name: pl.DataFrame({"item": one.items}) for name, one in histories.items()}
    return {"histories": pl.DataFrame(columns), **items}


def histories_from_tables(read: Callable[[str], pl.DataFrame], config: Config) -> dict[str, Slices]:
    """Undo `histories_to_tables`; `read` gives the table of a kind."""
    found, columns = {}, read("histories")
    for name in {**history_features(config), **entry_lists(config)}:
        start, stop = (columns[f"{end}/{name}"].to_numpy() for end in ("start", "stop"))
        found[name] = Slices(read(_HISTORY + name)["item"], start, stop)
    return found


def user_counters(
    events: pl.DataFrame, queries: pl.DataFrame, config: Config, before: Totals | None = None
) -> Columns:
    """Compute the user's counters of events, see `of_user`."""
    sets = {one: one.of(events, config) for one in _sets(config, "user")}
    return _counters(sets, queries, config, "user", before)


def user_totals(
    events: pl.DataFrame, config: Config, since: datetime | None, until: datetime
) -> pl.DataFrame:
    """What the next run's counters of users go on from; see `totals.count`."""
    sets = [one.of(events, config) for one in _sets(config, "user")]
    return totals.count(sets, config, "user", since, until)


def item_totals(
    counted: pl.DataFrame, config: Config, since: datetime | None, until: datetime
) -> pl.DataFrame:
    """What the next run's counters of items go on from; see `totals.count`."""
    sets = [counted.filter(pl.col("set") == at) for at, _ in enumerate(_sets(config, "item"))]
    return totals.count(sets, config, "item", since, until)


def user_events(events: pl.DataFrame, config: Config) -> pl.DataFrame:
    """The events that `of_user` reads; no rows if no feature of users is computed."""
    names = ["user", "time", "item", *(n for n in ("event", "value") if n in events.columns)]
    read = events.select(*names, pl.col(f"^({COLUMN}|{ENTRY}|{KNOWN}).*$"))
    return read if history_features(config) or _sets(config, "user") else read.clear()


def item_events(events: pl.DataFrame, config: Config) -> pl.DataFrame:
    """A bucket's events that count for their items.

    Returns:
        Columns `item`, `time`, `set`: which of the sets of event types that the item's
        counters name (an event of two sets is there twice), and `value` where a counter reads it.
    """
    empty = no_events(config)
    parts = [
        one.of(events, config).with_columns(set=pl.lit(at, pl.Int16))
        for at, one in enumerate(_sets(config, "item"))
    ]
    if "value" in empty.columns:  # null in sets whose values nobody reads
        parts = [
            part if "value" in part.columns else part.with_columns(value=pl.lit(None, pl.Float64))
            for part in parts
        ]
    return pl.concat([empty, *(part.select(empty.columns) for part in parts)])


def no_events(config: Config) -> pl.DataFrame:
    """An empty table of `item_events`."""
    item = pl.String if id_type(config, config.contract.item) == "string" else pl.Int64
    time = pl.Datetime("us", "UTC")
    schema: dict[str, Any] = {"item": item, "time": time, "set": pl.Int16}
    if any(f.mean or f.max for f in counters(config, "item").values()):
        schema["value"] = pl.Float64
    return pl.DataFrame(schema=schema)


def of_item(
    counted: pl.DataFrame, queries: pl.DataFrame, config: Config, before: Totals | None = None
) -> Columns:
    """Compute the item's counters of events.

    Args:
        counted: all events that `item_events` found of the items, of all users.
        queries: columns `item`, `time`.
        config: names the features.
        before: what counters without a window go on from.

    Returns:
        (B,) by feature.
    """
    sets = {
        one: counted.filter(pl.col("set") == at) for at, one in enumerate(_sets(config, "item"))
    }
    return _counters(sets, queries, config, "item", before)


def _sets(config: Config, of: str) -> list[_Set]:
    """The different sets of events that counters of the user or item name."""
    named = set()
    for feature in counters(config, of).values():
        if feature.event_counter is not None:
            valued = isinstance(feature.event_counter, Mean | Max)
            named.add(_Set(feature.event_counter.events, valued))
        if feature.rate is not None:
            named.add(_Set(feature.rate.per))
    return sorted(named)


def _counters(
    sets: dict[_Set, pl.DataFrame],
    queries: pl.DataFrame,
    config: Config,
    of: str,
    before: Totals | None = None,
) -> Columns:
    found = {}
    places = {one: at for at, one in enumerate(_sets(config, of))}
    for name, feature in counters(config, of).items():
        rule = feature.event_counter
        if rule is None:
            continue
        own = _Set(rule.events, isinstance(rule, Mean | Max))
        if before is not None and rule.within is None and not isinstance(rule, Mean):
            old = before.look_up(queries[of], places[own])
            past = before.after(sets[own])
            if feature.rate is not None:
                per = _Set(feature.rate.per)
                more = before.look_up(queries[of], places[per])["count"]
                counted = count_events(past, queries, of) + old["count"]
                divisor = count_events(before.after(sets[per]), queries, of) + more
                rate = pl.when(divisor != 0).then(counted / divisor)
                found[name] = queries.select(rate.alias("rate")).to_series()
            else:
                found[name] = _continued(feature, past, queries, of, old)
        elif feature.count is not None:
            found[name] = count_events(sets[own], queries, of, rule.within)
        elif feature.since is not None:
            which = feature.since.which
            found[name] = seconds_since(sets[own], queries, of, which, rule.within)
        elif feature.rate is not None:
            per = _Set(feature.rate.per)
            found[name] = event_rate(sets[own], sets[per], queries, of, rule.within)
        elif feature.mean is not None:
            try:
                found[name] = mean_value(sets[own], queries, of, rule.within)
            except ValueError as error:
                raise DataError(
                    f"contract.features.{name}: {error}; log the values in a larger unit, such as "
                    "seconds instead of microseconds, or take the largest (max)"
                ) from None
        elif feature.max is not None:
            found[name] = largest_value(sets[own], queries, of, rule.within)
    return found


def _continued(
    feature: NumberFeature, past: pl.DataFrame, queries: pl.DataFrame, of: str, old: pl.DataFrame
) -> pl.Series:
    """A count, a time since an event or a largest value that goes on from totals.

    Args:
        feature: the counter, without a window.
        past: the events after the totals.
        queries: (B,) columns `of` and `time`.
        of: `user` or `item`.
        old: (B,) see `Totals.look_up`.
    """
    if feature.count is not None:
        return (count_events(past, queries, of) + old["count"]).alias("count")
    if feature.since is not None:
        which = feature.since.which
        new = seconds_since(past, queries, of, which)
        passed = queries["time"].dt.cast_time_unit("us") - old[which]
        seconds = passed.dt.total_microseconds().cast(pl.Float64) / 1e6
        first, then = (new, seconds) if which == "last" else (seconds, new)
        return first.zip_with(first.is_not_null(), then).alias("since")
    new = largest_value(past, queries, of)
    both = pl.DataFrame({"new": new, "old": old["largest"]})
    return both.select(pl.max_horizontal("new", "old").alias("max")).to_series()
