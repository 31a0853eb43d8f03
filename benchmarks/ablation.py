"""What each part of the ranker is worth: the preset, and the preset with one part changed.

    python benchmarks/ablation.py --config deskdrop --data FOLDER --work FOLDER [--seeds 3]
        [--variants whole "without a teacher" ...] [--page docs/modelling.md]

Makes the examples once with as-of rates and once without, trains each variant with each seed and
measures the test split: AUC of binary tasks, RMSE over the label's deviation on the training scale
of regression tasks, after an affine fit on the validation split (an export calibrates).  The mean
AUC of the binary tasks stands beside the validation split's, by which a user has to choose.  Each
run is one line of docs/results/ablation_NAME.jsonl: started again, the benchmark goes on where it
was stopped.  Prints a table, writes it into the page between its marks, and prints one JSON line.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from papers.rows import Row, Rows, cell, replace_table

RESULTS = Path(__file__).parents[1] / "docs" / "results"

WITHOUT_RATES = "without as-of rates"
BEFORE = "none of rates, id dropout, wide term, match and length"
ONE_WIDE = "one expert as wide as all"
LISTS, WIDE, TEACHER = "model.lists", "model.wide", "train.teacher"
GATE, SHARED = "model.gate", "model.shared_gate"
ONE_EXPERT = {GATE: {"name": "softmax"}, "model.experts.count": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "without a teacher": {TEACHER: None},
    WITHOUT_RATES: {},
    "without id dropout": {"model.id_dropout": 0.0},
    "without the wide term": {WIDE: None},
    "without match of lists": {LISTS: {"length": True, "match": False}},
    "without length of lists": {LISTS: {"length": False, "match": True}},
    BEFORE: {"model.id_dropout": 0.0, WIDE: None, LISTS: {"length": False, "match": False}},
    "with held embeddings": {WIDE: {"embeddings": 10.0}},
    "a gate of each task": {SHARED: "none"},
    "static DSelect-k": {
        GATE: {"name": "dselect_k", "num_selected": 2, "static": True, "entropy_weight": 0.1},
        SHARED: "none",
    },
    "softmax of each task": {GATE: {"name": "softmax"}, SHARED: "none"},
    "one expert": ONE_EXPERT,
    ONE_WIDE: ONE_EXPERT,
}
"""Settings by dotted name, and what `run` does by the variant's own."""


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="deskdrop", help="preset or YAML file")
    parser.add_argument("--data", type=Path, required=True, help="folder of the log")
    parser.add_argument("--work", type=Path, required=True, help="folder for examples")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each variant")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--page", type=Path, help="Markdown page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    from multigate.configs import load

    name = load(options.config).name
    rows = Rows(f"ablation_{name}", ("variant", "seed"), RESULTS)
    wanted = [
        {"variant": variant, "seed": seed}
        for seed in range(options.seeds)
        for variant in options.variants
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
    from multigate.jobs.tune import with_settings
    from multigate.model.training import train
    from multigate.pipeline import job

    config = load(options.config)
    examples = options.work / config.name
    if variant in (WITHOUT_RATES, BEFORE):
        values = config.model_dump(mode="json")
        for name in config.contract.label_counters():
            del values["contract"]["features"][name]
        config, examples = parse(Config, values, variant), options.work / f"{config.name}-rateless"
    settings = VARIANTS[variant] | {"train.seed": seed}
    if variant == ONE_WIDE:
        experts = config.model.experts
        settings["model.experts.units"] = [width * experts.count for width in experts.units]
    config = with_settings(config, settings)
    if not examples.exists():
        job.run(config, options.data, examples)
    shutil.rmtree(options.work / "run", ignore_errors=True)  # with what an interruption left
    checkpoint = options.work / "run" / "checkpoint"
    scores = options.work / f"{examples.name}.teacher"  # of all variants on these examples
    trained = train.train(config, examples, checkpoint, progress=False, teacher_scores=scores)
    found = measure(checkpoint, examples)
    return found | {"best_epoch": trained["best_epoch"], "epochs": trained["epochs"]}


def measure(checkpoint: Path, examples: Path) -> dict[str, Any]:
    """AUC or RMSE over deviation of each task on the test split, and mean AUC on both."""
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
    areas: dict[str, list[float]] = {split: [] for split in logits}
    for t, (name, task) in enumerate(contract.tasks.items()):
        pairs = {
            split: (logits[split][name][known].astype(np.float64), labels[split][known, t])
            for split in logits
            if (known := ~np.isnan(labels[split][:, t])).any()
        }
        z, y = pairs["test"]
        if task.type == "binary":
            for split, (logit, label) in pairs.items():
                one_list = np.zeros(len(label), np.int64)
                areas[split].append(float(auc_by_list(one_list, label, logit)[0]))
            found[name] = areas["test"][-1]
            continue
        slope, offset = np.polyfit(*pairs["validation"], 1)
        found[name] = float(np.sqrt(np.mean((slope * z + offset - y) ** 2)) / y.std())
    means = {f"mean AUC, {split}": float(np.mean(areas[split])) for split in ("validation", "test")}
    return {"measures": means | found}


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown: mean over the seeds, and its standard error."""
    tasks = list(rows[0]["measures"])
    lines = [f"| variant | seeds | {' | '.join(tasks)} |", "|" + " --- |" * (2 + len(tasks))]
    for variant in VARIANTS:
        found = [row["measures"] for row in rows if row["variant"] == variant]
        if found:
            cells = [cell([measures[task] for measures in found], 4) for task in tasks]
            lines.append(f"| {variant} | {len(found)} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
