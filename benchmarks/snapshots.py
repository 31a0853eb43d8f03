"""What does it cost to be able to resume? A snapshot of a training against its steps.

The configuration's model is trained on one batch, some steps and a snapshot in turn; medians.  The
share is that of `train.save_every` steps.

    python benchmarks/snapshots.py --config movielens --examples EXAMPLES [--rounds 9]

EXAMPLES is a folder that `multigate examples` wrote.  Takes half a minute.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import tensorflow as tf

from multigate.configs import load
from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.data.examples import Split, concatenate
from multigate.model.data.feeds import MemoryFeed
from multigate.model.optimizer.optimizers import make_optimizer
from multigate.model.training import snapshots

STEPS = 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="movielens", help="preset or YAML file")
    parser.add_argument("--examples", type=Path, required=True, help="folder of examples")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    config = load(arguments.config)
    encoder = Encoder.read(arguments.examples)
    split = Split(arguments.examples, "validation", encoder)
    rows = concatenate(list(split.read(split.groups[:1])))
    feed = MemoryFeed(rows, config.contract, encoder.statistics, config.train.batch_size)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, config.train.seed)
    ranker.compile(optimizer=make_optimizer(config.train, STEPS), steps_per_execution=16)
    data = tf.data.Dataset.from_tensors(next(iter(feed.epoch(1)))).repeat()
    times: dict[str, list[float]] = {"steps": [], "save": [], "load": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in range(arguments.rounds + 1):
            began = time.perf_counter()
            ranker.fit(data, steps_per_epoch=STEPS, verbose=0, shuffle=False)
            stepped = time.perf_counter()
            variables = [*ranker.variables, *ranker.optimizer.variables]
            arrays = [weights.to_numpy(variable) for variable in variables]
            path = snapshots.save(folder, snapshots.Snapshot(arrays, {"step": count}))
            saved = time.perf_counter()
            snapshots.latest(folder)
            if count:  # the first traces
                times["steps"].append(stepped - began)
                times["save"].append(saved - stepped)
                times["load"].append(time.perf_counter() - saved)
        size = path.stat().st_size
    step, save, read = (1e3 * float(np.median(times[key])) for key in ("steps", "save", "load"))
    step /= STEPS
    share = save / (step * config.train.save_every)
    result = {
        "config": config.name,
        "megabytes": round(size / 1e6, 1),
        "save_ms": round(save, 1),
        "load_ms": round(read, 1),
        "step_ms": round(step, 2),
        "save_every": config.train.save_every,
        "share_of_training": round(share, 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
