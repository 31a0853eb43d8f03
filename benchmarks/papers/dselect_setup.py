"""Why softmax is last on MovieLens in the paper on DSelect-k and first here: its own set-up.

    python benchmarks/papers/dselect_setup.py --data FOLDER --work FOLDER      # two hours
    python benchmarks/papers/dselect_setup.py --data FOLDER --work FOLDER --optimizers adam
    python benchmarks/papers/dselect_setup.py --table

FOLDER of the data holds the publisher's ratings.dat.  Appendix D.1 of the paper: 8 experts of 256
units with dropout 0.5, towers of 256, Adagrad, batches of 128, a learning rate and a number of
epochs from a grid.  Our tables have Adam, batches of 512 and early stopping.  Both optimisers with
both sizes of a batch train the same models here: task weights 0.9 and 0.1, where the paper has the
largest distance, and data and sizes of `reduced.py` (every tenth user, 8 experts of 64 units).

Each model is trained with seed 0 at each rate of the grid; the rate with the lowest validation loss
that met k is trained with the other seeds.  Training ends after 10 epochs without a better
validation loss, at most 50; a row also says the lowest validation loss at the epochs that the paper
chooses from, which is what a training without early stopping would reach.  Each run is a row of
docs/results/papers/dselect_setup.jsonl.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import movielens
import reduced
from rows import Row, Rows, cell, marked, mean_and_error, of_same_seeds, replace_table
from settings import DSELECT_ENTROPY, entropy_weight, meets_k
from two_tasks import configuration, k_cell, measure_checkpoint, trained_on

from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics

WEIGHT = 0.9
"""Of watching; rating has the rest."""
EXPERTS, K = 8, 2
RATES = {"adagrad": (0.1, 0.2, 0.3), "adam": (3e-4, 1e-3, 3e-3)}
"""The three highest of the paper's five, and ours."""
BATCHES = (128, 512)
MODELS = ("softmax", "topk", "dselect_k", "shared_bottom", "wide_bottom")
WIDER = {"shared_bottom": 1, "wide_bottom": EXPERTS}
"""Widths of a bottom, in experts; the paper tunes them (32 to 8,192 units)."""
GRID = (5, 10, 20, 30, 40, 50)
"""Epochs that the paper chooses from."""
PATIENCE = 10
KEY = ("optimizer", "batch", "model", "learning_rate", "seed")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--optimizers", nargs="+", default=list(RATES), choices=RATES)
    arguments.add_argument("--batches", nargs="+", type=int, default=list(BATCHES), choices=BATCHES)
    arguments.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    arguments.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of the best rate")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("dselect_setup", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        examples = reduced.make_examples(options.data, options.work)
        setups = [(one, batch) for one in options.optimizers for batch in options.batches]
        for setup in setups:
            for model in options.models:
                at = dict(zip(KEY[:3], (*setup, model), strict=True))
                grid = [at | {"learning_rate": rate, "seed": 0} for rate in RATES[setup[0]]]
                rows.run(grid, lambda run: measure(run, examples, options.work))
                best = best_rate(of(rows.read(), at))
                others = [
                    at | {"learning_rate": best, "seed": seed} for seed in range(1, options.seeds)
                ]
                rows.run(others, lambda run: measure(run, examples, options.work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def of(rows: list[Row], values: Row) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def best_rate(rows: list[Row]) -> float:
    """The rate whose run of seed 0 has the lowest validation loss, of those that met k if any."""
    trials = [row for row in rows if row["seed"] == 0]
    met = [row for row in trials if row["meets_k"] is not False]
    return float(min(met or trials, key=lambda row: row["val_loss"])["learning_rate"])


def configured(run: Row, examples: Path) -> Any:
    """The configuration of a run; its optimiser is not part of one."""
    from multigate.configs.config import Config
    from multigate.configs.sections.base import parse

    values = reduced.make_values()
    experts = values["model"]["experts"]
    experts |= {
        "count": EXPERTS,
        "units": [width * WIDER.get(run["model"], 1) for width in experts["units"]],
    }
    values["model"]["gate"]["num_selected"] = K
    model = "shared_bottom" if run["model"] in WIDER else run["model"]
    base = {"model": model, "weight": WEIGHT, "seed": run["seed"]}
    values = configuration(base, values, examples).model_dump(mode="json")
    if model == "dselect_k":
        weight = entropy_weight(DSELECT_ENTROPY[0], static=False)
        values["model"]["gate"] |= {"entropy_weight": weight, "gamma": 10.0}
    values["train"] |= {
        "epochs": GRID[-1],
        "patience": PATIENCE,
        "batch_size": run["batch"],
        "learning_rate": run["learning_rate"],
        "embeddings": "dense",
    }
    return parse(Config, values, "dselect_setup")


@contextmanager
def optimizing_with(name: str) -> Iterator[None]:
    """Trainings within it have this optimiser; the product has Adam alone."""
    import keras
    import tensorflow as tf

    from multigate.model.training import loop

    class Adagrad(keras.optimizers.Adagrad):
        """With what a training asks of its optimiser: no averages, no tables by row."""

        averages, tables, workers = (), {}, None

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            """Of whole tables: a row's gradients are summed before they are squared."""
            if hasattr(gradient, "indices"):  # tf.IndexedSlices; Keras would square each
                gradient = tf.convert_to_tensor(gradient)
            super().update_step(gradient, variable, learning_rate)

    ours = loop.make_optimizer
    if name == "adagrad":
        loop.make_optimizer = lambda options, *_: Adagrad(options.learning_rate)
    try:
        yield
    finally:
        loop.make_optimizer = ours


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train, and measure on the test split."""
    from multigate.model.checkpoints.checkpoint import read_history
    from multigate.model.training import train

    config = configured(run, examples)
    checkpoint = work / "-".join(f"{value}" for value in run.values())
    shutil.rmtree(checkpoint, ignore_errors=True)  # of a run that was cut off
    with optimizing_with(run["optimizer"]):
        train.train(config, examples, checkpoint, progress=False)
    found = measure_checkpoint(checkpoint, examples, WEIGHT)
    losses = {epoch["epoch"]: epoch["val_loss"] for epoch in read_history(checkpoint)}
    shutil.rmtree(checkpoint)
    return found | {
        "val_loss": min(losses.values()),
        "grid_val_loss": min(losses[epoch] for epoch in GRID if epoch in losses),
        "meets_k": meets_k(found["experts"], getattr(config.model.gate, "num_selected", None)),
        "weight": WEIGHT,
        "users": "tenth",
        "rows": Statistics.read(ExamplesFolder(examples).statistics).rows["train"],
        "patience": PATIENCE,
        "trained_on": trained_on(),
    }


def write_table(rows: list[Row]) -> None:
    """Each model at its best rate, in the paper's unit, less Top-k with the same seed."""
    lines = [
        "| optimiser | batch | model | rate | test loss x 100, rating's error halved "
        "| less Top-k | paper: less Top-k | validation: loss that the grid of epochs adds, x 100 "
        "| experts a task | meets k | best epoch | seeds |",
        "|" + " --- |" * 12,
    ]
    for optimizer in RATES:
        for batch in BATCHES:
            setup = of(rows, {"optimizer": optimizer, "batch": batch})
            chosen = {model: at_best_rate(setup, model) for model in MODELS}
            losses = {
                model: [100 * movielens.in_dselects_unit(row) for row in found]
                for model, found in chosen.items()
                if found
            }
            for model in sorted(losses, key=lambda name: mean_and_error(losses[name])[0]):
                found = chosen[model]
                lines.append(
                    f"| {optimizer} | {batch} | {model} | {found[0]['learning_rate']:g} "
                    f"| {cell(losses[model], 2)} | {less_topk(found, chosen['topk'])} "
                    f"| {published_less_topk(model)} | {added_by_grid(found)} "
                    f"| {mean_and_error([mean_of(row['experts']) for row in found])[0]:.1f} "
                    f"| {k_cell(found)} "
                    f"| {sum(row['best_epoch'] for row in found) / len(found):.0f} "
                    f"| {len(found)} |"
                )
    replace_table("dselect_setup", lines)


def at_best_rate(setup: list[Row], model: str) -> list[Row]:
    """A model's rows at its best rate, by seed."""
    found = of(setup, {"model": model})
    if not found:
        return []
    best = of(found, {"learning_rate": best_rate(found)})
    return sorted(best, key=lambda row: int(row["seed"]))


def less_topk(found: list[Row], others: list[Row]) -> str:
    """The cell of a model's test loss x 100, less Top-k's with the same seed."""
    if not others or found[0]["model"] == "topk":
        return ""
    pairs = of_same_seeds(found, others)
    less = [100 * (movielens.in_dselects_unit(a) - movielens.in_dselects_unit(b)) for a, b in pairs]
    return marked(cell(less, 2, "+"), pairs, less)


def published_less_topk(model: str) -> str:
    """The same of the paper's table 1."""
    theirs = movielens.DSELECT_PAPER.get((model, WEIGHT))
    if theirs is None or model == "topk":
        return ""
    return f"{theirs[0] - movielens.DSELECT_PAPER['topk', WEIGHT][0]:+.2f}"


def added_by_grid(found: list[Row]) -> str:
    """The cell of what choosing epochs from the paper's grid adds to the validation loss."""
    return cell([100 * (row["grid_val_loss"] - row["val_loss"]) for row in found], 2)


def mean_of(experts: dict[str, float]) -> float:
    """Experts a task, mean of the tasks."""
    return sum(experts.values()) / len(experts)


if __name__ == "__main__":
    main()
