"""Snapshots: every user's and item's features as of the cut-off, for the online store.

A row is what an example of an impression at the cut-off would hold on that side: features of the
log as of the latest impression, those of side tables, histories and counters. The same functions
compute both.
"""

from datetime import datetime

import polars as pl
import pyarrow as pa

from multigate.configs import Config
from multigate.configs.contract import Side
from multigate.configs.files import TIME
from multigate.configs.sections.log import EventLog
from multigate.pipeline.compute import ages, computed, tables
from multigate.pipeline.compute.crosses import CrossRates
from multigate.pipeline.compute.examples import impression_numbers
from multigate.pipeline.compute.rates import KeyRates, of, total_columns
from multigate.pipeline.compute.totals import Totals
from multigate.pipeline.core.columns import FEATURE, arrow_type, log_features


def schema(config: Config, side: Side) -> pa.Schema:
    """The columns of a snapshot: the side's features in the contract's order.

    Rates by category belong to no side: the user holds the lists that they are looked up in.
    """
    contract = config.contract
    fields = dict(contract.of_side(side))
    fields = {name: f for name, f in fields.items() if name not in contract.crosses()}
    if side == "user":
        fields |= contract.cross_lists()
    return pa.schema([(name, arrow_type(f)) for name, f in fields.items()])


def users(
    events: pl.DataFrame,
    past_labels: KeyRates,
    by_category: CrossRates,
    config: Config,
    cut_off: datetime | None,
    table: pl.DataFrame | None,
    totals: Totals | None = None,
) -> pl.DataFrame:
    """The snapshot of a bucket's users.

    Args:
        events: the bucket's events, without duplicates.
        past_labels: of the bucket's users; need no priors.
        by_category: of the bucket's users; need no priors.
        config: names the features.
        cut_off: see `configs.sections.pipeline.PipelineConfig.cut_off`; None where no event has a
            time.
        table: the users' side table, where there is one.
        totals: what counters without a window go on from.

    Returns:
        Columns as of `schema`, with those of `KeyRates.totals` in the place of features over past
        labels; one row per user with an event before the cut-off, sorted.
    """
    past = before(events, cut_off)
    latest = _latest([_current(past, config, "user")], "user")
    queries = _at(latest, "user", cut_off)
    columns = computed.of_user(past, queries, config, totals)
    columns |= past_labels.totals(queries) | by_category.lists(latest["user"], cut_off)
    latest = latest.with_columns(**columns).rename({"user": config.contract.user})
    latest = _as_of(latest, cut_off)
    if table is not None:
        latest = tables.join_table(latest, config, "users", table)
    latest = ages.measured(latest, config)
    rated = of(config, "user")
    names = [name for name in schema(config, "user").names if name not in rated]
    return latest.select(*names, *total_columns(config, "user"))


def part_of_items(events: pl.DataFrame, config: Config, cut_off: datetime | None) -> pl.DataFrame:
    """The latest impression, in a bucket of users, of each item that its events name.

    Returns:
        `item`, `time` and `number` of the latest impression here, and its features.
    """
    return _latest([_current(before(events, cut_off), config, "item")], "item")


def items(
    parts: list[pl.DataFrame],
    counted: pl.DataFrame,
    past_labels: KeyRates,
    config: Config,
    cut_off: datetime | None,
    table: pl.DataFrame | None,
    totals: Totals | None = None,
) -> pl.DataFrame:
    """The snapshot of a bucket of items.

    Args:
        parts: what `part_of_items` returned for each bucket of users, at least one.
        counted: see `computed.of_item`.
        past_labels: of the items.
        config: names the features.
        cut_off: see `configs.sections.pipeline.PipelineConfig.cut_off`.
        table: the items' side table, where there is one.
        totals: what counters without a window go on from.

    Returns:
        Columns as of `schema`; one row per item with an event before the cut-off, sorted.
    """
    latest = _latest(parts, "item")
    queries = _at(latest, "item", cut_off)
    columns = computed.of_item(counted, queries, config, totals)
    columns |= past_labels.values(queries)
    latest = latest.with_columns(**columns).rename({"item": config.contract.item})
    latest = _as_of(latest, cut_off)
    if table is not None:
        latest = tables.join_table(latest, config, "items", table)
    return ages.measured(latest, config).select(schema(config, "item").names)


def before(events: pl.DataFrame, cut_off: datetime | None) -> pl.DataFrame:
    """The events before the cut-off, and those whose time is unknown; where all are, no cut-off."""
    unknown = pl.col("time").is_null()
    return events.filter(unknown if cut_off is None else unknown | (pl.col("time") < cut_off))


def _current(events: pl.DataFrame, config: Config, of: Side) -> pl.DataFrame:
    """Every event's user or item, with time, number and features where it is an impression."""
    log = config.pipeline.log
    shown = pl.lit(True)
    if isinstance(log, EventLog):
        shown = pl.col("event") == log.impression
    names = [name for name, feature in log_features(config).items() if feature.side == of]
    values = {name: pl.col(FEATURE + name) for name in names}
    given = {"time": pl.col("time"), "number": impression_numbers(events), **values}
    return events.select(
        pl.col(of), **{name: pl.when(shown).then(value) for name, value in given.items()}
    )


def _latest(parts: list[pl.DataFrame], key: str) -> pl.DataFrame:
    rows = pl.concat(parts)
    newest = pl.col("time").max().over(key)  # few rows are left to be sorted
    rows = rows.filter(pl.col("time").eq_missing(newest))
    ordered = rows.sort(key, "time", "number", nulls_last=False)
    return ordered.unique(key, keep="last", maintain_order=True)


def _as_of(rows: pl.DataFrame, cut_off: datetime | None) -> pl.DataFrame:
    return rows.with_columns(pl.lit(cut_off, pl.Datetime("us", "UTC")).alias(TIME))


def _at(ids: pl.DataFrame, key: str, cut_off: datetime | None) -> pl.DataFrame:
    return ids.select(key, time=pl.lit(cut_off, pl.Datetime("us", "UTC")))
