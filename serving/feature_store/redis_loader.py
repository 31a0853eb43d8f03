"""Loads a snapshot into the feature store in Redis: `multigate features load`.

Feast's materialize was considered: it overwrites rows one by one, so that servers would read a mix
of the old and the new snapshot.
"""

import importlib
import json
import math
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multigate.configs import progress
from multigate.configs.contract import Contract, FrozenContract, IdListFeature, Side
from multigate.configs.errors import DataError, ServingError
from multigate.configs.files import ExamplesFolder
from multigate.serving.feature_store import redis_keys
from multigate.serving.feature_store.interface import (
    read_manifest,
    read_priors,
    stored_columns,
)
from multigate.serving.feature_store.redis_client import connect

_LOCK_SECONDS = 60  # a loader that dies blocks others for so long
_BATCH = 1000  # keys per command


@dataclass(frozen=True)
class LoadedSnapshot:
    """What `load_snapshot` wrote."""

    name: str
    """Of the model."""
    schema: str
    generation: str
    cut_off: str | None
    """ISO 8601."""
    rows: dict[str, int]
    """By source: `users`, `items`."""


def load_snapshot(
    snapshot: Path, address: str, name: str | None = None, keep_seconds: int = 3600
) -> LoadedSnapshot:
    """Write a snapshot to Redis and switch servers to it.

    Args:
        snapshot: a folder of examples, or the `snapshot/` in it.
        address: such as `redis://localhost:6379/0`.
        name: of the model; default: the name in the examples' manifest.
        keep_seconds: when the snapshots that were there before expire.

    Raises:
        DataError: the folder has no snapshot, or no priors.
        ServingError: Redis does not work, or another load is running.
    """
    folder = ExamplesFolder(snapshot.parent if snapshot.name == "snapshot" else snapshot)
    frozen = FrozenContract.read(folder.contract)
    manifest = read_manifest(folder.manifest)
    name = name or manifest["name"]
    priors = read_priors(folder, frozen.contract)
    begin = redis_keys.prefix(name, frozen.schema_fingerprint)
    generation = f"{time.time_ns():x}{secrets.token_hex(4)}"
    redis = connect(address)
    try:
        with _lock(redis, redis_keys.loading(begin)):
            rows = {
                source: _write(
                    redis,
                    folder,
                    source,
                    redis_keys.rows(begin, generation, letter),
                    frozen.contract,
                    side,
                    redis_keys.loading(begin),
                )
                for side, source, letter in redis_keys.SIDES
            }
            cut_off = manifest["cut_off"]
            value = {
                "generation": generation,
                "cut_off": cut_off,
                "rows": rows,
                # The schema does not fix an order: a server may have the features in another one.
                "columns": {
                    source: list(stored_columns(frozen.contract, side))
                    for side, source, _ in redis_keys.SIDES
                },
                "priors": priors,
            }
            redis.set(redis_keys.current(begin), json.dumps(value))
            _expire(redis, begin, generation, keep_seconds)
    except importlib.import_module("redis").RedisError as error:
        raise ServingError(f"{address}: {error}; servers keep the features they had") from None
    finally:
        redis.close()
    return LoadedSnapshot(name, frozen.schema_fingerprint, generation, cut_off, rows)


def _write(
    redis: Any,
    folder: ExamplesFolder,
    source: str,
    begin: str,
    contract: Contract,
    side: Side,
    lock: str,
) -> int:
    """Write one side's rows under keys that start with `begin`; returns their number."""
    parquet = importlib.import_module("pyarrow.parquet")
    parts = sorted(folder.snapshot(source).glob("*.parquet"))
    if not parts:
        raise DataError(
            f"{folder.snapshot(source)}: no snapshot here; make the examples again with "
            "`multigate examples`"
        )
    key = contract.user if side == "user" else contract.item
    features = stored_columns(contract, side)
    count = 0
    for part in progress.track(parts, f"load {source}", len(parts), "parts"):
        for batch in parquet.ParquetFile(part).iter_batches(_BATCH):
            columns = {name: batch.column(name).to_pylist() for name in (key, *features)}
            values = [
                [_value(feature, value) for value in columns[name]]
                for name, feature in features.items()
            ]
            ids = columns[key]
            rows = zip(*values, strict=True) if values else [()] * len(ids)
            redis.mset(
                {
                    f"{begin}{one}": json.dumps(row, ensure_ascii=False, separators=(",", ":"))
                    for one, row in zip(ids, rows, strict=True)
                }
            )
            redis.expire(lock, _LOCK_SECONDS)
            count += len(ids)
    return count


def _value(feature: Any, value: Any) -> Any:
    """A value as JSON: empty texts are missing, lists keep only what the model reads.

    What is known of a history's entries keeps its place, as an empty text where it is missing.
    """
    if isinstance(feature, IdListFeature) and feature.entry is not None:
        return ["" if one is None else one for one in value or ()][-feature.max_length :]
    if isinstance(feature, IdListFeature):
        return [one for one in value or () if one not in (None, "")][-feature.max_length :]
    nan = isinstance(value, float) and math.isnan(value)
    return None if nan or value == "" else value


@contextmanager
def _lock(redis: Any, key: str) -> Iterator[None]:
    """Hold the lock of loaders during the block."""
    mine = secrets.token_hex(8)
    if not redis.set(key, mine, nx=True, ex=_LOCK_SECONDS):
        raise ServingError(
            f"{key}: another load is running, or died less than {_LOCK_SECONDS} s ago; try again "
            "later"
        )
    try:
        yield
    finally:
        if redis.get(key) == mine.encode():
            redis.delete(key)


def _expire(redis: Any, begin: str, generation: str, seconds: int) -> None:
    """Let all generations but one expire, also those of loads that were cut off."""
    kept = (f"{begin}:{generation}:".encode(), redis_keys.current(begin).encode())
    pipeline = redis.pipeline(transaction=False)
    for key in redis.scan_iter(match=f"{_literal(begin)}:*", count=_BATCH):
        if not key.startswith(kept) and key != redis_keys.loading(begin).encode():
            pipeline.expire(key, seconds, nx=True)
            if len(pipeline) >= _BATCH:
                pipeline.execute()
    pipeline.execute()


def _literal(text: str) -> str:
    """Escape a text for a Redis pattern, so that it matches only itself."""
    return "".join(f"\\{one}" if one in "*?[]\\^-" else one for one in text)
