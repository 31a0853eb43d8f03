"""A log with tasks that agree or conflict as one says, to see where gates pay.

    python benchmarks/conflicts.py --out FOLDER [--agreement 0.0] [--segments 8] [--rows 60000]
    multigate examples --config FOLDER/config.yaml --data FOLDER/log --out FOLDER/examples
    python benchmarks/gates_at_cost.py --config FOLDER/config.yaml --examples FOLDER/examples ...

The tasks' functions are of the kind of the MMoE paper's synthetic data (3.2): of 16 numbers x,

    y = w x + sum_i sin(a_i w x + b_i) / 2        a = 1, 2; b and the unit vectors w are drawn

each task and each segment (a value of the row, such as a country) with a w of its own.
`--agreement` is the cosine of any two of them: 1 is one function for all, 0 are unrelated ones. A
label is 1 with probability sigmoid(2 y), y standardised. Users and items say nothing.

With several segments, what a row needs depends on the row: a gate that chooses for each row can
give each segment an expert; a shared bottom of one expert's size has to hold all functions at once.

Writes FOLDER/log/log.csv and FOLDER/config.yaml, and prints the AUC of the true probabilities, the
best that any model could reach but for chance.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

NUMBERS, PEOPLE, START = 16, 500, 1_700_000_000
Floats = NDArray[np.float64]


def functions(random: np.random.Generator, shape: tuple[int, int], agreement: float) -> Floats:
    """Unit vectors (tasks, segments, NUMBERS) with that cosine in expectation."""
    common, own = random.normal(size=NUMBERS), random.normal(size=(*shape, NUMBERS))
    common /= np.linalg.norm(common)
    own -= (own @ common)[..., None] * common
    own /= np.linalg.norm(own, axis=-1, keepdims=True)
    return np.sqrt(agreement) * common + np.sqrt(1 - agreement) * own


def truth(
    random: np.random.Generator, x: Floats, segment: NDArray[np.int64], weights: Floats
) -> Floats:
    """Probabilities (tasks, rows) of the labels."""
    shift = random.uniform(0, 2 * np.pi, size=2)
    scores = []
    for task in weights:
        at = (x * task[segment]).sum(axis=1)
        waves = sum(np.sin(a * at + b) for a, b in enumerate(shift, 1))
        y = at + waves / 2
        scores.append((y - y.mean()) / y.std())
    return 1 / (1 + np.exp(-2 * np.array(scores)))


def config(tasks: int) -> dict[str, Any]:
    """The configuration: small experts, so that one of them cannot hold all functions."""
    numbers = {f"x{at}": {"kind": "number", "side": "item"} for at in range(NUMBERS)}
    return {
        "name": "conflicts",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item"},
                "segment": {"kind": "id", "side": "item"},
                **numbers,
            },
            "tasks": {
                f"task_{at}": {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "column", "column": f"task_{at}"},
                    "score_weight": 1,
                }
                for at in range(tasks)
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.csv"],
                "format": {"type": "csv", "quoted": False},
                "time_unit": "s",
                "columns": {"time": "time", "user": "user_id", "item": "item_id"},
            },
            "split": {"by": "time", "validation": 0.1, "test": 0.2},
        },
        "model": {
            "embedding_dim": 8,
            "experts": {"count": 8, "units": [32, 16]},
            "gate": {"name": "topk", "num_selected": 2},
            "towers": {"units": [8]},
        },
        "train": {
            "epochs": 15,
            "batch_size": 512,
            "learning_rate": 0.005,
            "decay": "cosine",
            "patience": 15,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--agreement", type=float, default=0.0, help="cosine of the functions, 0-1")
    parser.add_argument("--segments", type=int, default=8, help="values of the row's segment")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    rows = options.rows
    weights = functions(random, (options.tasks, options.segments), options.agreement)
    x = random.normal(size=(rows, NUMBERS))
    segment = random.integers(options.segments, size=rows)
    chances = truth(random, x, segment, weights)
    labels = random.random(chances.shape) < chances
    table = pl.DataFrame(
        {
            "time": START + np.arange(rows),
            "user_id": random.integers(PEOPLE, size=rows),
            "item_id": random.integers(PEOPLE, size=rows),
            "segment": segment,
            **{f"x{at}": x[:, at].round(5) for at in range(NUMBERS)},
            **{f"task_{at}": label.astype(int) for at, label in enumerate(labels)},
        }
    )
    (options.out / "log").mkdir(parents=True)
    table.write_csv(options.out / "log" / "log.csv")
    (options.out / "config.yaml").write_text(yaml.safe_dump(config(options.tasks), sort_keys=False))
    test = slice(rows - rows // 5, None)
    best = [
        roc_auc_score(label[test], chance[test])
        for label, chance in zip(labels, chances, strict=True)
    ]
    print(json.dumps({"best_test_auc": round(float(np.mean(best)), 4)}))


if __name__ == "__main__":
    main()
