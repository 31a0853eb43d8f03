"""Events of the raw log and features over time, computed again one event at a time: for the audit.

Reading and typing the log is shared with the job; what follows it is not, so that a defect there is
found here.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.contract import Count, Feature, IdListFeature, NumberFeature, Rate, Since
from multigate.configs.sections.log import EventLog
from multigate.pipeline.columns import COLUMN
from multigate.pipeline.erasure import without
from multigate.pipeline.inputs import form, shards, single_columns, wanted_columns
from multigate.pipeline.normalise import normalise
from multigate.pipeline.sources import read

Row = dict[str, Any]


def plain(time: str) -> pl.Expr:
    """A column of times without a zone, in UTC."""
    return pl.col(time).dt.replace_time_zone(None)


def events_of(
    config: Config, data: Path | str, rows: list[Row], forgotten: pl.Series | None
) -> list[Row]:
    """The log's events of some users and items.

    Args:
        config: names the log.
        data: the folder that holds its files.
        rows: examples, whose users and items these are.
        forgotten: users whose events count nowhere; None where there are none.

    Returns:
        The events in the order of time, without duplicates.
    """
    users = pl.Series(sorted({row[config.contract.user] for row in rows}))
    items = pl.Series(sorted({row[config.contract.item] for row in rows}))
    concerned = pl.col("user").is_in(users.implode()) | pl.col("item").is_in(items.implode())
    found = [without(part.filter(concerned), "user", forgotten) for part in _log(config, data)]
    events = pl.concat(found)
    if "event_id" in events.columns:
        # The first event of an id may name another item than the sample's.
        keys = events.select("user", "event_id").drop_nulls().unique()
        same = [part.join(keys, on=["user", "event_id"], how="semi") for part in _log(config, data)]
        events = pl.concat([events, *same])
    seen: set[Any] = set()
    kept = []
    for event in sorted(
        events.to_dicts(), key=lambda e: (e["time"] or datetime.min, e["fingerprint"])
    ):
        row = ("time", "fingerprint", "user", "item", "event")
        known: set[Any] = {tuple(event.get(name) for name in row)}
        if event.get("event_id") is not None:
            known.add((event["user"], event["event_id"], event["identity"]))
        if not known & seen:
            kept.append(event)
        seen |= known
    return kept


def _log(config: Config, data: Path | str) -> Iterator[pl.DataFrame]:
    """The log's good rows, some at a time, with the columns that are read here."""
    for shard in shards(config, data):
        wanted = wanted_columns(config, shard.feedback)
        single = single_columns(config, shard.feedback)
        for chunk in read(shard, form(config, shard.feedback), wanted, single):
            events, _ = normalise(chunk, config, shard.name, shard.feedback)
            names = ["user", "item", "identity", "fingerprint", "event", "event_id"]
            kept = [n for n in events.columns if n in names or n.startswith(COLUMN)]
            yield events.select(*kept, plain("time"))


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
) -> Any:
    """Compute a feature from a user's or item's events.

    Args:
        feature: a history or a counter.
        events: of the user or item, in the order of time.
        time: the example's; None where it is unknown.
        config: tells which events count.
        until: take the events up to then (included) instead of those strictly before `time`: what a
            leak would give.

    Returns:
        The value as an example holds it.
    """
    if time is None:
        return [] if isinstance(feature, IdListFeature) else None
    past = [
        event
        for event in events
        if event["time"] is not None
        and (event["time"] < time if until is None else event["time"] <= until)
    ]
    rule: Any = feature.history if isinstance(feature, IdListFeature) else _counter(feature)
    if rule is None:
        raise ValueError(f"not a computed feature: {feature!r}")
    if rule.within is not None:
        past = [event for event in past if event["time"] >= time - rule.within]
    counting = [event for event in past if _counts(event, rule.events, config)]
    if isinstance(feature, IdListFeature):
        counting.sort(key=lambda e: (e["time"], e["item"]))
        return [e["item"] for e in counting][-min(rule.last, feature.max_length) :]
    if isinstance(rule, Count):
        return float(len(counting))
    if isinstance(rule, Rate):
        per = sum(_counts(event, rule.per, config) for event in past)
        return float(np.float32(len(counting) / per)) if per else None
    times = [event["time"] for event in counting]
    if not times:
        return None
    then = max(times) if rule.which == "last" else min(times)
    return float(np.float32((time - then) / timedelta(microseconds=1) / 1e6))


def _counter(feature: Feature) -> Count | Since | Rate | None:
    return feature.counter if isinstance(feature, NumberFeature) else None


def _counts(event: Row, names: tuple[str, ...], config: Config) -> bool:
    """Whether a history or counter over these events counts this one."""
    log = config.pipeline.log
    if isinstance(log, EventLog):
        return event["event"] in names or (
            "impression" in names and event["event"] == log.impression
        )
    return "impression" in names or any((event[COLUMN + name] or 0) > 0 for name in names)
