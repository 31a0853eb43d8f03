"""Drafts of `multigate init` on Open Bandit, whose clicks are too rare for one test split.

    python benchmarks/drafts_folds.py --data FOLDER --work FOLDER [--seeds 3] [--page PAGE]

Both policies' logs are one log, as in `drafts.py`.  Each day from the third on is the test split of
a fold: the day before it validates, all earlier ones train, and later rows are cut off.  A run's
AUC counts the pairs of a click and another row of the same fold, over all folds and seeds.  The
share of a draft is its distance from 0.5 over the preset's; its interval, and that of the
difference, are of 2,000 draws of users, the same for both (a paired bootstrap).  Each training is
one line of WORK/folds.jsonl: started again, the benchmark goes on.  Prints a table, writes it into
the page between its marks, and prints one JSON line last.
"""

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from drafts import LOGS, RUNS, hide, once
from numpy.typing import NDArray
from papers.rows import Row, Rows, replace_table

LOG = LOGS["open-bandit-men"]
DAY = timedelta(days=1)
DAYS = [datetime(2019, 11, day, tzinfo=UTC) for day in range(26, 31)]
DRAWS = 2000


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the logs' folders")
    parser.add_argument("--work", type=Path, required=True, help="folder for what runs write")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each training")
    parser.add_argument("--page", type=Path, help="Markdown page to write the table into")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = Rows("folds", ("seed", "fold", "run"), options.work)
    wanted = [
        {"seed": seed, "fold": fold, "run": run}
        for seed in range(options.seeds)
        for fold in range(len(DAYS))
        for run in RUNS
    ]
    rows.run(wanted, lambda key: measure(options, **key))
    lines = draw(rows.read())
    print("\n".join(lines))
    if options.page is not None:
        replace_table("folds", lines, options.page)
    print(json.dumps({"rows": len(rows.read())}))


def measure(options: argparse.Namespace, seed: int, fold: int, run: str) -> dict[str, Any]:
    """One training; its scores of the fold's day, in the order of time."""
    import multigate
    from multigate.configs.files import TIME
    from multigate.model.data.rows import read_rows
    from multigate.model.evaluation.scored import score

    folder, config = prepared(options, run)
    begins = DAYS[fold]
    values = multigate.configs.load(config).model_dump(mode="json", exclude_unset=True)
    starts = {"validation": (begins - DAY).isoformat(), "test": begins.isoformat()}
    values["pipeline"]["split"] = {"by": "time", **starts}
    values["pipeline"]["cut_off"] = (begins + DAY).isoformat()
    values.setdefault("train", {})["seed"] = seed
    examples = once(
        options.work / f"examples-{run}-{fold}",
        lambda out: multigate.examples(values, str(folder), out / "examples"),
    )
    out = once(
        options.work / f"checkpoint-{run}-{fold}-{seed}",
        lambda out: multigate.train(
            values, examples / "examples", out / "checkpoint", progress=False
        ),
    )
    found = read_rows(examples / "examples", "test")
    contract = multigate.configs.load(config).contract
    [task] = contract.tasks
    items, users = (found.table[name].to_pylist() for name in (contract.item, contract.user))
    names = [f"{at} {item}" for at, item in zip(found.table[TIME].to_pylist(), items, strict=True)]
    order = np.argsort(names, kind="stable")
    scores = score(out / "checkpoint", found).scores[task]
    return {
        "rows": [names[at] for at in order],
        "users": [str(users[at]) for at in order],
        "labels": found.labels(contract)[order, 0].astype(int).tolist(),
        "scores": [float(f"{one:.6g}") for one in scores[order]],
    }


def prepared(options: argparse.Namespace, run: str) -> tuple[Path, str]:
    """A run's log, and its configuration: that of the whole log."""
    source = options.work / "log"
    if not source.exists():
        source.mkdir()
        for file, new in LOG.files.items():
            (source / new).symlink_to((options.data / file).resolve())
    if run == "preset":
        return once(options.work / "converted", partial(LOG.convert, source)), LOG.preset
    folder = once(options.work / "hidden", partial(hide, source)) if run == "hidden" else source
    config = options.work / f"{run}.yaml"
    if not config.exists():
        command = ["init", "--data", folder, "--out", config]
        subprocess.run([sys.executable, "-m", "multigate", *command, "--json"], check=True)
    return folder, str(config)


