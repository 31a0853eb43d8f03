"""The weight of MOESART's Trimmed Lasso: section S3.3 of the paper, on a tenth of MovieLens 1M.

    python benchmarks/papers/trimmed_lasso.py --data FOLDER --work FOLDER      # some 10 minutes
    python benchmarks/papers/trimmed_lasso.py --table

FOLDER of the data holds the publisher's ratings.dat.  The budget is reduced: data and model are
those of `reduced.py`, the learning rate is 1e-3 for every weight, and each weight has three seeds.
The paper (table S2) compares the best of its 500 trials without with the best of those with Trimmed
Lasso, at task weights 0.1 and 0.9; here each weight of its grid has a row.  Rows go to
docs/results/papers/trimmed_lasso.jsonl.
"""

import argparse
import json
import shutil
from pathlib import Path

import reduced
from rows import Row, Rows, cell, mean_and_error, replace_table
from two_tasks import configuration, mean, measure_checkpoint

KEY = ("lasso", "seed")
WEIGHTS = (0.0, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
TASKS = 2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and checkpoints")
    arguments.add_argument("--lasso", nargs="+", type=float, default=list(WEIGHTS))
    arguments.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of each")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("trimmed_lasso", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        examples = reduced.make_examples(options.data, options.work)
        wanted = [
            {"lasso": lasso, "seed": seed}
            for seed in range(options.seeds)
            for lasso in options.lasso
        ]
        rows.run(wanted, lambda run: measure(run, examples, options.work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def measure(run: Row, examples: Path, work: Path) -> Row:
    """Train with one weight, and measure on the test split.

    Returns:
        As `measure_checkpoint`, and `tail`, the router's probability beyond its k likeliest
        experts, mean over training rows and tasks in the last epoch; None without Trimmed Lasso.
    """
    from multigate.jobs.tune import with_settings
    from multigate.model.checkpoints.checkpoint import read_history
    from multigate.model.training import train

    base = {"model": "moesart", "weight": reduced.WEIGHT, "seed": run["seed"]}
    config = with_settings(
        configuration(base, reduced.make_values(), examples),
        {"model.gate.trimmed_lasso_weight": run["lasso"], "train.learning_rate": 1e-3},
    )
    checkpoint = work / f"lasso-{run['lasso']:g}-{run['seed']}"
    if not checkpoint.exists():
        train.train(config, examples, checkpoint, progress=False, resume=True)
    last = read_history(checkpoint)[-1]
    found = measure_checkpoint(checkpoint, examples, reduced.WEIGHT)
    shutil.rmtree(checkpoint)
    tail = last["regularisation"] / (TASKS * run["lasso"]) if run["lasso"] else None
    return found | {"tail": tail}


def write_table(rows: list[Row]) -> None:
    """A row per weight; differences are from no Trimmed Lasso with the same seed."""
    lines = [
        "| Trimmed Lasso | test loss x 100 | minus none | AUC x 100 | MSE "
        "| probability beyond k | best epoch | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    without = {row["seed"]: row["loss"] for row in rows if row["lasso"] == 0}
    for lasso in sorted({row["lasso"] for row in rows}):
        found = [row for row in rows if row["lasso"] == lasso]
        gaps = [100 * (r["loss"] - without[r["seed"]]) for r in found if r["seed"] in without]
        lines.append(
            f"| {f'{lasso:g}' if lasso else 'none'} "
            f"| {cell([100 * row['loss'] for row in found], 2)} "
            f"| {signed(gaps) if lasso and gaps else ''} "
            f"| {cell([100 * row['auc'] for row in found], 2)} "
            f"| {cell([row['mse'] for row in found], 4)} "
            f"| {format(mean(found, 'tail'), '.3f') if lasso else ''} "
            f"| {mean(found, 'best_epoch'):.0f} | {len(found)} |"
        )
    replace_table("trimmed_lasso", lines)


def signed(values: list[float]) -> str:
    """Mean difference with its sign, and its standard error where there are several."""
    difference, error = mean_and_error(values)
    return f"{difference:+.2f}" if error is None else f"{difference:+.2f} ± {error:.2f}"


if __name__ == "__main__":
    main()
