"""The feature store of a version: its own snapshot, Redis, or none."""

import time
from pathlib import Path

from multigate.configs.contract import Contract
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.feature_store.interface import OnlineFeatures, Store, Stored
from multigate.serving.feature_store.snapshot import Snapshot

FOLDER = "assets.extra/snapshot"
"""Where a version carries its own snapshot."""


def open_store(
    model: str,
    version: Path,
    contract: Contract,
    schema: str,
    address: str,
    seconds: float,
    clock: str,
    metrics: ServerMetrics,
) -> OnlineFeatures | None:
    """Open what a version takes absent features from.

    Args:
        model: its name.
        version: its folder.
        contract: its contract.
        schema: the contract's fingerprint.
        address: `version`, `none`, or an address of Redis.
        seconds: how long to wait for Redis.
        clock: `now` or `cut_off`: up to when times since an event grow.
        metrics: where questions are counted.

    Raises:
        ServingError: the version's snapshot is damaged, or the client of Redis is absent.
    """
    store: Store
    if address == "none":
        return None
    if address == "version":
        if not (version / FOLDER).exists():
            return None
        store = Snapshot(version / FOLDER, contract, schema)
    else:
        from multigate.serving.feature_store.redis_store import RedisStore

        store = RedisStore(address, model, contract, schema, seconds)

    def observe(stored: Stored, seconds: float) -> None:
        if stored.asked:
            metrics.store_time.observe(seconds, model)
        else:
            metrics.store_skips.add(model)
        if stored.problem:
            metrics.store_failures.add(model)
        elif stored.cut_off is not None:
            metrics.features_at.set(stored.cut_off, model)

    return OnlineFeatures(contract, store, time.time if clock == "now" else None, observe)
