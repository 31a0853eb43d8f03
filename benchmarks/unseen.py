"""Unedited drafts on logs that no default was chosen on, beside the rules of the version before.

    python benchmarks/unseen.py --work FOLDER [--logs jobs shop courses] [--seeds 2]

Makes each log anew (`LOGS`: the same world, other categories, tastes and sizes), drafts it with
`multigate init`, makes its examples, trains, and measures the test split beside LightGBM on the
same examples.  Variants change one thing of the draft:

- `draft`: as `init` writes it;
- `first category`: users have a rate of their own in the first category and the first list of the
  log, whatever they are (the rule of init before it looked for tastes);
- `all pairs`: every pair of features that fits has weights, not those alone for which the log shows
  an effect;
- `labelled rows alone`: the teacher does not teach rows without a label;
- `own gates`: each task has a gate of its own;
- `slow pairs`: weights of pairs learn as fast as all others, where the draft has some;
- `half the rate`: so do they, and all weights half as fast: the rates of the version before;
- `no lines`: outputs of regression tasks are not blended with a straight line of the numbers.

Each run is one line of WORK/unseen.jsonl: started again, the benchmark goes on where it was
stopped; another version of `init` needs another folder.

Prints a table in Markdown: the mean AUC of the binary tasks, and for the number that few
rows have (what was paid) the RMSE over its deviation.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from papers.rows import Row, Rows, cell

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.jobs import interface
from multigate.jobs.onboarding.draft import draft

VARIANTS = (
    "draft",
    "first category",
    "all pairs",
    "labelled rows alone",
    "own gates",
    "slow pairs",
    "half the rate",
    "no lines",
)
MEASURED = (("validation", "mean AUC"), ("test", "mean AUC"), ("test", "paid"))
DAYS = 28
SLATE = 8
START = 1_780_000_000


@dataclass(frozen=True)
class Log:
    """A log to make; categories by name: (values, strength of tastes)."""

    users: int
    items: int
    rows: int
    categories: dict[str, tuple[int, float]]
    seed: int
    """Of the world."""
    habit: float = 0.6
    """Deviation of how often users do a thing, in logits."""
    quality: float = 0.4
    """Deviation of how good items are."""
    home: str | None = None
    """A category of which each user has one value, and likes its items more."""


LOGS = {
    "jobs": Log(
        1500,
        1800,
        26_000,
        {"size": (4, 0.0), "field": (10, 0.8), "town": (6, 0.3)},
        seed=1,
        home="town",
    ),
    "shop": Log(2500, 1200, 36_000, {"brand": (60, 0.0), "shelf": (12, 0.8)}, seed=2),
    "courses": Log(
        900, 600, 30_000, {"hours": (7, 0.0), "kind": (10, 0.9), "teacher": (36, 0.5)}, seed=3
    ),
}


def write_log(log: Log, folder: Path) -> None:
    """Lists of items with what users did: opened, bought, what they paid, put aside."""
    rng = np.random.default_rng(log.seed)
    users, items = log.users, log.items
    of_item = {name: rng.integers(0, values, items) for name, (values, _) in log.categories.items()}
    tastes = {
        name: rng.normal(0, taste, (users, values))
        for name, (values, taste) in log.categories.items()
    }
    quality = rng.normal(0, log.quality, items)
    price = np.round(np.exp(rng.normal(3.5, 0.7, items)), 2)
    born = np.where(rng.random(items) < 0.5, 0, rng.uniform(0, DAYS, items))
    habits = rng.normal(0, log.habit, (users, 3))
    activity = rng.pareto(1.5, users) + 0.2
    requests = log.rows // SLATE
    user = rng.choice(users, requests, p=activity / activity.sum())
    day = np.sort(rng.uniform(0, DAYS, requests))
    shown = np.array([rng.choice(np.flatnonzero(born <= at), SLATE, replace=False) for at in day])
    user, request = np.repeat(user, SLATE), np.repeat(np.arange(requests), SLATE)
    item, place = shown.ravel(), np.tile(np.arange(SLATE), requests)
    home = rng.integers(0, log.categories[log.home][0], users) if log.home else None
    liking = quality[item] + sum(table[user, of_item[name][item]] for name, table in tastes.items())
    if log.home is not None and home is not None:
        liking += 0.8 * (home[user] == of_item[log.home][item])

    def done(base: float, habit: int, slope: float) -> np.ndarray:
        logit = base + slope * liking + habits[user, habit]
        return rng.random(len(user)) < 1 / (1 + np.exp(-logit + 0.1 * place * (habit == 0)))

    opened = done(-1.6, 0, 1.0)
    bought = opened & done(-1.6, 1, 1.0)
    aside = ~opened & done(-2.6, 2, -0.8)
    paid = np.round(price[item] * rng.choice([1, 1, 1, 2, 3], len(item)), 2)
    table = pl.DataFrame(
        {
            "time": (START + 86_400 * day).astype(np.int64)[request],
            "request": request,
            "user": [f"u{at}" for at in user],
            "item": [f"i{at}" for at in item],
            "place": place,
            **({} if home is None else {"home": [f"{log.home}{at}" for at in home[user]]}),
            "device": rng.choice(["phone", "desktop"], requests)[request],
            **{name: [f"{name}{at}" for at in codes[item]] for name, codes in of_item.items()},
            "price": price[item],
            "opened": opened.astype(int),
            "bought": bought.astype(int),
            "paid": pl.Series(paid).set(pl.Series(~bought), None),
            "put_aside": aside.astype(int),
        }
    )
    folder.mkdir(parents=True)
    table.write_csv(folder / "log.csv")


def changed(values: dict[str, Any], variant: str, log: Log) -> None:
    """Change a draft in the one thing that a variant is named after."""
    if variant == "first category":
        values["contract"]["rates"]["of"] = ["user", "item", ["user", next(iter(log.categories))]]
    elif variant == "all pairs":
        values["model"]["wide"].pop("pairs", None)
        values["model"]["wide"] |= {"crosses": 8192, "crosses_rate": 4.0}
    elif variant == "labelled rows alone":
        values["train"]["teacher"]["unlabelled"] = 0
    elif variant == "own gates":
        values["model"]["shared_gate"] = "none"
    elif variant in ("slow pairs", "half the rate"):
        values["model"].get("wide", {}).pop("crosses_rate", None)
        if variant == "half the rate":
            values["train"]["learning_rate"] /= 2
            values["train"]["weight_decay"] *= 2  # as much in all
    elif variant == "no lines":
        values["model"]["linear"] = False
    elif variant != "draft":
        raise ValueError(variant)


def run(work: Path, key: Row) -> Row:
    """Train a variant of a log's draft with a seed; measure both splits, and LightGBM."""
    log, folder = LOGS[key["log"]], work / key["log"]
    if not folder.exists():
        write_log(log, folder)
    values = draft(folder, key["log"]).values
    changed(values, key["variant"], log)
    values["train"]["seed"] = key["seed"]
    values["evaluation"]["replicates"] = 50
    config = parse(Config, values, key["variant"])
    rates = [one for one in values["contract"]["rates"]["of"] if not isinstance(one, str)]
    rated = " ".join(category for _, category in rates)
    examples = work / f"{key['log']} {rated}".strip()
    if not examples.exists():
        interface.examples(config, folder, examples)
    shutil.rmtree(work / "run", ignore_errors=True)  # with what an interrupted training left
    checkpoint = work / "run" / "checkpoint"
    interface.train(config, examples, checkpoint, progress=False)
    found: Row = {"rates": rated}
    for split in ("validation", "test"):
        assessed = interface.evaluate(
            checkpoint, examples, split=split, options=config.evaluation, baseline="lightgbm"
        )
        assert assessed["baseline"] is not None
        tasks = assessed["baseline"]["tasks"]
        judged = {name: one["measures"][one["judged"]] for name, one in tasks.items()}
        ours = {name: value_of(one["candidate"]) for name, one in judged.items()}
        theirs = {name: value_of(one["production"]) for name, one in judged.items()}
        for which, measured in (("ours", ours), ("lightgbm", theirs)):
            areas = [value for name, value in measured.items() if judged[name]["metric"] == "auc"]
            found[f"{which}, {split}"] = {"mean AUC": float(np.mean(areas)), **measured}
    return found


