"""MovieLens 1M, two tasks: table 1 and S4 of the paper on MOESART.

    python benchmarks/papers/movielens.py --data FOLDER --work FOLDER              # some hours
    python benchmarks/papers/movielens.py --data FOLDER --work FOLDER --gates topk moesart --seeds 2
    python benchmarks/papers/movielens.py --table         # the page's tables from the rows so far

FOLDER of the data holds the publisher's ratings.dat.  Every run is early-stopped on the validation
loss, and adds one row to docs/results/papers/movielens.jsonl, from which the tables of
docs/results/papers.md are made.  A gate's options are the same for both task weights; nothing is
tuned.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from rows import RESULTS, Row, Rows, cell, replace_table

from configs import load
from configs.base import parse
from configs.baselines import baseline
from configs.config import Config
from configs.files import ExamplesFolder
from configs.statistics import Statistics

GATES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "topk": {"num_selected": 2},
    "dselect_k": {"num_selected": 2, "entropy_weight": 0.001},
    "moesart": {"num_selected": 2, "trimmed_lasso_weight": 0.1},
    "vmoe": {"num_selected": 2},
    "switch": {"num_selected": 2},
    "expert_choice": {"num_selected": 2},
    "xmoe": {"num_selected": 2},
    "comet": {"num_selected": 2, "entropy_weight": 0.001},
    "noisy_topk": {"num_selected": 2},
    "softmax_selector": {"num_selected": 2, "entropy_weight": 0.001},
    "hash": {},
    "sampled": {},
    "gumbel_softmax": {"sparsity_weight": 0.001},
    "hierarchical": {
        "primary": {"name": "topk", "num_selected": 1},
        "secondary": {"name": "topk", "num_selected": 2},
        "num_groups": 4,
    },
    "softmax_static": {"name": "softmax", "static": True},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
    "dselect_k_static": {
        "name": "dselect_k",
        "num_selected": 2,
        "static": True,
        "entropy_weight": 0.001,
    },
}
BASELINES = ("shared_bottom", "single_task:watch", "single_task:rating")
FIRST = ("moesart", "topk", "softmax", "dselect_k", "shared_bottom")
WEIGHTS = (0.9, 0.1)
KEY = ("model", "weight", "seed")

# Test loss x 100, AUC x 100, MSE: tables 1 and S4 of the paper, 50 repetitions after 500 trials.
PUBLISHED = {
    ("softmax", 0.9): (41.93, 91.06, 0.7569),
    ("topk", 0.9): (41.90, 91.17, 0.7616),
    ("vmoe", 0.9): (42.11, 91.16, 0.7605),
    ("switch", 0.9): (43.08, 90.86, 0.7917),
    ("expert_choice", 0.9): (44.94, 89.88, 0.8216),
    ("xmoe", 0.9): (44.66, 89.80, 0.7908),
    ("dselect_k", 0.9): (41.40, 91.44, 0.7582),
    ("comet", 0.9): (41.25, 91.45, 0.7563),
    ("moesart", 0.9): (40.89, 91.61, 0.7430),
    ("softmax", 0.1): (73.96, 86.02, 0.7701),
    ("topk", 0.1): (77.72, 86.08, 0.8121),
    ("vmoe", 0.1): (75.67, 86.79, 0.7904),
    ("switch", 0.1): (79.47, 85.36, 0.8303),
    ("expert_choice", 0.1): (81.14, 84.65, 0.8477),
    ("xmoe", 0.1): (77.59, 86.86, 0.8119),
    ("dselect_k", 0.1): (73.81, 87.79, 0.7715),
    ("comet", 0.1): (74.19, 87.67, 0.7756),
    ("moesart", 0.1): (73.60, 87.33, 0.7684),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--gates", nargs="+", default=list(FIRST), help="models, in order")
    arguments.add_argument("--weights", nargs="+", type=float, default=list(WEIGHTS))
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's tables")
    options = arguments.parse_args()
    rows = Rows("movielens", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        wanted = [
            {"model": model, "weight": weight, "seed": seed}
            for weight in options.weights
            for seed in range(options.seeds)
            for model in options.gates
        ]
        examples = build_examples(options.data, options.work)
        rows.run(wanted, lambda run: measure(run, examples, options.work))
    write_tables(rows.read())
    print(json.dumps({"rows": len(rows.read()), "best": best(rows.read())}))


def build_examples(data: Path, work: Path) -> Path:
    """The preset's examples: one negative per rating, random split 80/10/10; made once."""
    from pipeline import job

    examples = work / "examples"
    if not examples.exists():
        work.mkdir(parents=True, exist_ok=True)
        job.run(load("movielens"), data, examples)
    return examples


