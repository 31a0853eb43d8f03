"""One bucket of events -> its impressions with their labels and features of the log and tables."""

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, LABEL, REQUEST, SAMPLED, TIME
from multigate.configs.sections.log import EventLog
from multigate.pipeline import labels, tables
from multigate.pipeline.attribute import attribute
from multigate.pipeline.buckets import deduplicate
from multigate.pipeline.columns import (
    FEATURE,
    counters,
    example_schema,
    history_features,
    log_features,
)
from multigate.pipeline.hashing import mix


@dataclass(frozen=True)
class Bucket:
    """What `make_examples` returns.

    `impressions`: examples of the logged impressions, columns as in `example_schema` without
    histories, counters and made-up requests (see `assemble`), sorted by time and number.
    `events`: the events without duplicates. `touched`: one row per user and item with an event:
    `user`, `item`, the first `time`, and whether any time is `unknown`; no row where no negatives
    are drawn.
    `counts`: what became of the rows.
    """

    impressions: pl.DataFrame
    events: pl.DataFrame
    touched: pl.DataFrame
    counts: dict[str, int]


def make_examples(
    events: pl.DataFrame,
    config: Config,
    side_tables: dict[str, pl.DataFrame],
    cut_off: datetime | None = None,
    first: datetime | None = None,
) -> Bucket:
    """Label a bucket's impressions and give them their features.

    Args:
        events: normalised events in the order of `buckets.gather`.
        config: the contract and the log's shape.
        side_tables: `users` and `items`, where there are.
        cut_off: impressions whose labels were open then are held back; none where None.
        first: what came before is look-back: it is counted as `outside`, and its impressions are
            there only for what later ones draw from them.
    """
    log, contract = config.pipeline.log, config.contract
    rows = len(events)
    events = deduplicate(events)
    counts = {"rows": rows, "duplicates": rows - len(events)}
    now = pl.lit(True) if first is None else pl.col("time") >= first
    counts["outside"] = len(events) - len(events.filter(now))
    if isinstance(log, EventLog):
        impressions = events.filter(pl.col("event") == log.impression)
        given = attribute(
            impressions,
            # What came before the first impression to label cannot belong to it.
            events.filter((pl.col("event") != log.impression) & now),
            config.pipeline.attribution,
            config.pipeline.attribute_by,
        )
        feedback = given.feedback
        counts |= {"feedback": len(feedback), "late": given.late, "orphans": given.orphans}
    else:
        impressions, feedback = events, events.clear()
        counts |= {"feedback": 0, "late": 0, "orphans": 0}
    waits = labels.window(contract, config.pipeline.attribution)
    values = labels.logged_values(contract, impressions, events, feedback, waits)
    nothing = pl.Series([None] * len(impressions), dtype=pl.String)
    columns = {
        contract.user: impressions["user"],
        contract.item: impressions["item"],
        **{name: impressions[FEATURE + name] for name in log_features(config)},
        **{LABEL + name: label for name, label in labels.finish(contract, values).items()},
        TIME: impressions["time"],
        IMPRESSION: numbers(impressions),
        REQUEST: impressions["request"] if "request" in impressions.columns else nothing,
        SAMPLED: pl.Series([False] * len(impressions), dtype=pl.Boolean),
    }
    frame = pl.DataFrame([column.alias(name) for name, column in columns.items()])
    rows = len(frame)
    if cut_off is not None:
        # Feedback at the very end of the window counts, and must have come before the cut-off.
        closed = pl.col(TIME).is_null() | (pl.col(TIME) + waits < cut_off)
        frame = frame.filter(closed)
    counts["held_back"] = rows - len(frame)
    kept = pl.lit(True)
    for source, table in side_tables.items():
        frame = tables.join(frame, config, source, table)
        for feature in tables.required(config, source):
            kept &= pl.col(feature).is_not_null()
    complete = frame.filter(kept)
    now = pl.lit(True) if first is None else pl.col(TIME) >= first
    counts["impressions"] = len(complete.filter(now))
    counts["dropped"] = len(frame.filter(now)) - counts["impressions"]
    ordered = complete.sort(TIME, IMPRESSION, nulls_last=False)
    negatives = config.pipeline.negatives
    if negatives is None:
        touched = events.select("user", "item", "time").clear()
    elif negatives.exclude_within is not None:
        touched = events.select("user", "item", "time").unique()
    else:
        touched = events.group_by("user", "item").agg(
            pl.col("time").min(), unknown=pl.col("time").is_null().any()
        )
    later = {*history_features(config), *counters(config, "user"), *counters(config, "item")}
    made = ordered.select([name for name in example_schema(config).names if name not in later])
    return Bucket(made, events, touched, counts)


def numbers(events: pl.DataFrame) -> pl.Series:
    """Number impressions by their identity; several of one identity in the order of the rows."""
    identity = events["identity"]
    if identity.is_duplicated().any():
        occurrence = pl.int_range(pl.len(), dtype=pl.UInt64).over("identity")
        identity = events.select(pl.col("identity") + occurrence).to_series()
    return pl.Series(mix(identity.to_numpy()) >> 1, dtype=pl.Int64)
