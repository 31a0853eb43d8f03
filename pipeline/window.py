"""Runs of some days: which labels such a run holds, and what it must read.

A run from D to D' knows the log up to D', not including it. It holds the labels that close in
[D, D'): those that were still open in the run before are there now, and those of the last hours
wait for the next run. So the runs of consecutive days together hold each label once, as a run over
the whole log makes it. A row stands in each run in which one of its labels closes.

    read .................. [begin, end)     partitions, then rows
    impressions ..... [first, end)           first = D - the longest wait of any label, end = D'
    look-back [begin, first)                 the longest window of any feature, and a margin

An impression's features see no further back than their windows. A history, counter or draw of
negatives without a window sees all of the past, and then so does the run: `begin` is None. But
counts, rates, times since an event and largest values go on from the totals of the previous run
(`compute.totals`), where it is given.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from multigate.configs import Config, ConfigError
from multigate.configs.contract import (
    Count,
    EventCounter,
    History,
    IdListFeature,
    LabelCounter,
    Max,
    NumberFeature,
    Rate,
    Since,
)
from multigate.configs.files import TIME
from multigate.configs.sections.log import EventLog
from multigate.pipeline.core.columns import log_features
from multigate.pipeline.label.labels import open_at, waits
from multigate.pipeline.read.sources import Shard

_DAY = timedelta(days=1)
_OverTime = History | EventCounter | LabelCounter


@dataclass(frozen=True)
class Window:
    """What a run of some days reads and makes; instants in UTC."""

    begin: datetime | None
    """Rows from here on are read; None: from the log's beginning."""
    first: datetime
    """Impressions from here on may become examples."""
    since: datetime
    """Labels that closed from here on are this run's."""
    end: datetime
    """Up to here, not including it, rows are read: the cut-off of labels and snapshots."""
    totals: datetime | None = None
    """As of when the totals of the previous run are, that counters without a window go on from."""


