"""The regressions by which a draft tells effects from chance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl

from multigate.configs.contract import Contract
from multigate.configs.files import LABEL
from multigate.configs.sections.rates import Rates, always_one

PRIOR = Rates(of=("user",)).strength
"""Labels that the mean weighs as much as, where a rate is made of few."""
_NEWTON_STEPS = 12
_ROUNDING = 1e-9  # of rates, which are about 1
_KEPT = 8  # features that a choice is made among


def codes(column: str) -> pl.Expr:
    """Whole numbers from 1 in the place of values, for speed; null where there is none."""
    return pl.col(column).rank("dense").cast(pl.UInt32)


def binary_labels(contract: Contract, rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The labelled rows of each binary task with labels of both classes, with a `label` of 0 or 1.

    A task whose labels are all positives by its rule needs one class alone.

    Args:
        contract: says what the tasks are.
        rows: with the labels of all tasks.
    """
    found = {}
    for task, about in contract.tasks.items():
        if about.type != "binary":
            continue
        label = pl.col(LABEL + task)
        known = rows.filter(label.is_not_null()).with_columns(label=label.cast(pl.Float64))
        if known["label"].n_unique() >= (1 if always_one(about) else 2):
            found[task] = known
    return found


def expected_apart(table: pl.DataFrame, keys: list[str]) -> np.ndarray:
    """The chance (N,) of each label, if what two keys do to it together is what each does.

    Its logit is that of all rows, plus an effect of the value of each key, with a normal prior of
    deviation 1; fitted by a Newton step for all values of the one, one for the other, and so on.

    Args:
        table: N rows with a `label` of 0 or 1 and two keys, whole numbers; rows without one have
            it in common.
        keys: their names.
    """
    rows = table.select(pl.col(keys).fill_null(0), "label")
    cells = rows.group_by(keys, maintain_order=True).agg(
        count=pl.len(), total=pl.col("label").sum()
    )
    count, total = cells["count"].to_numpy(), cells["total"].to_numpy()
    mean = total.sum() / count.sum()
    logit = np.full(len(cells), np.log(mean / (1 - mean)))
    of_cell = [cells[key].to_numpy() for key in keys]
    effects = [np.zeros(value.max() + 1) for value in of_cell]
    for _ in range(_NEWTON_STEPS):
        for value, effect in zip(of_cell, effects, strict=True):
            chance = 1 / (1 + np.exp(-logit))
            slope = np.bincount(value, total - count * chance, len(effect)) - effect
            curve = np.bincount(value, count * chance * (1 - chance), len(effect)) + 1
            step = np.clip(slope / curve, -1, 1)
            np.add(effect, step, out=effect)
            logit += step[value]
    cells = cells.select(*keys, expected=1 / (1 + np.exp(-logit)))
    return rows.join(cells, on=keys, how="left", maintain_order="left")["expected"].to_numpy()


def last_t_value(columns: list[np.ndarray], labels: np.ndarray) -> float:
    """A linear regression's last coefficient over its standard error, which holds for any noise.

    0 where the other columns say all that the last one does.

    Args:
        columns: of N values each; a constant is added.
        labels: (N,).
    """
    *others, last = [np.ones(len(labels)), *columns]
    x = np.stack(others, axis=1)
    both = np.stack([last, labels], axis=1)
    own, left = (both - x @ np.linalg.lstsq(x, both)[0]).T
    if own.std() < _ROUNDING:
        return 0.0
    coefficient = (own @ left) / (own @ own)
    error = np.linalg.norm(own * (left - coefficient * own)) / (own @ own)
    return float(coefficient / error) if error > 0 else 0.0


Name = TypeVar("Name")


@dataclass(frozen=True)
class Evidence:
    """What a feature of a draft would tell the labels of one task.

    Attributes:
        columns: of N values each; the last is the feature's, the others are known without it.
        labels: (N,), the same for every feature.
    """

    columns: list[np.ndarray]
    labels: np.ndarray


def choose(
    candidates: Iterable[tuple[Name, list[Evidence]]],
    least: float,
    most: int,
    fits: Callable[[list[Name]], bool] = lambda chosen: True,
) -> dict[Name, float]:
    """Choose the features that tell the labels, the most telling first: forward selection.

    Each has the highest t value (`_t_value` of all tasks), beside the columns of those that were
    chosen before it; of two that say the same, one is chosen.  One that falls below `least` is not
    tried again.

    Args:
        candidates: features, with their evidence by task; one that has none is not chosen.
        least: t value that a feature needs, by itself and beside those before it.
        most: number of features.
        fits: whether features have room together; each has it alone.

    Returns:
        The t values of the chosen, in the order of the choice.
    """
    left: dict[Name, list[Evidence]] = {}
    t_values: dict[Name, float] = {}
    for name, evidence in candidates:
        t_value = _t_value(evidence, [])
        if t_value < least:
            continue
        left[name], t_values[name] = evidence, t_value
        if len(left) > _KEPT:  # each holds some numbers of every row
            del left[min(left, key=lambda name: t_values[name])]
    chosen: dict[Name, float] = {}
    beside: list[list[Evidence]] = []
    while left and len(chosen) < most:
        best = max(left, key=lambda name: t_values[name])
        chosen[best] = t_values[best]
        beside.append(left.pop(best))
        left = {name: evidence for name, evidence in left.items() if fits([*chosen, name])}
        t_values = {name: _t_value(evidence, beside) for name, evidence in left.items()}
        left = {name: left[name] for name in left if t_values[name] >= least}
    return chosen


def _t_value(evidence: list[Evidence], beside: list[list[Evidence]]) -> float:
    """What a feature adds to others: the mean of the tasks' t values, or half the largest.

    Half the largest, so that rare tasks that say nothing do not hide what a common one says: twice
    the t value that all need in the mean is rarely chance, even with ten tasks.  0 without tasks.
    """
    found = []
    for task, own in enumerate(evidence):
        known = [column for other in beside for column in other[task].columns]
        found.append(last_t_value([*known, *own.columns], own.labels))
    return max(float(np.mean(found)), max(found) / 2) if found else 0.0
