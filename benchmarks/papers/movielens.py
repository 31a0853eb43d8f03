"""MovieLens 1M, two tasks: table 1 and S4 of the paper on MOESART.

    python benchmarks/papers/movielens.py --data FOLDER --work FOLDER              # some hours
    python benchmarks/papers/movielens.py --data FOLDER --work FOLDER --gates topk moesart --seeds 2
    python benchmarks/papers/movielens.py --data FOLDER --work FOLDER --setting paper
    python benchmarks/papers/movielens.py --table         # the page's tables from the rows so far

FOLDER of the data holds the publisher's ratings.dat.  Every run is early-stopped on the validation
loss, and adds one row to docs/results/papers/movielens.jsonl, from which the tables of
docs/results/papers.md are made.  Models are the gates of `two_tasks.GATES`, `shared_bottom`, and
`single_task:watch` and `single_task:rating`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import two_tasks
from rows import Row, cell, replace_table
from settings import without_additions

from multigate.configs import load

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

DSELECT_PAPER = {
    ("dselect_k", 0.9): (36.79, 0.02, 1.1),
    ("shared_bottom", 0.9): (36.87, 0.01, None),
    ("gumbel_softmax", 0.9): (36.88, 0.04, 3.6),
    ("dselect_k_static", 0.9): (36.90, 0.02, 1.3),
    ("topk_static", 0.9): (36.93, 0.06, 2.0),
    ("topk", 0.9): (37.41, 0.03, 2.0),
    ("softmax", 0.9): (38.47, 0.10, 8.0),
    ("dselect_k", 0.1): (40.06, 0.06, 1.5),
    ("topk_static", 0.1): (40.12, 0.04, 2.0),
    ("dselect_k_static", 0.1): (40.15, 0.05, 2.7),
    ("topk", 0.1): (40.27, 0.08, 2.0),
    ("shared_bottom", 0.1): (40.37, 0.02, None),
    ("softmax", 0.1): (40.90, 0.01, 8.0),
    ("gumbel_softmax", 0.1): (41.71, 0.03, 2.7),
}
"""DSelect-k, table 1: test loss x 100 by model and weight of the first task, its standard error
over 100 repetitions, and the experts that a task uses of 8."""


def in_dselects_unit(row: Row) -> float:
    """A row's test loss with half the rating's error, as DSelect-k's paper seems to count it.

    Its rating losses (table C.5: 0.388 to 0.417) are half of MOESART's (0.743 to 0.848) on the same
    data: a mean over all rows, of which the negatives have no rating, or half the squared error.
    """
    weight: float = row["weight"]
    return float(weight * row["log_loss"] + (1 - weight) * row["mse"] / 2)


def write_dselects(rows: list[Row]) -> None:
    """Our tuned rows beside table 1 of DSelect-k, in its unit, into docs/results/papers.md."""
    lines = [
        "| weight | model | test loss x 100, rating's error halved | experts a task | seeds "
        "| paper: loss | paper: experts a task of 8 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for weight in two_tasks.WEIGHTS:
        ours: dict[str, list[Row]] = {}
        for row in two_tasks.with_single_task(rows):
            if (row["weight"], row["setting"]) == (weight, "tuned"):
                ours.setdefault(row["model"], []).append(row)
        theirs = [model for model, w in DSELECT_PAPER if w == weight and model not in ours]
        losses = {model: [100 * in_dselects_unit(row) for row in ours[model]] for model in ours}
        for model in sorted(ours, key=lambda m: sum(losses[m]) / len(losses[m])) + theirs:
            found = ours.get(model, [])
            used = [np.mean(list(row["experts"].values())) for row in found]
            loss, error, experts = DSELECT_PAPER.get((model, weight), (None, None, None))
            lines.append(
                f"| {weight:g} | {model} | {cell(losses[model], 2) if found else ''} "
                f"| {f'{np.mean(used):.1f}' if found else ''} | {len(found) or ''} "
                f"| {f'{loss:.2f} ± {error:.2f}' if loss else ''} | {experts or ''} |"
            )
    replace_table("movielens dselect_k", lines)


def make_examples(data: Path, work: Path) -> Path:
    """The preset's examples: one negative per rating, random split 80/10/10; made once."""
    from multigate.pipeline import job

    examples = work / "examples"
    if not examples.exists():
        work.mkdir(parents=True, exist_ok=True)
        job.run(load("movielens"), data, examples)
    return examples


def make_values() -> dict[str, Any]:
    """The preset with the paper's towers (S6.2), trained until it stops improving.

    Without the wide term and the dropped ids, which the preset takes from the defaults.
    """
    values = without_additions(load("movielens").model_dump(mode="json"))
    values["model"]["towers"] = {"units": [256]}
    values["train"] |= {"epochs": 60, "patience": 4}
    return values


if __name__ == "__main__":
    two_tasks.main(__doc__.splitlines()[0], "movielens", make_examples, make_values, PUBLISHED)
