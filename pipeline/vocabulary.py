"""Vocabularies: the ids of the training split, the most frequent first."""

from typing import Any

import polars as pl

from multigate.configs.contract import Contract, IdFeature, IdListFeature


def features(contract: Contract) -> dict[str, IdFeature | IdListFeature]:
    """The features that keep a vocabulary: ids that neither share another's nor are hashed."""
    return {
        name: feature
        for name, feature in contract.features.items()
        if isinstance(feature, IdFeature | IdListFeature)
        and not (isinstance(feature, IdListFeature) and feature.is_age)
        and feature.share is None
        and feature.hash_buckets is None
    }


def count(logged: pl.DataFrame, contract: Contract) -> dict[str, pl.DataFrame]:
    """Count values in logged impressions of the training split.

    Sampled negatives do not count: drawing an item does not mean that it was seen.

    Returns:
        By feature: `value`, `count`.
    """
    counts = {}
    for name, feature in features(contract).items():
        values = logged[name].explode() if isinstance(feature, IdListFeature) else logged[name]
        frame = values.drop_nulls().alias("value").to_frame()
        counts[name] = frame.group_by("value").agg(count=pl.len().cast(pl.Int64)).sort("value")
    return counts


def add(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Add up the counts of several parts, at least one; sorted by value."""
    return pl.concat(parts).group_by("value").agg(pl.col("count").sum()).sort("value")


def merge(parts: list[pl.DataFrame], feature: Any) -> pl.DataFrame:
    """Add up counts and cut the vocabulary: most frequent first, ties by value."""
    total = add(parts)
    total = total.filter(pl.col("count") >= feature.min_count)
    ordered = total.sort("count", "value", descending=[True, False])
    return ordered if feature.max_size is None else ordered.head(feature.max_size)
