"""Label rules: from what followed an impression to one number per task, null where masked.

docs/labels.md states every rule, with examples that a test runs.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config
from multigate.configs.contract import Contract
from multigate.configs.errors import DataError
from multigate.configs.files import LABEL
from multigate.configs.sections.labels import (
    ColumnLabel,
    DwellLabel,
    EventLabel,
    ImpressionLabel,
    LabelRule,
    RatioLabel,
)
from multigate.configs.sections.log import EventLog, Log
from multigate.features import Timeline
from multigate.pipeline.core.columns import COLUMN, KNOWN

_MICROSECOND = timedelta(microseconds=1)


def logged_values(
    config: Config,
    impressions: pl.DataFrame,
    events: pl.DataFrame,
    feedback: pl.DataFrame,
) -> dict[str, pl.Series]:
    """Apply each task's `label` rule to logged impressions.

    Args:
        config: the tasks, and when the log's feedback is known.
        impressions: (B, ...) columns `user`, `item`, `time`, and `session`, `column/...` or
            `known/...` where rules read them.
        events: all events of the same users, repeated impressions included: what ends a dwell.
        feedback: the attributed events: columns `impression`, `delay`, `event`, `value`, and
            `column/...` where rules divide by it.

    Returns:
        (B,) values by task, null where the rule finds nothing.
    """
    values = {}
    for name, task in config.contract.tasks.items():
        rule = task.label
        if isinstance(rule, ImpressionLabel):
            values[name] = pl.Series([1.0] * len(impressions), dtype=pl.Float64)
        elif isinstance(rule, EventLabel):
            values[name] = _from_events(rule, len(impressions), feedback)
        elif isinstance(rule, DwellLabel):
            values[name] = _dwell(impressions, events, rule)
        else:
            column, in_time = COLUMN + rule.column, _known_in_time(rule, config.pipeline.log)
            value = _ratio(column, rule.over) if isinstance(rule, RatioLabel) else pl.col(column)
            values[name] = impressions.select(pl.when(in_time).then(value)).to_series()
    return values


def waits(config: Config) -> dict[str, timedelta]:
    """How long after an impression each task's label stays open.

    A task waits at least as long as the tasks that its `without` and `when` name. A rule without a
    limit does not wait: its label is taken as it stands.
    """
    contract = config.contract
    found: dict[str, timedelta] = {}
    for name in contract.tasks_in_order():
        task = contract.tasks[name]
        others = [found[other] for other in (task.without, task.when) if other is not None]
        found[name] = max(_own_wait(task.label, config), *others, timedelta(0))
    return {name: found[name] for name in contract.tasks}


def _known_in_time(rule: ColumnLabel | RatioLabel, log: Log) -> pl.Expr:
    """Whether a row's columns were known when its label closed.

    A column with a time of its own may be filled later than the log's `known_after`. Nobody had its
    value then, and what stands in the row now may have happened during the next split.
    """
    in_time = pl.lit(True)
    if isinstance(log, EventLog) or log.known_after is None:
        return in_time
    for column in rule.columns:
        if column in log.known_at:
            delay = pl.col(KNOWN + log.known_at[column]) - pl.col("time")
            in_time &= (delay <= log.known_after).fill_null(True)
    return in_time


def _own_wait(rule: LabelRule, config: Config) -> timedelta:
    log = config.pipeline.log
    if isinstance(rule, EventLabel):
        limits = (rule.within, config.pipeline.attribution)
        return min((limit for limit in limits if limit is not None), default=timedelta(0))
    if isinstance(rule, DwellLabel):
        return rule.wait
    if isinstance(rule, ImpressionLabel) or isinstance(log, EventLog):
        return timedelta(0)
    return log.known_after or timedelta(0)


def impression_tasks(contract: Contract) -> list[str]:
    """The tasks that tell logged rows from sampled ones."""
    return [name for name, t in contract.tasks.items() if isinstance(t.label, ImpressionLabel)]


def masked(flags: Mapping[str, pl.Expr]) -> list[pl.Expr]:
    """The label columns of these tasks, null where a task's flag is true."""
    return [
        pl.when(~flag).then(pl.col(LABEL + name)).alias(LABEL + name)
        for name, flag in flags.items()
    ]


def open_at(
    times: pl.Expr, tasks: dict[str, timedelta], instant: pl.Expr | datetime
) -> dict[str, pl.Expr]:
    """By task, whether its label was still open as of an instant.

    Feedback at the very end of the wait counts, and must have come before the instant.

    Args:
        times: of the impressions; of an unknown time, no label is open.
        tasks: see `waits`.
        instant: an instant, or an expression.
    """
    return {
        name: (times + wait >= instant).fill_null(False).alias(name) for name, wait in tasks.items()
    }


def _ratio(column: str, over: str) -> pl.Expr:
    """A column over a divisor; null where there is nothing to divide by."""
    divisor = pl.col(COLUMN + over)
    return pl.when(divisor > 0).then(pl.col(column) / divisor)


def sampled_values(contract: Contract, rows: int) -> dict[str, pl.Series]:
    """What the `label` rules say of sampled negatives: 0 for `impression`, else nothing."""
    return {
        name: pl.Series(
            [0.0 if isinstance(task.label, ImpressionLabel) else None] * rows, dtype=pl.Float64
        )
        for name, task in contract.tasks.items()
    }