class Pairs:
    """The pairs of a click and another row, of one fold and run, over all seeds.

    Args:
        rows: one for each seed.
        users: names of users -> their number.
    """

    def __init__(self, rows: list[Row], users: dict[str, int]) -> None:
        self.labels = np.array(rows[0]["labels"]) == 1
        of = np.array([users[user] for user in rows[0]["users"]])
        self.clicks, self.others = of[self.labels], of[~self.labels]
        wins = []
        for row in rows:
            scores = np.array(row["scores"])
            click, other = scores[self.labels, None], scores[None, ~self.labels]
            wins.append((click > other) + 0.5 * (click == other))
        self.wins: NDArray[np.float64] = np.mean(wins, axis=0)

    def count(self, weights: NDArray[np.float64]) -> tuple[float, float]:
        """Pairs that are ranked rightly, and all pairs, with such weights of the users."""
        click, other = weights[self.clicks], weights[self.others]
        return float(click @ self.wins @ other), float(click.sum() * other.sum())


def area(pairs: list[Pairs], weights: NDArray[np.float64]) -> float:
    """AUC over all folds."""
    counted = np.array([one.count(weights) for one in pairs]).sum(axis=0)
    return float(counted[0] / counted[1])


def draw(rows: list[Row]) -> list[str]:
    """The table in Markdown."""
    first = [row for row in rows if row["run"] == "preset" and row["seed"] == 0]
    named = {user: at for at, user in enumerate(sorted({u for row in first for u in row["users"]}))}
    user_of = {
        name: user for row in first for name, user in zip(row["rows"], row["users"], strict=True)
    }
    pairs: dict[str, list[Pairs]] = {run: [] for run in RUNS}
    clicks = 0
    for fold in sorted({row["fold"] for row in first}):
        for run in RUNS:
            some = [row for row in rows if (row["fold"], row["run"]) == (fold, run)]
            if not some:
                continue
            # A draft names users otherwise, and the rows are the same.
            users = [user_of[name] for name in some[0]["rows"]]
            pairs[run].append(Pairs([{**row, "users": users} for row in some], named))
        clicks += int(pairs["preset"][-1].labels.sum())
        for run in RUNS[1:]:
            if len(pairs[run]) == len(pairs["preset"]):
                assert np.array_equal(pairs[run][-1].labels, pairs["preset"][-1].labels)
    whole = np.ones(len(named))
    auc = {run: area(some, whole) for run, some in pairs.items() if some}
    random = np.random.default_rng(0)
    draws: dict[str, list[float]] = {run: [] for run in auc}
    for _ in range(DRAWS):
        weights = np.bincount(random.integers(len(named), size=len(named)), minlength=len(named))
        for run in auc:
            draws[run].append(area(pairs[run], weights.astype(float)))
    lines = [
        f"| run | AUC over {clicks} clicks | 95 % | difference from the preset | "
        "share of the preset's distance | 95 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    preset = np.array(draws["preset"])
    for run, value in auc.items():
        drawn = np.array(draws[run])
        low, high = np.percentile(drawn, [2.5, 97.5])
        line = f"| {run} | {value:.3f} | {low:.3f} to {high:.3f} |"
        if run == "preset":
            lines.append(line + "  |  |  |")
            continue
        less, more = np.percentile(drawn - preset, [2.5, 97.5])
        share = (value - 0.5) / (auc["preset"] - 0.5)
        least, most = np.percentile((drawn - 0.5) / (preset - 0.5), [2.5, 97.5])
        lines.append(
            f"{line} {value - auc['preset']:+.3f} ({less:+.3f} to {more:+.3f}) "
            f"| {share:.0%} | {least:.0%} to {most:.0%} |"
        )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