def value_of(interval: Any) -> float:
    return np.nan if interval is None or interval["value"] is None else float(interval["value"])


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown, of the means over the seeds."""
    lines = [
        "| log | variant | mean AUC: validation | LightGBM | test | LightGBM | paid, RMSE: test "
        "| LightGBM | seeds |",
        "|" + " --- |" * 9,
    ]
    for log in LOGS:
        for variant in VARIANTS:
            same = [row for row in rows if (row["log"], row["variant"]) == (log, variant)]
            if not same:
                continue
            cells = [
                cell([row[f"{which}, {split}"][measure] for row in same], 4)
                for split, measure in MEASURED
                for which in ("ours", "lightgbm")
            ]
            lines.append(f"| {log} | {variant} | {' | '.join(cells)} | {len(same)} |")
    return lines


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of logs, examples, rows")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--seeds", type=int, default=2, help="seeds 0, 1, ... of each variant")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("unseen", ("log", "variant", "seed"), options.work)
    wanted = [
        {"log": log, "variant": variant, "seed": seed}
        for seed in range(options.seeds)
        for log in options.logs
        for variant in options.variants
    ]
    rows.run(wanted, lambda key: run(options.work, key))
    print("\n".join(draw(rows.read())))


if __name__ == "__main__":
    main()
