"""The item catalogue: which items the whole log showed when, and their features over time.

Negatives are drawn from it. Each bucket of users contributes a part, spread over buckets of items;
the parts are then merged item by item.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.files import IMPRESSION, TIME
from multigate.configs.sections.pipeline import Negatives
from multigate.features import Timeline
from multigate.pipeline.compute import tables
from multigate.pipeline.core.columns import log_features
from multigate.pipeline.sample.candidate_pool import thin


@dataclass(frozen=True)
class Catalogue:
    """The merged catalogue.

    `pool`: see `candidate_pool.thin`, sorted by time (null first) and item. `features`: item, time
    and the item features that the log holds, sorted by item and time, one row per change.
    """

    pool: pl.DataFrame
    features: pl.DataFrame


def item_features(config: Config) -> list[str]:
    """Features of the item that are columns of the log; sampled negatives take them from here."""
    return [name for name, feature in log_features(config).items() if feature.side == "item"]


def shown_items(known: pl.DataFrame, negatives: Negatives, config: Config) -> pl.DataFrame:
    """Make a bucket's part of the catalogue.

    Args:
        known: all impressions of the bucket.
        negatives: how items are drawn.
        config: names the item features.

    Returns:
        Impressions of items: `item`, `time`, `impression` and the item features.
    """
    item, names = config.contract.item, item_features(config)
    shown = known.select(
        pl.col(item).alias("item"),
        pl.col(TIME).alias("time"),
        pl.col(IMPRESSION).alias("impression"),
        *names,
    )
    return shown if names else thin(shown, negatives)


def merge(
    parts: list[pl.DataFrame], negatives: Negatives, config: Config, items: pl.DataFrame | None
) -> Catalogue:
    """Merge the parts of all buckets of users; their order does not matter.

    Args:
        parts: what `part` returned, or the same items' share of each; at least one.
        negatives: how items are drawn.
        config: names the item features.
        items: the items' side table. Where its features are required, an item that lacks one of
            them cannot be a negative.
    """
    shown, names = pl.concat(parts), item_features(config)
    pool = thin(shown.select("time", "item"), negatives)
    if items is not None:
        complete = items.drop_nulls(tables.required(config, "items"))[config.contract.item]
        if tables.required(config, "items"):
            pool = pool.filter(pl.col("item").is_in(complete.implode()))
    ordered = shown.sort("item", "time", "impression", nulls_last=False)
    if names:
        changed = pl.struct("item", *names)
        ordered = ordered.filter((changed != changed.shift(1)).fill_null(True))
    features = ordered.select("item", "time", *names)
    return Catalogue(pool, features if names else features.clear())


def concatenate(parts: list[Catalogue]) -> Catalogue:
    """Concatenate at least one catalogue, each of other items."""
    pool = pl.concat([part.pool for part in parts]).sort("time", "item", nulls_last=False)
    features = pl.concat([part.features for part in parts])
    return Catalogue(pool, features.sort("item", maintain_order=True))


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