def configuration(run: Row, examples: Path) -> Config:
    """The paper's model (S6.2) with one gate, and one setting of the task weights.

    The paper weighs the error of raw ratings; labels are standardised here, which divides their
    squared error by the variance, so the weight is multiplied by it.
    """
    statistics = Statistics.read(ExamplesFolder(examples).statistics)
    variance = statistics.tasks["rating"].std ** 2
    values = load("movielens").model_dump(mode="json")
    values["contract"]["tasks"]["watch"]["weight"] = run["weight"]
    values["contract"]["tasks"]["rating"]["weight"] = (1 - run["weight"]) * variance
    values["model"]["towers"] = {"units": [256]}
    if run["model"] in GATES:
        values["model"]["gate"] = {"name": run["model"]} | GATES[run["model"]]
    values["train"] = {
        "epochs": 60,
        "batch_size": 512,
        "learning_rate": 3e-4,
        "patience": 4,
        "seed": run["seed"],
    }
    config = parse(Config, values, "table")
    return baseline(config, run["model"]) if run["model"] in BASELINES else config


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train, and measure on the test split."""
    from model import training
    from model.evaluation import evaluate

    checkpoint = work / "checkpoint"
    if checkpoint.exists():
        shutil.rmtree(checkpoint)
    config = configuration(run, examples)
    trained = training.train(config, examples, checkpoint, progress=False)
    found = evaluate(checkpoint, examples)
    watch, rating = found["tasks"]["watch"], found["tasks"]["rating"]
    return {
        "loss": found["loss"],
        "auc": watch["value"],
        "mse": rating["mse"],
        "log_loss": watch["log_loss"],
        "experts_per_row": found["experts_per_row"],
        "experts": {task: gate["experts_per_row"] for task, gate in found["gates"].items()},
        "best_epoch": trained["best_epoch"],
        "epochs": trained["epochs"],
        "seconds": round(trained["seconds"]),
        "val_loss": trained["val_loss"],
    }


def write_tables(rows: list[Row]) -> None:
    """One table per setting of the weights, best first, into docs/results/papers.md."""
    page = RESULTS.parent / "papers.md"
    for weight in WEIGHTS:
        lines = [
            "| model | test loss x 100 | AUC x 100 | MSE | experts a row | seeds | epochs | hours "
            "| paper: loss, AUC, MSE |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        by_model: dict[str, list[Row]] = {}
        for row in rows:
            if row["weight"] == weight:
                by_model.setdefault(row["model"], []).append(row)
        for model, found in sorted(by_model.items(), key=lambda item: mean(item[1], "loss")):
            single = model.startswith("single_task")
            task = model.partition(":")[2]
            published = PUBLISHED.get((model, weight))
            lines.append(
                f"| {model} "
                f"| {'' if single else cell([100 * row['loss'] for row in found], 2)} "
                f"| {'' if task == 'rating' else cell([100 * row['auc'] for row in found], 2)} "
                f"| {'' if task == 'watch' else cell([row['mse'] for row in found], 4)} "
                f"| {mean(found, 'experts_per_row'):.1f} | {len(found)} "
                f"| {mean(found, 'best_epoch'):.0f} "
                f"| {sum(row['seconds'] for row in found) / 3600:.1f} "
                f"| {', '.join(f'{value:g}' for value in published) if published else ''} |"
            )
        replace_table(page, f"movielens {weight:g}", lines)


def mean(rows: list[Row], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def best(rows: list[Row]) -> dict[str, str]:
    """The model with the lowest test loss for each setting of the weights."""
    found = {}
    for weight in WEIGHTS:
        mixtures = [
            row for row in rows if row["weight"] == weight and not row["model"].startswith("single")
        ]
        if mixtures:
            found[f"{weight:g}"] = min(mixtures, key=lambda row: row["loss"])["model"]
    return found


if __name__ == "__main__":
    main()
