"""Vocabularies: the ids of the training split, the most frequent first."""

import polars as pl
import pyarrow as pa

from multigate.configs.contract import Contract, IdFeature, IdListFeature, fingerprint_of_list
from multigate.configs.storage import Place
from multigate.pipeline.write.parts import write_parquet

_AT_ONCE = 1 << 16  # values; millions of them as Python's objects would take half a gigabyte


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
        found = frame.group_by("value").agg(count=pl.len().cast(pl.Int64))
        if found["value"].dtype == pl.Enum:  # see `Slices.coded`
            found = found.with_columns(pl.col("value").cast(pl.String))
        counts[name] = found.sort("value")
    return counts


def cut(total: pl.DataFrame, feature: IdFeature | IdListFeature) -> pl.DataFrame:
    """Cut all counts, sorted by value, to the vocabulary: most frequent first, ties by value."""
    frequent = total.filter(pl.col("count") >= feature.min_count)
    ordered = frequent.sort("count", descending=True, maintain_order=True)
    return ordered if feature.max_size is None else ordered.head(feature.max_size)


def write(total: pl.DataFrame, feature: IdFeature | IdListFeature, path: Place) -> str:
    """Cut all counts to the vocabulary and write it; returns its fingerprint."""
    kept = cut(total, feature)
    value = pa.string() if feature.dtype == "string" else pa.int64()
    write_parquet(kept, path, pa.schema([("value", value), ("count", pa.int64())]))
    return fingerprint_of_list(part["value"].to_list() for part in kept.iter_slices(_AT_ONCE))
