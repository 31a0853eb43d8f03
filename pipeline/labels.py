"""Label rules: from what followed an impression to one number per task, null where masked."""

from datetime import timedelta

import polars as pl

from multigate.configs.contract import Contract
from multigate.configs.sections.labels import DwellLabel, EventLabel, ImpressionLabel, RatioLabel
from multigate.features import Timeline
from multigate.pipeline.columns import COLUMN

_MICROSECOND = timedelta(microseconds=1)


def logged_values(
    contract: Contract,
    impressions: pl.DataFrame,
    events: pl.DataFrame,
    feedback: pl.DataFrame,
    waits: timedelta,
) -> dict[str, pl.Series]:
    """Apply each task's `label` rule to logged impressions.

    Args:
        contract: the tasks.
        impressions: (B, ...) columns `user`, `time`, and `session` or `column/...` where rules
            read them.
        events: all events of the same users: what ends a dwell.
        feedback: the attributed events: columns `impression`, `delay`, `event`, `value`, and
            `column/...` where rules divide by it.
        waits: how long labels stay open, see `window`.

    Returns:
        (B,) values by task, null where the rule finds nothing.
    """
    values = {}
    for name, task in contract.tasks.items():
        rule = task.label
        if isinstance(rule, ImpressionLabel):
            values[name] = pl.Series([1.0] * len(impressions), dtype=pl.Float64)
        elif isinstance(rule, EventLabel):
            values[name] = _from_events(rule, len(impressions), feedback)
        elif isinstance(rule, DwellLabel):
            within = rule.within or max(waits, rule.cap)
            values[name] = _dwell(impressions, events, rule.cap, within)
        elif isinstance(rule, RatioLabel):
            values[name] = impressions.select(_ratio(COLUMN + rule.column, rule.over)).to_series()
        else:
            values[name] = impressions[COLUMN + rule.column]
    return values


def window(contract: Contract, attribution: timedelta | None) -> timedelta:
    """How long after an impression its labels stay open.

    The longest of the tasks' limits; rules without a limit have nothing to wait for.
    """
    longest = timedelta(0)
    for task in contract.tasks.values():
        rule = task.label
        if isinstance(rule, EventLabel):
            limits = [limit for limit in (rule.within, attribution) if limit is not None]
            longest = max(longest, min(limits, default=timedelta(0)))
        elif isinstance(rule, DwellLabel):
            longest = max(longest, rule.within or rule.cap)
    return longest


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


def finish(contract: Contract, values: dict[str, pl.Series]) -> dict[str, pl.Series]:
    """Apply what comes after the rule, in this order: clip, at_least, without, when.

    Args:
        contract: the tasks.
        values: (B,) values by task.

    Returns:
        (B,) labels by task, float32, null where masked. A binary label without `at_least` is 1
        where the value is above 0. A masked label of another task counts as
        not 1, both for `without` and for `when`.
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


def _dwell(
    impressions: pl.DataFrame, events: pl.DataFrame, cap: timedelta, within: timedelta
) -> pl.Series:
    """Seconds to the user's next event in the session, strictly later and `within`."""
    in_session = events.filter(pl.col("session").is_not_null())
    timeline = Timeline(in_session, ["user", "session"])
    _, stop, end = timeline.earlier(impressions, inclusive=True)
    following = stop < end
    rows = timeline.rows[stop[following]]
    gaps = in_session["time"].gather(rows) - impressions["time"].filter(following)
    seconds = gaps.dt.total_microseconds() / 1e6
    at = pl.int_range(len(impressions), dtype=pl.Int64, eager=True)
    found = pl.DataFrame({"at": at.filter(following), "dwell": seconds.cast(pl.Float64)})
    dwell = pl.DataFrame({"at": at}).join(found, on="at", how="left", maintain_order="left")
    late = dwell["dwell"] > within.total_seconds()
    return dwell["dwell"].set(late, None).clip(upper_bound=cap.total_seconds())