def parse_instant(text: str, zone: str) -> datetime:
    """An instant: a day such as 2026-11-20 (its midnight in `zone`), or ISO 8601.

    Raises:
        ConfigError: it is neither.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"expected a day such as 2026-11-20 or an instant such as 2026-11-20T06:00:00Z, "
            f"received {text!r}"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=ZoneInfo(zone))
    return instant.astimezone(UTC)


def plan_window(
    config: Config, since: datetime, until: datetime, totals: datetime | None = None
) -> Window:
    """Work out what a run from `since` to `until` reads and makes.

    Args:
        config: the labels' waits and the features' windows.
        since: labels that closed from here on are the run's.
        until: the cut-off.
        totals: as of when the totals of the previous run are, if it left any.

    Raises:
        ConfigError: the span is empty, or the configuration has no examples that stay as they are.
    """
    pipeline = config.pipeline
    if since >= until:
        raise ConfigError(
            f"--from must be before --to: received {since.isoformat()} and {until.isoformat()}"
        )
    if pipeline.cut_off is not None and until > pipeline.cut_off.astimezone(UTC):
        raise ConfigError(
            f"--to: expected at most pipeline.cut_off, {pipeline.cut_off.isoformat()}, after which "
            f"no row is part of the run; received {until.isoformat()}"
        )
    if pipeline.log.unknown_time is not None:
        raise ConfigError("--from: pipeline.log.unknown_time: rows without a time are of no day")
    if pipeline.negatives is not None and pipeline.negatives.exclude == "ever":
        raise ConfigError("--from: pipeline.negatives.exclude: 'ever' looks beyond every day")
    for name in config.tasks_without_end():
        raise ConfigError(
            f"--from: contract.tasks.{name}.label waits without limit, so that no day's labels "
            "are ever complete; give it within, or set pipeline.attribution"
        )
    longest = max(waits(config).values()) if pipeline.hold_back else timedelta(0)
    first, back = since - longest, look_back(config)
    if back is None and totals is not None:
        back = look_back(config, continued=True)
        if back is not None:
            return Window(min(first, totals) - back, first, since, until, totals)
    return Window(None if back is None else first - back, first, since, until)


def held_elsewhere(config: Config, window: Window) -> dict[str, pl.Expr]:
    """By task, whether another run holds a row's label: it closed before, or is still open.

    Returns:
        Flags of a table with `meta/time`.
    """
    times, tasks = pl.col(TIME), waits(config)
    if not config.pipeline.hold_back:  # a label closes at once
        tasks = dict.fromkeys(tasks, timedelta(0))
    open_before = open_at(times, tasks, window.since)
    if not config.pipeline.hold_back:
        return {name: ~flag for name, flag in open_before.items()}
    still_open = open_at(times, tasks, window.end)
    return {name: ~flag | still_open[name] for name, flag in open_before.items()}


def look_back(config: Config, *, continued: bool = False) -> timedelta | None:
    """How much of the log before an impression it depends on; None: all of the past.

    Args:
        config: the features' windows.
        continued: whether counters of events without a window go on from totals. A mean does not.
    """
    pipeline = config.pipeline
    spans = _windows(config, continued)
    negatives = pipeline.negatives
    if negatives is not None:
        spans += [negatives.recent, negatives.exclude_within]
    longest = timedelta(0)
    for span in spans:
        if span is None:
            return None
        longest = max(longest, span)
    # Whether the first impression repeats one, and whether feedback has an earlier impression.
    longest += pipeline.collapse or timedelta(0)
    if pipeline.clock_skew is not None:
        if pipeline.attribution is None:
            return None
        longest += pipeline.clock_skew + pipeline.attribution
    return longest


def _windows(config: Config, continued: bool) -> list[timedelta | None]:
    """How far back each history and counter looks, down to the impressions of its events."""
    spans: list[timedelta | None] = []
    for feature in config.contract.features.values():
        found: _OverTime | None = feature.history if isinstance(feature, IdListFeature) else None
        if isinstance(feature, NumberFeature):
            found = feature.counter
        if found is not None:
            delay = _longest_delay(found, config)
            within = found.within
            if continued and isinstance(found, Count | Rate | Since | Max) and within is None:
                within = timedelta(0)
            spans.append(None if delay is None or within is None else within + delay)
    return spans


def _longest_delay(rule: _OverTime, config: Config) -> timedelta | None:
    """The longest wait until feedback that a feature reads is known; None: without limit."""
    if isinstance(rule, LabelCounter):
        return waits(config)[rule.task]
    log, names = config.pipeline.log, rule.events
    longest = timedelta(0)
    if not isinstance(log, EventLog):
        for name in (*names, *(rule.per if isinstance(rule, Rate) else ())):
            if name != "impression":
                known = log.feedback_known(name)
                if not isinstance(known, timedelta):
                    return None
                longest = max(longest, known)
    if isinstance(rule, History) and set(rule.with_) & log_features(config).keys():
        # An entry's category may be that of an earlier event of the user on the item.
        earlier = config.pipeline.attribution
        return None if earlier is None else longest + earlier
    return longest


def needed(shards: list[Shard], window: Window, config: Config) -> list[Shard]:
    """The files that may hold rows of the window: all but those of other days' folders."""
    log = config.pipeline.log
    folder = re.compile(rf"(?:^|/){re.escape(log.partition)}=(\d{{4}})-?(\d\d)-?(\d\d)(?=/)")
    zone, kept = ZoneInfo(log.time_zone), []
    for shard in shards:
        found = folder.search(shard.name)
        if found is not None:
            try:
                day = date(*(int(part) for part in found.groups()))
            except ValueError:
                found = None  # no day of any calendar: who reads it sees the rows' own times
        if found is not None:
            start = datetime(day.year, day.month, day.day, tzinfo=zone)
            stop = datetime.combine(day + _DAY, datetime.min.time(), tzinfo=zone)
            if start >= window.end or (window.begin is not None and stop <= window.begin):
                continue
        kept.append(shard)
    return kept
