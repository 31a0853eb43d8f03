"""Cost of a training step against the number of features, at the same total width.

20 id features with embeddings of 20 numbers, and 100 with embeddings of 4: the network and the
tables are equally large, so what the 100 cost more is the handling of many small arrays.  A step
is one of `fit` on batches that the feed gathers from memory, as in training; beside it the feed
alone and, on JAX, a step where the batch is gathered between two steps instead of in a thread ahead
of them.  They take turns; figures are medians of wall time and of the process's CPU time, on all
its threads.

    KERAS_BACKEND=tensorflow python benchmarks/many_features.py [--rounds 7] [--steps 48]

KERAS_BACKEND=jax measures JAX.  Takes a minute.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from multigate.configs.config import Config
from multigate.configs.contract import ID_HASH
from multigate.configs.sections.base import parse
from multigate.configs.statistics import Statistics, TaskStatistics
from multigate.model import backend
from multigate.model.data import feeds
from multigate.model.data.examples import Examples
from multigate.model.data.feeds import MemoryFeed
from multigate.model.optimizer.optimizers import make_optimizer
from multigate.model.ranker.ranker import Ranker

B, WIDTH, ROWS = 1024, 400, 1000
TASKS = ("click", "like")
Took = tuple[float, float]
"""Milliseconds of CPU and of wall time."""


def make_config(features: int) -> Config:
    sides = {"user_id": "user", "item_id": "item"}
    sides |= {f"f{n}": "user" if n % 2 else "item" for n in range(features - 2)}
    column = {"group": "engagement", "type": "binary"}
    values: dict[str, Any] = {
        "name": "many",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                name: {"kind": "id", "side": side, "hash_buckets": ROWS}
                for name, side in sides.items()
            },
            "tasks": {
                task: column | {"label": {"rule": "column", "column": task}} for task in TASKS
            },
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
        "model": {"embedding_dim": WIDTH // features},
    }
    return parse(Config, values, "benchmark")


def measure(features: int, steps: int) -> dict[str, Callable[[], Took]]:
    """CPU and wall ms for each step of training, and of the feed alone, by name."""
    config = make_config(features)
    rng, rows = np.random.default_rng(0), B * steps
    names = list(config.contract.features)
    encoded = {name: rng.integers(1, ROWS, rows).astype(np.int32) for name in names}
    encoded["user_id" + ID_HASH] = encoded["user_id"]
    labels = rng.integers(0, 2, (rows, len(TASKS))).astype(np.float32)
    tasks = {task: TaskStatistics(count=rows, masked=0, mean=0.5, std=0.5) for task in TASKS}
    statistics = Statistics(features={}, tasks=tasks, rows={"train": rows})
    tables = dict.fromkeys(names, 1 + ROWS)
    ranker = Ranker(config.contract, config.model, tables, statistics, seed=0)
    at_once = 16 if backend.name() == "tensorflow" else 1
    ranker.compile(
        optimizer=make_optimizer(config.train, steps, ranker=ranker), steps_per_execution=at_once
    )
    ranker.optimizer.build(ranker.trainable_variables)
    feed = MemoryFeed(Examples(encoded, labels), config.contract, statistics, B)
    number = iter(range(1, 1_000_000))

    def timed(call: Callable[[Any], object]) -> Took:
        epoch = feed.epoch(next(number))
        start, began = time.process_time(), time.perf_counter()
        call(epoch)
        took = time.process_time() - start, time.perf_counter() - began
        return 1e3 * took[0] / steps, 1e3 * took[1] / steps

    def train(epoch: Any) -> None:
        ranker.fit(epoch, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)

    def between() -> Took:
        with mock.patch.object(feeds, "ahead", lambda batches, depth: batches):
            return timed(train)

    found: dict[str, Callable[[], Took]] = {
        f"step {features}": lambda: timed(train),
        f"feed {features}": lambda: timed(lambda epoch: [None for _ in epoch]),
    }
    return found | ({f"between {features}": between} if backend.name() == "jax" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=48)
    arguments = parser.parse_args()
    contenders = measure(20, arguments.steps) | measure(100, arguments.steps)
    found: dict[str, list[Took]] = {name: [] for name in contenders}
    for turn in range(arguments.rounds + 1):
        for name, contender in contenders.items():
            took = contender()
            if turn:  # the first one compiles
                found[name].append(took)
    medians = {name: np.median(values, axis=0) for name, values in found.items()}
    for name, values in found.items():
        spread = ", ".join(f"{cpu:.1f}/{wall:.1f}" for cpu, wall in values)
        cpu, wall = medians[name]
        print(f"{name:12} {cpu:8.2f} ms of CPU {wall:8.2f} ms   ({spread})")
    ratios = {what: medians[f"{what} 100"] / medians[f"{what} 20"] for what in ("step", "feed")}
    result = {k: round(float(cpu), 2) for k, (cpu, _) in ratios.items()}
    if backend.name() == "jax":
        for features in (20, 100):
            saved = medians[f"step {features}"] / medians[f"between {features}"]
            result[f"ahead_{features}"] = round(float(saved[1]), 3)
    print(json.dumps({"backend": backend.name(), **result}))


if __name__ == "__main__":
    main()