def apply_steps(contract: Contract, values: dict[str, pl.Series]) -> dict[str, pl.Series]:
    """Apply what comes after the rule, in this order: clip, at_least, without, when.

    Args:
        contract: the tasks.
        values: (B,) values by task.

    Returns:
        (B,) labels by task, float32, null where masked. A binary label without `at_least` is 1
        where the value is above 0. A masked label of another task counts as
        not 1, both for `without` and for `when`.

    Raises:
        DataError: a label is beyond float32, as a sum or a ratio of good numbers can be.
    """
    labels: dict[str, pl.Series] = {}
    for name in contract.tasks_in_order():
        task, label = contract.tasks[name], values[name]
        if task.clip is not None:
            label = label.clip(*task.clip)
        if task.at_least is not None:
            label = (label >= task.at_least).cast(pl.Float64)
        elif task.type == "binary":
            label = (label > 0).cast(pl.Float64)
        if task.without is not None:
            unless = _is_one(labels[task.without])
            label = label.zip_with(~unless | label.is_null(), pl.zeros(len(label), eager=True))
        if task.when is not None:
            nothing = pl.Series([None] * len(label), dtype=pl.Float64)
            label = label.zip_with(_is_one(labels[task.when]), nothing)
        labels[name] = label.cast(pl.Float32).alias(name)
        beyond = label.filter(labels[name].is_infinite())
        if len(beyond):
            raise DataError(
                f"contract.tasks.{name}.label: expected numbers within float32, received "
                f"{beyond[0]:g}; set the task's clip"
            )
    return {name: labels[name] for name in contract.tasks}


def _is_one(label: pl.Series) -> pl.Series:
    return (label == 1).fill_null(False)


def _from_events(rule: EventLabel, rows: int, feedback: pl.DataFrame) -> pl.Series:
    counting = feedback.filter(pl.col("event").is_in(list(rule.events)))
    if rule.within is not None:
        counting = counting.filter(pl.col("delay") <= rule.within // _MICROSECOND)
    if rule.aggregate in ("presence", "count"):
        found = counting.group_by("impression").agg(label=pl.len().cast(pl.Float64))
        if rule.aggregate == "presence":
            found = found.with_columns(label=pl.lit(1.0))
        otherwise = 0.0
    else:
        if rule.over is not None:
            counting = counting.with_columns(value=_ratio("value", rule.over))
        valued = counting.filter(pl.col("value").is_not_null())
        # Sorted values add up to the same number whatever the order of the events.
        total = pl.col("value").sort().sum() if rule.aggregate == "sum" else pl.col("value").max()
        found = valued.group_by("impression").agg(label=total)
        otherwise = None
    every = pl.DataFrame({"impression": pl.int_range(rows, dtype=pl.Int64, eager=True)})
    labels = every.join(found, on="impression", how="left", maintain_order="left")["label"]
    return labels if otherwise is None else labels.fill_null(otherwise)


def _dwell(impressions: pl.DataFrame, events: pl.DataFrame, rule: DwellLabel) -> pl.Series:
    """Seconds to the user's next event in the session that ends the dwell, strictly later."""
    in_session = events.filter(pl.col("session").is_not_null())
    if isinstance(rule.ends, tuple):
        in_session = in_session.filter(pl.col("event").is_in(list(rule.ends)))
    row = pl.int_range(len(impressions), dtype=pl.Int64, eager=True)
    if not len(in_session):
        return pl.repeat(None, len(impressions), dtype=pl.Float64, eager=True)
    timeline = Timeline(in_session, ["user", "session"])
    _, stop, end = timeline.earlier(impressions, inclusive=True)
    items = in_session["item"].unique().sort()
    codes = _codes(in_session["item"], items)
    # Each event's item where the event does not end the dwell of that item, else a number of its
    # own. So one step leads from an event over all that follow it and do not end the dwell either.
    passed = np.ones(len(codes), bool)
    if rule.ends != "other_item":
        passed = in_session["repeated"].to_numpy()
    marks = np.where(passed, codes, -2 - np.arange(len(codes)))[timeline.rows]
    turns = np.append(np.flatnonzero(marks[1:] != marks[:-1]) + 1, len(marks))
    here = np.minimum(stop, len(marks) - 1)
    over = (stop < end) & (marks[here] == _codes(impressions["item"], items))
    stop = np.where(over, turns[np.searchsorted(turns, here, side="right")], stop)
    following = stop < end
    rows = timeline.rows[stop[following]]
    gaps = in_session["time"].gather(rows) - impressions["time"].filter(following)
    seconds = (gaps.dt.total_microseconds() / 1e6).cast(pl.Float64)
    found = pl.DataFrame({"at": row.filter(following), "dwell": seconds})
    dwell = pl.DataFrame({"at": row}).join(found, on="at", how="left", maintain_order="left")
    late = dwell["dwell"] > rule.wait.total_seconds()
    return dwell["dwell"].set(late, None).clip(upper_bound=rule.cap.total_seconds())


def _codes(values: pl.Series, items: pl.Series) -> NDArray[np.int64]:
    """The place of each value in the sorted `items`, -1 where it is not there; (B,)."""
    codes = pl.int_range(len(items), dtype=pl.Int64, eager=True)
    known = pl.DataFrame({"item": items, "code": codes})
    asked = values.alias("item").to_frame()
    found = asked.join(known, on="item", how="left", maintain_order="left")["code"]
    return found.fill_null(-1).to_numpy()
