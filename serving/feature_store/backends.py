"""Opens the feature store of a version: its own snapshot, Redis, or none."""

import time
from pathlib import Path

from multigate.configs.contract import Contract
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.feature_store.interface import FeatureAnswer, FeatureStore
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.feature_store.snapshot import Snapshot

SNAPSHOT_FOLDER = "assets.extra/snapshot"
"""Where a version folder keeps its own snapshot."""


def open_feature_store(
    model: str,
    version: Path,
    contract: Contract,
    schema: str,
    address: str,
    seconds: float,
    clock: str,
    metrics: ServerMetrics,
) -> OnlineFeatures | None:
    """Open the store that fills in features which requests leave out.

    Args:
        model: name of the model.
        version: the version's folder.
        contract: the version's contract.
        schema: the contract's fingerprint.
        address: `version`, `none`, or the address of a Redis.
        seconds: time limit for Redis.
        clock: `now` or `cut_off`: until when the times since an event grow.
        metrics: counts the queries.

    Returns:
        None for `none`, and for `version` where the version has no snapshot.

    Raises:
        ServingError: the version's snapshot is damaged, or redis-py is not installed.
    """
    store: FeatureStore
    if address == "none":
        return None
    if address == "version":
        if not (version / SNAPSHOT_FOLDER).exists():
            return None
        store = Snapshot(version / SNAPSHOT_FOLDER, contract, schema)
    else:
        from multigate.serving.feature_store.redis_store import RedisStore

        store = RedisStore(address, model, contract, schema, seconds)

    def observe(answer: FeatureAnswer, seconds: float) -> None:
        if answer.queried:
            metrics.store_time.observe(seconds, model)
        else:
            metrics.store_skips.add(model)
        if answer.problem:
            metrics.store_failures.add(model)
        elif answer.cut_off is not None:
            metrics.features_at.set(answer.cut_off, model, version.name)

    return OnlineFeatures(contract, store, time.time if clock == "now" else None, observe)
