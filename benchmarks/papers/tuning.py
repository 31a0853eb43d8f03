"""How much a gate depends on tuning: S5 of the paper on MOESART, on a tenth of MovieLens 1M.

    python benchmarks/papers/tuning.py --data FOLDER --work FOLDER             # some 15 minutes
    python benchmarks/papers/tuning.py --table

FOLDER of the data holds the publisher's ratings.dat.  Each trial is one random draw of
`multigate tune` from the gate's space, and one row of docs/results/papers/tuning.jsonl; trial n of
either gate has the same learning rate.  From the rows: the expected test loss of the best of s
trials by validation loss, s trials drawn from the bag with replacement.  The paper repeats such
draws 1,000 times over 500 trials; here the expectation is exact, and the interval comes from 2,000
resamples of the bag.

The budget is reduced: data and model are those of `reduced.py`, 16 trials a gate.  The learning
rate is drawn from 2e-4 to 5e-3 (the paper: 5e-5 to 5e-4), because 8 epochs of a tenth of the data
are few steps; Trimmed Lasso from the paper's set.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import reduced
from rows import Row, Rows, replace_table
from two_tasks import configuration, random_trial

KEY = ("gate", "trial")
_RATES = {"low": 2e-4, "high": 5e-3, "log": True}
SPACES: dict[str, dict[str, Any]] = {
    "moesart": {
        "train.learning_rate": _RATES,
        "model.gate.trimmed_lasso_weight": {"choices": [0.0, 0.01, 0.1, 1.0, 10.0]},
    },
    "topk": {"train.learning_rate": _RATES},
}
BEST_OF = (1, 2, 3, 5, 8, 16)
RESAMPLES = 2000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of ratings.dat")
    arguments.add_argument("--work", type=Path, help="folder for examples and searches")
    arguments.add_argument("--gates", nargs="+", default=list(SPACES), choices=SPACES)
    arguments.add_argument("--trials", type=int, default=16, help="trials of each gate")
    arguments.add_argument("--table", action="store_true", help="only write the page's table")
    options = arguments.parse_args()
    rows = Rows("tuning", KEY)
    if not options.table:
        if options.data is None or options.work is None:
            arguments.error("--data and --work are needed to run; --table writes what there is")
        examples = reduced.make_examples(options.data, options.work)
        wanted = [
            {"gate": gate, "trial": trial}
            for trial in range(options.trials)
            for gate in options.gates
        ]
        rows.run(wanted, lambda run: measure(run, examples, options.work))
    write_table(rows.read())
    print(json.dumps({"rows": len(rows.read())}))


def measure(run: Row, examples: Path, work: Path) -> Row:
    """One trial."""
    base = {"model": run["gate"], "weight": reduced.WEIGHT, "seed": 0}
    config = configuration(base, reduced.make_values(), examples)
    out = work / f"tune-{run['gate']}-{run['trial']}"
    return random_trial(config, SPACES[run["gate"]], run["trial"], examples, out, reduced.WEIGHT)


def expected(validation: np.ndarray, test: np.ndarray, best_of: int) -> np.ndarray:
    """Expected test loss of the best of s trials by validation loss.

    With N trials in order of their validation loss, the best of s draws with replacement is the
    one of rank i (from 0) with probability ((N - i) / N)^s - ((N - i - 1) / N)^s.

    Args:
        validation: (..., N) losses.
        test: (..., N) losses of the same trials.
        best_of: s.

    Returns:
        (...).
    """
    N = validation.shape[-1]
    left = 1 - np.arange(N + 1) / N
    chance = left[:-1] ** best_of - left[1:] ** best_of
    ordered = np.take_along_axis(test, np.argsort(validation, axis=-1, kind="stable"), axis=-1)
    found: np.ndarray = ordered @ chance
    return found


def resample(
    bags: list[tuple[np.ndarray, np.ndarray]], best_of: int, seed: int = 0
) -> list[np.ndarray]:
    """`expected` of every bag itself, and of its resamples: each (1 + R,).

    Bags of the same size share their draws: their trials are pairs of the same learning rate.
    """
    found = []
    for validation, test in bags:
        N = len(validation)
        drawn = np.random.default_rng(seed).integers(0, N, (RESAMPLES, N))
        whole = expected(validation, test, best_of)
        found.append(np.append(whole, expected(validation[drawn], test[drawn], best_of)))
    return found


def write_table(rows: list[Row]) -> None:
    """Best-of-s losses of both gates on the trials that both have, and their difference."""
    by_gate = {gate: {row["trial"]: row for row in rows if row["gate"] == gate} for gate in SPACES}
    both = sorted(set.intersection(*(set(found) for found in by_gate.values())))
    lines = [
        f"| best of | {' | '.join(f'{gate}, test loss x 100' for gate in SPACES)} "
        "| moesart less topk |",
        "| --- | --- | --- | --- |",
    ]
    bags = [
        (
            np.array([found[trial]["val_loss"] for trial in both]),
            100 * np.array([found[trial]["loss"] for trial in both]),
        )
        for found in by_gate.values()
    ]
    for best_of in (s for s in BEST_OF if s <= len(both)):
        losses = resample(bags, best_of)
        cells = [f"{loss[0]:.2f} {limits(loss, '.2f')}" for loss in losses]
        gap = losses[0] - losses[1]
        lines.append(f"| {best_of} | {' | '.join(cells)} | {gap[0]:+.2f} {limits(gap, '+.2f')} |")
    lines += ["", f"{len(both)} trials of each gate."]
    replace_table("tuning", lines)


def limits(values: np.ndarray, form: str) -> str:
    """The 95 % interval of resamples, in brackets."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"({low:{form}} to {high:{form}})"


if __name__ == "__main__":
    main()
