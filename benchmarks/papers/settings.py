"""The papers' setting beside ours, in the units of our configuration.

`ours`: standardised ratings, and towers that start at the base rate. `paper`, as in the papers on
DSelect-k and MOESART: raw stars, and towers that start at 0, so the first MSE is the mean square of
the stars, near 14. `averaged` is ours, and evaluates moving averages of the weights. None has the
wide term and the dropped ids of today's defaults, which the papers do not have.
docs/results/papers.md has the table of what each paper says.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multigate.configs.files import ExamplesFolder

SETTINGS = ("ours", "averaged", "paper")
TARGETS = ("standardised", "raw")

DSELECT_BATCH = 128
"""Rows of a batch on MovieLens in the paper on DSelect-k (appendix D.1)."""
DSELECT_ENTROPY = (0.1, 1.0, 10.0)
"""The paper's lambda on MovieLens."""
DSELECT_GAMMA = (1.0, 10.0)
"""The paper's gamma on MovieLens."""
MEETS_K = 0.05
"""Experts beyond k that a task's mean over rows may have: per example, a few rows are always on the
slope of a bit, however strong the penalty."""


def entropy_weight(strength: float, *, static: bool, batch: int = DSELECT_BATCH) -> float:
    """DSelect-k's lambda in our unit.

    The paper, and its authors' code, add lambda times the *sum* of the rows' entropies to the
    *mean* of the rows' losses; ours is lambda times the mean.  A static gate has one entropy for
    all rows, so there the two are the same.

    Args:
        strength: the paper's lambda.
        static: whether the gate ignores the example.
        batch: rows of the paper's batch.
    """
    return strength if static else strength * batch


def without_additions(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration's values without the parts of the model that the papers do not have."""
    values = json.loads(json.dumps(values))
    values["model"] |= {"wide": None, "id_dropout": 0.0, "id_dropouts": {}, "linear": False}
    return values


def raw_examples(examples: Path) -> Path:
    """The same examples with regression labels as they are, and towers that start at 0.

    A link to every file, and statistics that say mean 0 and standard deviation 1 of every
    regression label (binary labels keep their rate: with one negative per positive it starts the
    tower at 0 anyway).

    Args:
        examples: folder of examples.

    Returns:
        The folder `<examples>-raw`; made once.
    """
    raw = examples.with_name(f"{examples.name}-raw")
    if raw.exists():
        return raw
    unfinished = raw.with_name(f"{raw.name}-unfinished-{os.getpid()}")
    unfinished.mkdir()
    name = ExamplesFolder(examples).statistics.name
    for entry in examples.iterdir():
        if entry.name != name:
            (unfinished / entry.name).symlink_to(entry.resolve())
    contract = json.loads(ExamplesFolder(examples).contract.read_text(encoding="utf-8"))
    statistics = json.loads(ExamplesFolder(examples).statistics.read_text(encoding="utf-8"))
    tasks = contract["contract"]["tasks"]
    for task, found in statistics["tasks"].items():
        if tasks[task]["type"] == "regression":
            found |= {"mean": 0.0, "std": 1.0}
    (unfinished / name).write_text(json.dumps(statistics), encoding="utf-8")
    unfinished.rename(raw)
    return raw


def with_targets(examples: Path, targets: str) -> Path:
    """The examples' folder whose regression labels are `standardised` or `raw`."""
    return raw_examples(examples) if targets == "raw" else examples


def meets_k(experts: Mapping[Any, float], k: int | None) -> bool | None:
    """Whether every task's rows use at most k experts in the mean, as the papers ask.

    Args:
        experts: mean experts of a row, by task.
        k: None where the model has no k.
    """
    return None if k is None else all(used <= k + MEETS_K for used in experts.values())
