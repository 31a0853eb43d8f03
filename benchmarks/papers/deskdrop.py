"""Deskdrop, beyond the papers: six tasks on real user events, every gate, by time split.

    python benchmarks/papers/deskdrop.py --data FOLDER --work FOLDER          # under an hour
    python benchmarks/papers/deskdrop.py --table

FOLDER of the data holds users_interactions.csv(.zip). The model is the preset's with one gate after
the other, each task having one of its own; k = 2 where a gate selects. Measures are those of
`multigate evaluate` on the test split, with 95 % intervals by user of the first seed. Rows go to
docs/results/papers/deskdrop.jsonl.
"""

import argparse
import json
import shutil
from pathlib import Path

from rows import Row, Rows, cell, replace_table
from two_tasks import GATES

from multigate.configs import load
from multigate.configs.baselines import baseline
from multigate.configs.config import Config
from multigate.configs.sections.base import parse

KEY = ("model", "seed")
TASKS = {"view": "auc", "like": "auc", "bookmark": "auc", "follow": "auc", "comment": "auc"}
MODELS = (*GATES, "shared_bottom")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of users_interactions.csv")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    arguments.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("deskdrop", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        examples = options.work / "examples"
        if not examples.exists():
            from multigate.pipeline import job

            options.work.mkdir(parents=True, exist_ok=True)
            job.run(load("deskdrop"), options.data, examples)
        wanted = [
            {"model": model, "seed": seed}
            for seed in range(options.seeds)
            for model in options.models
        ]
        rows.run(wanted, lambda run: measure(run, examples, options.work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def configuration(run: Row) -> Config:
    """The preset with another gate."""
    values = load("deskdrop").model_dump(mode="json")
    values["train"]["seed"] = run["seed"]
    if run["model"] in GATES:
        gate = {"name": run["model"]} | GATES[run["model"]]
        values["model"] |= {"gate": gate, "shared_gate": "none"}
        return parse(Config, values, "table")
    return baseline(parse(Config, values, "table"), run["model"])


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train, and measure on the test split."""
    from multigate.model.assessment.assess import assess
    from multigate.model.checkpoints.history import kept
    from multigate.model.training import train

    checkpoint = work / f"{run['model']}-{run['seed']}"
    if not checkpoint.exists():
        train.train(configuration(run), examples, checkpoint, progress=False, resume=True)
    found = assess(checkpoint, examples)
    shutil.rmtree(checkpoint)
    measures = {name: task["measures"] for name, task in found["tasks"].items()}
    return {name: measures[name][key] for name, key in TASKS.items()} | {
        "ndcg": found["ranking"]["measures"]["ndcg@10"],
        "experts_per_row": found["experts_per_row"],
        "epochs": len(found["history"]),
        "best_epoch": kept(found["history"])["epoch"],
        "loss": found["loss"],
    }


def write_table(rows: list[Row]) -> None:
    """Best mean AUC first."""
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    names = list(TASKS)
    lines = [
        f"| model | {' | '.join(f'{name} AUC' for name in names)} | mean | experts a row | seeds |",
        f"|{' --- |' * (len(names) + 4)}",
    ]

    def mean_auc(found: list[Row]) -> float:
        values = [row[name]["value"] for row in found for name in names]
        return sum(values) / len(values)

    for model, found in sorted(by_model.items(), key=lambda item: -mean_auc(item[1])):
        cells = []
        for name in names:
            text = cell([row[name]["value"] for row in found], 3)
            low, high = found[0][name]["low"], found[0][name]["high"]
            cells.append(f"{text} ({low:.3f} to {high:.3f})")
        experts = sum(row["experts_per_row"] for row in found) / len(found)
        lines.append(
            f"| {model} | {' | '.join(cells)} | {mean_auc(found):.3f} | {experts:.1f} "
            f"| {len(found)} |"
        )
    replace_table("deskdrop", lines)


if __name__ == "__main__":
    main()
