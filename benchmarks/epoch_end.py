"""What `tf.data`'s tuning costs: trainings with it and without it, in turns.

    tuned    datasets as TensorFlow makes them: its tuning thread looks at the times T, 2 T, 4 T,
             ... and the end of an epoch waits for its next look, at most a minute
    ours     `model.data.ahead.prefetched`, which tunes nothing

The rest is what a training takes beyond the steps of its epochs: start, validation, diagnosis, and
the wait.  Both keep the same weights, so their validation losses must be equal.

    python benchmarks/epoch_end.py --config movielens --examples EXAMPLES [--epochs 2] [--rounds 1]

EXAMPLES is a folder that `multigate examples` wrote.  A round is two trainings.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np

from multigate.configs import load
from multigate.configs.config import Config
from multigate.jobs.tune import with_settings
from multigate.model.checkpoints.checkpoint import read_history
from multigate.model.data import feeds
from multigate.model.training.train import train

PREFETCHED = feeds.prefetched


def tuned(batches: Any) -> Any:
    """The same dataset with TensorFlow's own options."""
    return batches.prefetch(4)


def measure(config: Config, examples: Path) -> tuple[float, float, float]:
    """Seconds of the epochs' steps, of all, and the validation loss of the last epoch."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        whole = train(config, examples, out, progress=False)["seconds"]
        history = read_history(out)
    return sum(epoch["seconds"] for epoch in history), whole, history[-1]["val_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="movielens", help="preset or YAML file")
    parser.add_argument("--examples", type=Path, required=True, help="folder of examples")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    lasts = {"train.epochs": arguments.epochs, "train.patience": arguments.epochs}
    config = with_settings(load(arguments.config), lasts, "--epochs")
    found: dict[str, list[tuple[float, float, float]]] = {"tuned": [], "ours": []}
    for number in range(arguments.rounds):
        # The first training of the process has its imports and traces to pay: it is ours.
        for name in ("ours", "tuned") if number % 2 == 0 else ("tuned", "ours"):
            feeds.prefetched = tuned if name == "tuned" else PREFETCHED
            found[name].append(measure(config, arguments.examples))
            print(name, *(f"{value:.4f}" for value in found[name][-1]), flush=True)
    losses = {row[2] for rows in found.values() for row in rows}
    if len(losses) > 1:
        raise SystemExit(f"expected equal validation losses; received {sorted(losses)}")
    medians = {name: np.median(rows, axis=0) for name, rows in found.items()}
    result: dict[str, Any] = {"config": config.name, "cores": len(os.sched_getaffinity(0))}
    for name, (steps, whole, _) in medians.items():
        result |= {f"{name}_steps": round(steps, 1), f"{name}_rest": round(whole - steps, 1)}
    result["tuned_over_ours"] = round(medians["tuned"][1] / medians["ours"][1], 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
