"""Does the input keep up? Rows per second from Parquet to batches, against training's own.

    memory    batches gathered from a split in memory; reading and encoding it first is `load`
    stream    the same batches read from disk, encoded and shuffled during training
    training  steps of the configuration's model on one batch that is at hand, forward, backward
              and optimiser: what the input has to keep up with

Each is measured in turn, and medians over the rounds are compared: what counts is the ratio, and
at least 5 leaves most of the machine to training.  The batches' sums are compared first: both feeds
give every row once.

    python benchmarks/input.py --config movielens --examples EXAMPLES [--seconds 5] [--rounds 3]

EXAMPLES is a folder that `multigate examples` wrote.  Takes about a minute.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import tensorflow as tf

from multigate.configs import load
from multigate.configs.config import Config
from multigate.model.checkpoints import checkpoint
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split, concatenate
from multigate.model.data.feeds import MemoryFeed, StreamFeed
from multigate.model.optimizer.optimizers import make_optimizer


def forever(batch: Any) -> tf.data.Dataset:
    """The same batch again and again: training without input."""
    return tf.data.Dataset.from_tensors(batch).repeat()


def batches(feed: MemoryFeed | StreamFeed) -> Iterator[int]:
    """Rows of batch after batch, epoch after epoch."""
    for number in range(1, 1_000_000):
        for _, targets in feed.epoch(number):
            yield len(targets)


def rate(rows: Iterator[int], seconds: float) -> float:
    """Rows per second, after the first batch."""
    next(rows)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        count += next(rows)
    return count / (time.perf_counter() - began)


def make_training(config: Config, encoder: Encoder, feed: MemoryFeed) -> Callable[[float], float]:
    """Rows per second that training consumes, over so many seconds."""
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, config.train.seed)
    ranker.compile(
        optimizer=make_optimizer(config.train, feed.steps), steps_per_execution=min(16, feed.steps)
    )
    batch = next(iter(feed.epoch(1)))
    ranker.fit(forever(batch), steps_per_epoch=32, verbose=0, shuffle=False)  # traces

    def run(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            ranker.fit(forever(batch), steps_per_epoch=64, verbose=0, shuffle=False)
            steps += 64
        return steps * feed.size / (time.perf_counter() - began)

    return run


def check(feeds: dict[str, MemoryFeed | StreamFeed]) -> None:
    """Every feed gives the same rows in an epoch, whatever their order."""
    sums = {}
    for name, feed in feeds.items():
        total = {}
        for features, _ in feed.epoch(1):
            for key, values in features.items():
                total[key] = total.get(key, 0.0) + float(np.sum(values, dtype=np.float64))
        sums[name] = total
    first, *others = sums.values()
    for other in others:
        for key, value in first.items():
            np.testing.assert_allclose(other[key], value, rtol=1e-9, err_msg=key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="movielens", help="preset or YAML file")
    parser.add_argument("--examples", type=Path, required=True, help="folder of examples")
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    config = load(arguments.config)
    encoder = Encoder.read(arguments.examples)
    split = Split(arguments.examples, "train", encoder)
    size, statistics = config.train.batch_size, encoder.statistics
    began = time.perf_counter()
    rows = concatenate(list(split.read(split.groups)))
    loading = split.rows / (time.perf_counter() - began)
    memory = MemoryFeed(rows, config.contract, statistics, size)
    stream = StreamFeed(split, config.contract, statistics, size, buffer=config.train.shuffle_rows)
    check({"memory": memory, "stream": stream})
    training = make_training(config, encoder, memory)
    flows = {"memory": batches(memory), "stream": batches(stream)}
    found: dict[str, list[float]] = {"memory": [], "stream": [], "training": []}
    for _ in range(arguments.rounds):
        for name, flow in flows.items():
            found[name].append(rate(flow, arguments.seconds))
        found["training"].append(training(arguments.seconds))
    medians = {name: float(np.median(values)) for name, values in found.items()}
    for name, values in found.items():
        spread = ", ".join(f"{value:,.0f}" for value in values)
        print(f"{name:9} {medians[name]:>12,.0f} rows/s   ({spread})")
    print(f"{'load':9} {loading:>12,.0f} rows/s")
    result = {
        "config": config.name,
        "rows": split.rows,
        "batch_size": size,
        **{f"{name}_rows_per_second": round(value) for name, value in medians.items()},
        "load_rows_per_second": round(loading),
        "memory_over_training": round(medians["memory"] / medians["training"], 1),
        "stream_over_training": round(medians["stream"] / medians["training"], 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
