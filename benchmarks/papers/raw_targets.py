"""Raw stars and towers that start at 0, as in the paper on MOESART (table 1), beside ours.

    python benchmarks/papers/raw_targets.py --data FOLDER --work FOLDER             # an hour
    python benchmarks/papers/raw_targets.py --data FOLDER --work FOLDER --users all # a night
    python benchmarks/papers/raw_targets.py --table

FOLDER of the data holds the publisher's ratings.dat. MovieLens 1M at task weights 0.1 and 0.9, k
= 2, batch 512, Adam, no wide term and no dropped ids, early stopping with patience 5 in at most
40 epochs. `--users tenth`: every tenth user, the small model of `reduced.py`, rate 1e-3; `--users
all`: all users, the paper's model (16 experts of 256 units, embeddings of 128), rate 3e-4. Each
gate is trained on standardised stars from the base rate, and on raw stars from 0, with the same
seeds. Each run is a row of docs/results/papers/raw_targets.jsonl. Checkpoints of every tenth user
stay in the work folder, for `inference_modes.py`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import movielens
import reduced
from rows import Row, Rows, cell, replace_table
from settings import TARGETS, meets_k, with_targets
from trimmed_lasso import signed
from two_tasks import configuration, k_cell, measure_checkpoint

from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics

WEIGHT = 0.1
"""Of watching; rating has the rest."""
GATES = ("topk", "moesart", "softmax")
USERS = ("tenth", "all")
K = {"topk": 2, "moesart": 2, "softmax": None}
KEY = ("users", "gate", "targets", "seed")
EPOCHS, PATIENCE = 40, 5
RATES = {"tenth": 1e-3, "all": 3e-4}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--users", default="tenth", choices=USERS)
    arguments.add_argument("--gates", nargs="+", default=list(GATES), choices=GATES)
    arguments.add_argument("--seeds", type=int, default=2, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("raw_targets", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        work = options.work / options.users
        examples = make_examples(options.users, options.data, work)
        wanted = [
            {"users": options.users, "gate": gate, "targets": targets, "seed": seed}
            for seed in range(options.seeds)
            for gate in options.gates
            for targets in TARGETS
        ]
        rows.run(wanted, lambda run: measure(run, examples, work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def make_examples(users: str, data: Path, work: Path) -> Path:
    """Examples of every tenth user or of all; made once."""
    return (reduced if users == "tenth" else movielens).make_examples(data, work)


def make_values(users: str) -> dict[str, Any]:
    """The model for a tenth of the users or for all; gate, weights and seed are put into it."""
    values = (reduced if users == "tenth" else movielens).make_values()
    values["train"] |= {"epochs": EPOCHS, "patience": PATIENCE, "learning_rate": RATES[users]}
    return values


def checkpoint_of(run: Row, work: Path) -> Path:
    """Where a run's checkpoint is."""
    return work / f"{run['gate']}-{run['targets']}-{run['seed']}"


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train, or go on where a run was cut off, and measure on the test split."""
    from multigate.model.training import train

    given = with_targets(examples, run["targets"])
    base = {"model": run["gate"], "weight": WEIGHT, "seed": run["seed"]}
    checkpoint = checkpoint_of(run, work)
    if not checkpoint.exists():
        config = configuration(base, make_values(run["users"]), given)
        train.train(config, given, checkpoint, progress=False, resume=True)
    found = measure_checkpoint(checkpoint, given, WEIGHT)
    return found | {
        "meets_k": meets_k(found["experts"], K[run["gate"]]),
        "rows": Statistics.read(ExamplesFolder(examples).statistics).rows["train"],
        "tuned": False,
        "learning_rate": RATES[run["users"]],
        "patience": PATIENCE,
    }


def write_table(rows: list[Row]) -> None:
    """A row per gate and start; differences are from standardised stars with the same seed."""
    lines = [
        "| users | gate | stars | test loss x 100 | minus standardised | AUC x 100 | MSE "
        "| experts a task | meets k | best epoch | seeds | paper: loss |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for users in USERS:
        for targets in TARGETS:
            for gate in GATES:
                found = [
                    row
                    for row in rows
                    if (row["users"], row["gate"], row["targets"]) == (users, gate, targets)
                ]
                if not found:
                    continue
                plain = {
                    row["seed"]: row["loss"]
                    for row in rows
                    if (row["users"], row["gate"], row["targets"]) == (users, gate, TARGETS[0])
                }
                gaps = [100 * (r["loss"] - plain[r["seed"]]) for r in found if r["seed"] in plain]
                used = [count for row in found for count in row["experts"].values()]
                theirs = movielens.PUBLISHED[gate, WEIGHT][0]
                lines.append(
                    f"| {users} | {gate} | {targets} "
                    f"| {cell([100 * row['loss'] for row in found], 2)} "
                    f"| {signed(gaps) if targets == 'raw' and gaps else ''} "
                    f"| {cell([100 * row['auc'] for row in found], 2)} "
                    f"| {cell([row['mse'] for row in found], 4)} "
                    f"| {sum(used) / len(used):.1f} "
                    f"| {k_cell(found)} "
                    f"| {sum(row['best_epoch'] for row in found) / len(found):.0f} | {len(found)} "
                    f"| {theirs if targets == 'raw' else ''} |"
                )
    replace_table("raw_targets", lines)


if __name__ == "__main__":
    main()
