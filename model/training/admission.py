"""Admission and eviction: which ids have rows of their own in a catalogue that changes.

It concerns the features with `max_age`.  An id enters the vocabulary once the training split has
shown it `min_count` times, and leaves it when its last row is more than `max_age` older than the
newest row of the training split.  Then its weights and moments are dropped; if it comes back, it
is counted from zero.  The checkpoint keeps what the next warm start must know:

    seen/<feature>.parquet    value, count, last_seen: of all ids that are younger than max_age,
                              also of those that were seen less than min_count times

Two nights' training splits may overlap.  So a warm start counts only the rows that are newer than
all that its checkpoint has seen.

Hashed features have no vocabulary: `value` is the code of a row of the embedding, and a warm start
gives the rows that are not listed their initial weights.

TorchRec's `ManagedCollisionModule` was considered: it evicts in the running model, by steps instead
of days, and needs its lookup in the served model as well.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.contract import Contract, IdFeature, IdListFeature
from multigate.configs.errors import DataError, ModelError
from multigate.configs.files import IMPRESSION, SAMPLED, TIME, ExamplesFolder
from multigate.model.data.encoding import as_ids
from multigate.model.data.hashing import hash_ids


def features(contract: Contract) -> dict[str, IdFeature | IdListFeature]:
    """The features with `max_age`."""
    return {
        name: feature
        for name, feature in contract.features.items()
        if isinstance(feature, IdFeature | IdListFeature) and feature.max_age is not None
    }


def add(folder: Path, examples: Path, contract: Contract, start_from: Path | None = None) -> None:
    """Write what was seen, and the vocabularies that follow from it, into a checkpoint.

    Args:
        folder: the checkpoint; the examples' vocabularies of these features are replaced.
        examples: folder of examples.
        contract: features.
        start_from: checkpoint that the training starts from.

    Raises:
        DataError: the examples have no times.
        ModelError: `start_from` is damaged.
    """
    for name, feature in features(contract).items():
        before = None if start_from is None else _path(start_from, name)
        found = seen(examples, name, feature, before)
        path = _path(folder, name)
        path.parent.mkdir(exist_ok=True)
        found.write_parquet(path)
        if feature.hash_buckets is None:
            kept = found.filter(pl.col("count") >= feature.min_count)
            kept = kept.sort("count", "value", descending=[True, False])
            if feature.max_size is not None:
                kept = kept.head(feature.max_size)
            # The wide term's penalty needs the rows of this split, not those of all nights.
            rows = _rows(examples, name).drop_nulls().group_by("value").agg(rows=pl.len())
            kept = kept.join(rows.collect(), on="value", how="left", maintain_order="left")
            values = as_ids(kept["value"].to_arrow(), feature.dtype)
            counts = kept["rows"].fill_null(0).cast(pl.Int64).to_numpy()
            table = pa.table({"value": values, "count": counts})
            pq.write_table(table, ExamplesFolder(folder).vocabulary(name))


def seen(
    examples: Path, name: str, feature: IdFeature | IdListFeature, before: Path | None = None
) -> pl.DataFrame:
    """Ids or codes of a feature that are younger than `max_age`: value, count, last_seen.

    Args:
        examples: folder of examples; sampled negatives do not count.
        name: of the feature.
        feature: with `max_age`.
        before: the file of an earlier training, which may not exist.
    """
    rows = _rows(examples, name)
    newest = rows.select(pl.col("time").max()).collect().item()
    old = None if before is None else _read(before)
    counted = rows if old is None else rows.filter(pl.col("time") > old["last_seen"].max())
    found = (
        counted.drop_nulls()
        .group_by("value")
        .agg(count=pl.len().cast(pl.Int64), last_seen=pl.col("time").max())
        .collect()
    )
    if feature.hash_buckets is not None:
        codes = 1 + hash_ids(as_ids(found["value"].to_arrow(), feature.dtype), feature.hash_buckets)
        found = found.with_columns(value=pl.Series(codes.astype(np.int64)))
    both = found if old is None else pl.concat([old, found])
    merged = both.group_by("value").agg(pl.col("count").sum(), pl.col("last_seen").max())
    assert feature.max_age is not None
    return merged.filter(pl.col("last_seen") >= newest - feature.max_age).sort("value")


def evicted(folder: Path, name: str, rows: int) -> np.ndarray:
    """Which rows (N,) of a hashed feature no id has used within `max_age`; never the missing ids'.

    Args:
        folder: the checkpoint, with what was seen.
        name: of the feature.
        rows: N.
    """
    found = _read(_path(folder, name))
    gone = np.full(rows, True)
    gone[0] = False
    if found is not None:
        gone[found["value"].to_numpy()] = False
    return gone


def _rows(examples: Path, name: str) -> pl.LazyFrame:
    """Value and time of a feature in the training split's impressions, a list's values one by one.

    Raises:
        DataError: a row has no time.
    """
    pattern = ExamplesFolder(examples).split("train") / "*.parquet"
    rows = pl.scan_parquet(pattern)
    schema = rows.collect_schema()
    received = "no such column"
    if TIME in schema:
        missing = rows.select(pl.col(TIME).null_count()).collect().item()
        received = f"{missing} rows without one" if missing else ""
    if received:
        raise DataError(
            f"{pattern.parent}: feature {name!r}: max_age: expected the time of every row in "
            f"column {TIME!r}, received {received}; name the log's time column, or remove max_age"
        )
    if SAMPLED in schema:
        rows = rows.filter(~pl.col(SAMPLED))
    if IMPRESSION in schema:  # of days that are read as one folder, several may have one
        rows = rows.unique(IMPRESSION, keep="first")
    rows = rows.select(value=pl.col(name), time=pl.col(TIME))
    if isinstance(schema[name], pl.List):
        rows = rows.explode("value")
    text = rows.collect_schema()["value"] not in (pl.Int64, pl.Int32)
    return rows.with_columns(value=pl.col("value").cast(pl.String if text else pl.Int64))


def _path(folder: Path, name: str) -> Path:
    return folder / "seen" / f"{name}.parquet"


def _read(path: Path) -> pl.DataFrame | None:
    """What an earlier training has seen; None if it saw nothing or kept no record."""
    if not path.exists():
        return None
    try:
        found = pl.read_parquet(path, columns=["value", "count", "last_seen"])
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ModelError(f"{path}: damaged: {error}; train without --from") from None
    return found if len(found) else None
