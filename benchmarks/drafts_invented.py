"""Unedited drafts of twelve invented logs, beside LightGBM on the same examples.

    python benchmarks/drafts_invented.py --work FOLDER [--logs sports market ...] [--seeds 1]

Makes each log (`data_sets/invented.py`, and `data_sets/businesses.py` for the names that end in 2;
nobody changed their rules after a training), drafts it with `multigate init`, makes its examples,
trains, and compares the test split with `--baseline lightgbm`: one model a task, the best by task
of six settings on validation, with the draft's features and not the place.  Drafts were changed
for what they lost on sports and groceries (docs/results/bakeoff.md), so that these two judge them
no longer.  Each run is one line of FOLDER/invented.jsonl: started again, the benchmark goes on
where it was stopped; another version needs another folder.

Prints a table in Markdown: means over the binary tasks with the paired difference over users, 95 %
(▲: the draft is ahead beyond chance, ▼: behind), and of all tasks those that are ahead and behind
beyond chance, each by the measure that it is judged by; of several seeds a row each.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from data_sets import businesses, invented
from papers.rows import Row, Rows

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.jobs import interface
from multigate.jobs.onboarding.draft import draft

WORLD = 11
"""The seed of the logs."""
LOGS = invented.WORLDS | {f"{name}2": write for name, write in businesses.WORLDS.items()}
REPLICATES = 500


def drafted(work: Path, key: Row) -> tuple[Config, Path]:
    """The draft of a log with a seed, and its examples, both made where they are not there."""
    name, log, examples = key["log"], work / key["log"], work / f"{key['log']}-examples"
    if not log.exists():
        log.mkdir()
        LOGS[name](log, WORLD)
    values = draft(log, name).values
    values["train"]["seed"] = key["seed"]
    values["evaluation"]["replicates"] = REPLICATES
    config = parse(Config, values, name)
    if not examples.exists():
        interface.examples(config, log, examples)
    return config, examples


def run(work: Path, key: Row) -> Row:
    """Draft and train a log with a seed, and compare the test split with LightGBM."""
    config, examples = drafted(work, key)
    checkpoint = work / "run" / "checkpoint"
    shutil.rmtree(checkpoint.parent, ignore_errors=True)  # what an interrupted training left
    interface.train(config, examples, checkpoint, progress=False)
    found = interface.evaluate(
        checkpoint, examples, split="test", options=config.evaluation, baseline="lightgbm"
    )["baseline"]
    assert found is not None
    judged = {name: one["measures"][one["judged"]] for name, one in found["tasks"].items()}
    return {
        "auc": _summary(found["auc"]),
        "within_users": _summary(found["within_users"]),
        "tasks": {name: _summary(one) for name, one in judged.items()},
    }


def _summary(compared: Any) -> dict[str, Any] | None:
    """Both values, the limits of the difference, and who is ahead beyond chance."""
    if compared is None or compared["production"]["value"] is None:
        return None
    ends = compared["difference"]
    return {
        "metric": compared["metric"],
        "draft": compared["candidate"]["value"],
        "lightgbm": compared["production"]["value"],
        "low": ends["low"],
        "high": ends["high"],
        "wins": compared["wins"],
    }


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown, and the tasks that are behind beyond chance."""
    lines = [
        "| log, seed | mean AUC: draft | LightGBM | difference, 95 % | within users: draft "
        "| LightGBM | difference, 95 % | tasks ahead, behind beyond chance, of all |",
        "|" + " --- |" * 8,
    ]
    behind = []
    for row in sorted(rows, key=lambda row: (list(LOGS).index(row["log"]), row["seed"])):
        cells = [f"{row['log']}, {row['seed']}"]
        for mean in (row["auc"], row["within_users"]):
            cells += _cells(mean)
        tasks = {name: one for name, one in row["tasks"].items() if one is not None}
        wins = [one["wins"] for one in tasks.values()]
        cells.append(f"{wins.count(True)}, {wins.count(False)} of {len(wins)}")
        lines.append(f"| {' | '.join(cells)} |")
        behind += [
            f"- {row['log']}, {row['seed']}: {name}, {one['metric']}: {', '.join(_cells(one))}"
            for name, one in tasks.items()
            if one["wins"] is False
        ]
    return lines + (["", "Behind beyond chance:", "", *behind] if behind else [])


def _cells(one: dict[str, Any] | None) -> list[str]:
    if one is None:
        return ["", "", ""]
    mark = {True: " ▲", False: " ▼", None: ""}[one["wins"]]
    ends = "" if one["low"] is None else f"{one['low']:+.4f} to {one['high']:+.4f}{mark}"
    return [f"{one['draft']:.4f}", f"{one['lightgbm']:.4f}", ends]


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of logs, examples, rows")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... of each training")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("invented", ("log", "seed"), options.work)
    wanted = [{"log": log, "seed": seed} for seed in range(options.seeds) for log in options.logs]
    rows.run(wanted, lambda key: run(options.work, key))
    print("\n".join(draw(rows.read())))


if __name__ == "__main__":
    main()
