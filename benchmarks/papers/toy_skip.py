"""The toy of "balanced assignments": biased skip at other batch sizes and baselines.

    python benchmarks/papers/toy_skip.py          # some 10 minutes
    python benchmarks/papers/toy_skip.py --table

The paper says that biased skip does not solve the task; in `balanced_toy.py` it does. The paper
states neither the batch size nor what the baseline averages, so both vary here: all 100 points or
20 of them a step; a baseline of the weighted loss of the rows kept (ours), of the plain loss of
all rows drawn, or none. REINFORCE, temperature 1, 10 seeds, 10,000 steps of Adam 0.1. Each
setting is a row of docs/results/papers/toy_skip.jsonl.
"""

import argparse
import json
import sys
from pathlib import Path

from rows import Row, Rows, replace_table

sys.path.insert(0, str(Path(__file__).parents[1]))

STRATEGIES = ("none", "skip", "skip_iw")
BATCHES = (100, 20)
BASELINES = ("weighted", "plain", "none")
TEMPERATURES = (1.0,)
KEY = ("strategy", "batch", "baseline")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--steps", type=int, default=10_000)
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("toy_skip", KEY)
    if not options.table:
        wanted = [
            {"strategy": strategy, "batch": batch, "baseline": baseline}
            for batch in BATCHES
            for baseline in BASELINES
            for strategy in STRATEGIES
        ]
        rows.run(wanted, lambda run: measure(run, options.seeds, options.steps))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def measure(run: Row, seeds: int, steps: int) -> Row:
    """Train all seeds side by side."""
    from balanced_toy import SOLVED, points, train

    batch = None if run["batch"] == len(points()[0]) else run["batch"]
    found, expected = train(
        run["strategy"], False, False, TEMPERATURES, seeds, steps, batch, run["baseline"]
    )
    return {
        "solved": int((found[0] < SOLVED).sum()),
        "seeds": seeds,
        "steps": steps,
        "mse": [round(float(value), 4) for value in found[0]],
        "expected_mse": [round(float(value), 4) for value in expected[0]],
    }


def write_table(rows: list[Row]) -> None:
    """A row per batch and baseline, a column per estimator: runs solved, and the median MSE.

    Of an even number of seeds, the median is the upper of the two in the middle.
    """
    lines = [
        "| points a step | baseline | "
        + " | ".join(f"{name}: solved, median of expected MSE" for name in STRATEGIES)
        + " |",
        "| --- | --- " + "| --- " * len(STRATEGIES) + "|",
    ]
    by_key = {tuple(row[name] for name in KEY): row for row in rows}
    for batch in BATCHES:
        for baseline in BASELINES:
            cells = []
            for strategy in STRATEGIES:
                row = by_key.get((strategy, batch, baseline))
                if row is None:
                    cells.append("")
                    continue
                middle = sorted(row["expected_mse"])[len(row["expected_mse"]) // 2]
                cells.append(f"{row['solved']} of {row['seeds']}, {middle:.3f}")
            if any(cells):
                lines.append(f"| {batch} | {baseline} | {' | '.join(cells)} |")
    replace_table("toy_skip", lines)


if __name__ == "__main__":
    main()
