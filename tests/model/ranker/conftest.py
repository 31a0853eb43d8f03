"""Rankers on planted data: a rule that a pooling or a layer can learn, and another cannot."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model.ranker.ranker import Ranker

ITEMS = 48
LENGTH = 6

Measure = Callable[..., float]


def planted_ranker(
    pooling: str = "mean", features: Mapping[str, Any] | None = None, **model: Any
) -> Ranker:
    """A ranker of a user's history and an item, with codes 2 .. ITEMS + 1 for known items.

    Args:
        pooling: of the history.
        features: more features.
        model: options of the model.
    """
    history = {"events": ["click"], "last": LENGTH}
    recent = {"kind": "id_list", "side": "user", "dtype": "int", "share": "item_id"}
    recent |= {"history": history, "max_length": LENGTH, "pooling": pooling}
    label = {"rule": "column", "column": "like"}
    values = {
        "name": "planted",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item", "dtype": "int"},
                "recent": recent,
                **(features or {}),
            },
            "tasks": {"like": {"group": "satisfaction", "type": "binary", "label": label}},
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {"time": "time", "user": "user_id", "item": "item_id"},
                "known_after": "10m",
            },
            "split": {"by": "time", "validation": 0.1, "test": 0.1},
        },
        "model": {
            "embedding_dim": 4,
            "wide": None,
            "lists": {"match": False},
            "experts": {"count": 1, "units": [16]},
            "towers": {"units": []},
        }
        | model,
    }
    config = parse(Config, values, "planted")
    statistics = Statistics(
        features={},
        tasks={"like": TaskStatistics(count=1, masked=0, mean=0.5, std=0.5)},
        rows={"train": 1, "validation": 1, "test": 1},
    )
    rows = {"user_id": 2, "item_id": ITEMS + 2}
    return Ranker(config.contract, config.model, rows, statistics, seed=0)


def planted_rows(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Random histories of 2 to LENGTH items, and candidates; codes as the encoder makes them."""
    lengths = rng.integers(2, LENGTH + 1, rows)
    recent = rng.integers(2, ITEMS + 2, (rows, LENGTH)) * (np.arange(LENGTH) < lengths[:, None])
    return {
        "user_id": np.ones(rows, np.int32),
        "item_id": rng.integers(2, ITEMS + 2, rows).astype(np.int32),
        "recent": recent.astype(np.int32),
        "recent__length": np.log1p(lengths).astype(np.float32),
    }


@pytest.fixture
def learnt_auc() -> Measure:
    """AUC on new rows of a ranker that was trained on rows of a rule."""

    def measure(
        ranker: Ranker, rule: Callable[[Mapping[str, np.ndarray]], np.ndarray], steps: int = 600
    ) -> float:
        rng = np.random.default_rng(0)
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(ranker.trainable_variables)

        @tf.function(reduce_retracing=True)
        def step(encoded: Any, labels: Any) -> None:
            with tf.GradientTape() as tape:
                logits = ranker(encoded, training=True)
                loss = ranker.compute_loss(y=labels[:, None], y_pred=logits)
            weights = ranker.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        for _ in range(steps):
            encoded = planted_rows(rng, 256)
            step(encoded, rule(encoded).astype(np.float32))
        encoded = planted_rows(rng, 4000)
        return float(roc_auc_score(rule(encoded), ranker(encoded)["like"].numpy()))

    return measure
