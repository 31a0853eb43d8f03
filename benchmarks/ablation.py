"""What each part of the ranker is worth: the preset, and the preset without one part.

    python benchmarks/ablation.py --config deskdrop --data FOLDER --work FOLDER [--seeds 3]
        [--page docs/modelling.md]

Makes the examples once with as-of rates and once without, trains each variant with each seed and
measures the test split: AUC of binary tasks, RMSE over the label's deviation on the training scale
of regression tasks, after an affine fit on the validation split (an export calibrates).  Each run
is one line of WORK/ablation-NAME.jsonl: started again, the benchmark goes on where it was stopped.
Prints a table, writes it into the page between its marks, and prints one JSON line last.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from papers.rows import Row, Rows, cell, replace_table

VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "without as-of rates": {"rates": None},
    "without id dropout": {"id_dropout": 0.0},
    "without the wide term": {"wide": None},
    "without match of lists": {"lists": {"length": True, "match": False}},
    "without length of lists": {"lists": {"length": False, "match": True}},
    "with weights of pairs": {"wide": {"crosses": 8192}},
    "with held embeddings": {"wide": {"embeddings": 10.0}},
    "softmax over all experts": {"gate": {"name": "softmax"}},
    "none of these, as before": {
        "rates": None,
        "id_dropout": 0.0,
        "wide": None,
        "lists": {"length": False, "match": False},
    },
}


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="deskdrop", help="preset or YAML file")
    parser.add_argument("--data", type=Path, required=True, help="folder of the log")
    parser.add_argument("--work", type=Path, required=True, help="folder for examples and rows")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each variant")
    parser.add_argument("--page", type=Path, help="Markdown page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    from multigate.configs import load

    name = load(options.config).name
    rows = Rows(f"ablation-{name}", ("variant", "seed"), options.work)
    wanted = [
        {"variant": variant, "seed": seed} for seed in range(options.seeds) for variant in VARIANTS
    ]
    rows.run(wanted, lambda key: run(options, key["variant"], key["seed"]))
    lines = draw(rows.read())
    print("\n".join(lines))
    if options.page is not None:
        replace_table(f"ablation {name}", lines, options.page)
    print(json.dumps({"rows": len(rows.read())}))


def run(options: argparse.Namespace, variant: str, seed: int) -> dict[str, Any]:
    """Train one variant and measure it."""
    from multigate.configs import load
    from multigate.configs.config import Config
    from multigate.configs.sections.base import parse
    from multigate.model.training import train
    from multigate.pipeline import job

    changes = dict(VARIANTS[variant])
    values = load(options.config).model_dump(mode="json")
    if changes.pop("rates", "kept") is None:
        features = values["contract"]["features"]
        kinds = ("label_rate", "label_mean", "label_count")
        values["contract"]["features"] = {
            name: feature
            for name, feature in features.items()
            if not any(feature.get(kind) for kind in kinds)
        }
        examples = options.work / f"{values['name']}-without-rates"
    else:
        examples = options.work / values["name"]
    values["model"] |= changes
    values["train"]["seed"] = seed
    config = parse(Config, values, variant)
    if not examples.exists():
        job.run(config, options.data, examples)
    checkpoint = options.work / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    trained = train.train(config, examples, checkpoint, progress=False)
    found = measure(checkpoint, examples)
    shutil.rmtree(checkpoint)
    return found | {"best_epoch": trained["best_epoch"], "epochs": trained["epochs"]}


def measure(checkpoint: Path, examples: Path) -> dict[str, Any]:
    """AUC or RMSE over deviation of each task on the test split."""
    from multigate.model.checkpoints import checkpoint as checkpoints
    from multigate.model.data.examples import read_split, targets
    from multigate.model.evaluation.evaluate import Predictions
    from multigate.model.evaluation.measures.ranks import auc_by_list

    loaded = checkpoints.load(checkpoint)
    contract, statistics = loaded.encoder.contract, loaded.encoder.statistics
    logits, labels = {}, {}
    for split in ("validation", "test"):
        rows = read_split(examples, split, loaded.encoder)
        logits[split] = Predictions(loaded.ranker, contract, statistics, rows).logits
        labels[split] = targets(rows, contract, statistics).astype(np.float64)
    found: dict[str, float] = {}
    for t, (name, task) in enumerate(contract.tasks.items()):
        pairs = {
            split: (logits[split][name][known].astype(np.float64), labels[split][known, t])
            for split in logits
            if (known := ~np.isnan(labels[split][:, t])).any()
        }
        z, y = pairs["test"]
        if task.type == "binary":
            found[name] = float(auc_by_list(np.zeros(len(y), np.int64), y, z)[0])
            continue
        slope, offset = np.polyfit(*pairs["validation"], 1)
        found[name] = float(np.sqrt(np.mean((slope * z + offset - y) ** 2)) / y.std())
    return {"measures": found}


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown: mean over the seeds, and its standard error."""
    tasks = list(rows[0]["measures"])
    lines = [
        f"| {len({row['seed'] for row in rows})} seeds | " + " | ".join(tasks) + " |",
        "| --- |" + " --- |" * len(tasks),
    ]
    for variant in VARIANTS:
        found = [row["measures"] for row in rows if row["variant"] == variant]
        if found:
            cells = [cell([measures[task] for measures in found], 3) for task in tasks]
            lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
