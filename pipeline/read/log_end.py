"""Where the log ends: a few rows with a wrong clock must not decide it.

One row dated 2099 would move the cut-off of labels and snapshots to 2099. So, where no cut-off is
configured, the log ends before the first gap in its days (UTC) that

- is longer than a day and longer than half of the span before it, and has after it fewer than 100
  rows and less than 0.1 % of all rows; or
- is longer than a year and than the span before it, and has a single row after it.

The span does not count first days that hold fewer than 100 rows and less than 0.1 % of all rows
together: a row dated 1970 would make it so long that no gap ends the log.

Example: rows from 1 to 30 November and 3 of 10,000 rows on 5 January; the gap of 36 days is longer
than 15 days, so that the log ends with 30 November. What comes after is a reject.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import polars as pl

from multigate.pipeline.core.facts import Day, ShardFacts

REASON = "time: later than the end of the log, {day}; name pipeline.cut_off to say where it ends"
MOST = 99
"""So many rows at most come after the end."""

_SHARE = 0.001
_YEAR = 365
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FEBRUARY = _EPOCH + timedelta(days=31)
_DAY = 86_400_000_000


def days(times: pl.Series) -> dict[int, Day]:
    """Count rows by day.

    Args:
        times: (B,) in microseconds UTC; null where unknown.
    """
    table = pl.DataFrame({"time": times, "day": times.to_physical() // _DAY}).drop_nulls()
    grouped = table.group_by("day").agg(pl.len(), pl.col("time").max())
    return {day: Day(rows, latest) for day, rows, latest in grouped.iter_rows()}


def add(parts: Iterable[dict[int, Day]]) -> dict[int, Day]:
    """Add up what `days` counted, in the order of the days."""
    found: dict[int, list[Day]] = defaultdict(list)
    for part in parts:
        for number, day in part.items():
            found[number].append(day)
    return {
        number: Day(sum(day.rows for day in same), max(day.latest for day in same))
        for number, same in sorted(found.items())
    }


def end_of(log: dict[int, Day]) -> datetime | None:
    """The midnight at which the log ends; None where no row comes after its end.

    Args:
        log: what `add` returned.
    """
    numbers = list(log)
    total = after = sum(day.rows for day in log.values())
    first = None
    for at, following in itertools.pairwise(numbers):
        after -= log[at].rows
        if first is None and not _few(total - after, total):
            first = at
        gap, span = following - at, at - (numbers[0] if first is None else first) + 1
        few = _few(after, total) and gap > max(1, span / 2)
        if few or (after == 1 and gap > max(_YEAR, span)):
            return _EPOCH + timedelta(days=at + 1)
    return None


def _few(rows: int, total: int) -> bool:
    return rows <= MOST and rows < _SHARE * total


def reason(end: datetime) -> str:
    """Why a row after the end is a reject."""
    return REASON.format(day=(end - timedelta(days=1)).date())


def before(events: pl.DataFrame, end: datetime | None) -> pl.DataFrame:
    """The events up to the end of the log, and those without a time."""
    if end is None:
        return events
    return events.filter(pl.col("time").is_null() | (pl.col("time") < end))


def wrong_unit(shards: Sequence[ShardFacts], unit: str) -> str | None:
    """Report times that all lie in January 1970: seconds that were read as milliseconds.

    Numbers of seconds that small are a clock of the log's own, which nothing is wrong with.
    """
    log = add(shard.days for shard in shards)
    if not log or unit not in ("ms", "us"):
        return None
    latest = max(day.latest for day in log.values())
    if latest >= _FEBRUARY:
        return None
    larger = "s" if unit == "ms" else "ms or s"
    return (
        f"{shards[0].file}: all times lie in January 1970, the latest at {latest.isoformat()}; "
        f"time_unit is {unit}: set it to {larger} if that is what the column holds"
    )
