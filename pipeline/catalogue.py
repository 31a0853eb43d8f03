"""What must be known of all items before negatives can be drawn and splits cut.

Each bucket contributes a part; merged, they are: the pool of items in the order in which the log
showed them, the items' features over time, and the instants at which the splits begin.
"""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from configs import Config
from configs.files import IMPRESSION, TIME
from configs.pipeline import TimeSplit
from features import Timeline
from pipeline import split, tables
from pipeline.columns import log_features
from pipeline.urn import thin


@dataclass(frozen=True)
class Catalogue:
    """What the buckets together say.

    `pool`: see `urn.thin`, sorted by time (null first) and item. `features`: (item, time,
    the item features that the log holds), sorted by item and time, one row per change. `limits`:
    see `split.boundaries`.
    """

    pool: pl.DataFrame
    features: pl.DataFrame
    limits: tuple[datetime, datetime] | None


def item_features(config: Config) -> list[str]:
    """Features of the item that stand in the log; sampled negatives take them from here."""
    return [name for name, feature in log_features(config).items() if feature.side == "item"]


def part(
    known: pl.DataFrame, impressions: pl.DataFrame, config: Config
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A bucket's contribution.

    Args:
        known: all of its impressions, which items were shown by.
        impressions: those that become examples, whose times are counted.
        config: the sampling and the split.

    Returns:
        Impressions of items (empty without negatives): `item`, `time`, `impression` and the item
        features; and counted times: `time`, `count` (empty unless splits are shares of time).
    """
    item, names = config.contract.item, item_features(config)
    shown = known.select(
        pl.col(item).alias("item"),
        pl.col(TIME).alias("time"),
        pl.col(IMPRESSION).alias("impression"),
        *names,
    )
    negatives = config.pipeline.negatives
    if negatives is None:
        shown = shown.clear()
    elif not names:
        shown = thin(shown, negatives)
    by_share = isinstance(config.pipeline.split, TimeSplit) and isinstance(
        config.pipeline.split.validation, float
    )
    times = impressions.select(pl.col(TIME).alias("time"))
    times = times.group_by("time").agg(count=pl.len().cast(pl.Int64)).sort("time")
    return shown, times if by_share else times.clear()


def merge(
    parts: list[tuple[pl.DataFrame, pl.DataFrame]],
    config: Config,
    items: pl.DataFrame | None,
) -> Catalogue:
    """Merge the buckets' contributions; their order does not matter.

    Args:
        parts: what `part` returned for each bucket, at least one.
        config: the sampling and the split.
        items: the items' side table: what it lacks cannot be a negative where its features are
            required.
    """
    shown = pl.concat([shown for shown, _ in parts])
    times = pl.concat([times for _, times in parts]).group_by("time").agg(pl.col("count").sum())
    negatives, names = config.pipeline.negatives, item_features(config)
    pool = shown.select("time", "item")
    if negatives is not None:
        pool = thin(pool, negatives)
    if items is not None:
        complete = items.drop_nulls(tables.required(config, "items"))[config.contract.item]
        if tables.required(config, "items"):
            pool = pool.filter(pl.col("item").is_in(complete.implode()))
    pool = pool.sort("time", "item", nulls_last=False)
    ordered = shown.sort("item", "time", "impression", nulls_last=False)
    if names:
        changed = pl.struct("item", *names)
        ordered = ordered.filter((changed != changed.shift(1)).fill_null(True))
    features = ordered.select("item", "time", *names) if names else ordered.select("item").clear()
    return Catalogue(pool, features, split.boundaries(config.pipeline.split, times))


def as_of(features: pl.DataFrame, queries: pl.DataFrame, config: Config) -> pl.DataFrame:
    """The item features that the log held before each query's time.

    Args:
        features: see `Catalogue`.
        queries: columns `item`, `time`.
        config: names the features.

    Returns:
        (B, item features): of the item's latest impression strictly before the query; of its
        first one where there is none earlier (only `exclude: ever` draws such items).
    """
    timeline = Timeline(features, ["item"])
    start, stop, _ = timeline.earlier(queries)
    firsts = features.with_row_index("row").group_by("item").agg(pl.col("row").min())
    rows = queries.join(firsts, on="item", how="left", maintain_order="left")["row"].to_numpy()
    rows = rows.astype(np.int64)
    found = stop > start
    rows[found] = timeline.rows[stop[found] - 1]
    return features.select(item_features(config))[rows.tolist()]
