"""What the contenders of the bake-off read: one table, and what networks make of it.

Needs NumPy and nothing else: contenders run in environments of their own.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """What is known of N rows.

    Attributes:
        x: the table (N, F).
        lists: by name (N, L), the candidate's code of each id that stands in the user's list, NaN
            behind them.  Networks read them, trees do not.
    """

    x: np.ndarray
    lists: dict[str, np.ndarray]

    def first(self, n: int) -> "Rows":
        """The first n rows."""
        return Rows(self.x[:n], {name: codes[:n] for name, codes in self.lists.items()})


Predict = Callable[[Rows], dict[str, np.ndarray]]
"""Rows to scores (N,) by task, on the scale that labels are learnt on."""


class Data:
    """The rows and labels (N, T) of each split, NaN where masked.

    Attributes:
        columns: names of the table's F columns.
        categories: index of those that are codes: 0 for other ids, NaN missing.
        candidate: index among the categories of the candidate's id.
        tasks: type by name, "binary" or "regression".
    """

    def __init__(self, path: Path) -> None:
        with np.load(path) as stored:
            about = json.loads(str(stored["about"]))
            self.rows = {
                split: Rows(
                    stored[f"{split}/x"],
                    {name: stored[f"{split}/list/{name}"] for name in about["lists"]},
                )
                for split in ("train", "validation", "test")
            }
            self.y = {split: stored[f"{split}/y"] for split in ("train", "validation")}
        self.columns: list[str] = about["columns"]
        self.categories = [self.columns.index(name) for name in about["categories"]]
        self.candidate: int = about["categories"].index(about["candidate"])
        self.tasks: dict[str, str] = about["tasks"]
        self._rates: list[str] = about["rates"]

    @property
    def counts(self) -> list[int]:
        """Index of the ids' numbers of training rows."""
        return [self.columns.index(self.columns[n] + "__count") for n in self.categories]

    def without_rates(self) -> None:
        """Leave out the columns of as-of rates."""
        self._without({self.columns.index(name) for name in self._rates})

    def without_counts(self) -> None:
        """Leave out the ids' numbers of training rows."""
        self._without(set(self.counts))

    def _without(self, places: set[int]) -> None:
        kept = [n for n in range(len(self.columns)) if n not in places]
        self.categories = [kept.index(n) for n in self.categories]
        self.columns = [self.columns[n] for n in kept]
        self.rows = {s: rows._replace(x=rows.x[:, kept]) for s, rows in self.rows.items()}

    def of_task(self, task: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels where the task has a label."""
        y = self.y[split][:, list(self.tasks).index(task)]
        known = ~np.isnan(y)
        return self.rows[split].x[known], y[known]


class NetworkInputs:
    """The table as networks read it: ids as codes, numbers on one scale.

    Trees need no scale; a network does: the logarithm of 1 + the number (of its size, with its
    sign), standardised on training rows, and a flag where it is missing.

    Args:
        data: the training rows give the scale.

    Attributes:
        sizes: number of codes of each id.
        candidate: index of the candidate's id among them.
        numbers: columns of `numbers`, twice those of the table.
        lists: length of each list.
    """

    def __init__(self, data: Data) -> None:
        self.lists = [codes.shape[1] for codes in data.rows["train"].lists.values()]
        self._ids, self.candidate = data.categories, data.candidate
        self._numeric = [n for n in range(len(data.columns)) if n not in data.categories]
        x = _logarithm(data.rows["train"].x[:, self._numeric])
        self._mean, self._deviation = np.nanmean(x, axis=0), np.nanstd(x, axis=0) + 1e-6
        largest = [np.nanmax(data.rows["train"].x[:, c], initial=0) for c in self._ids]
        self.sizes = [int(one) + 2 for one in largest]
        self.numbers = 2 * len(self._numeric)

    def __call__(self, rows: Rows) -> dict[str, np.ndarray]:
        """`codes` (N, ids) int32 and `numbers` (N, numbers) float32 of N rows; then each list.

        A list is its ids' codes (N, L) int32 as those of the candidate, 0 behind the last.
        """
        values = (_logarithm(rows.x[:, self._numeric]) - self._mean) / self._deviation
        flags = np.isnan(values)
        codes = _codes(rows.x[:, self._ids], np.array(self.sizes))
        numbers = np.concatenate([np.where(flags, 0, values), flags], axis=1)
        found = {"codes": codes, "numbers": numbers.astype(np.float32)}
        size = self.sizes[self.candidate]
        return found | {f"list {name}": _codes(one, size) for name, one in rows.lists.items()}


def _codes(values: np.ndarray, sizes: np.ndarray | int) -> np.ndarray:
    """0 for a missing id, 1 for one that is not among training's, from 2 for others."""
    codes = np.nan_to_num(values, nan=-1).astype(np.int32) + 1
    return np.where(codes < sizes, codes, 1).astype(np.int32)


def _logarithm(x: np.ndarray) -> np.ndarray:
    """sign(x) log(1 + |x|)."""
    found: np.ndarray = np.sign(x) * np.log1p(np.abs(x))
    return found


class Targets:
    """Labels as networks learn them: those of regression tasks standardised.

    Attributes:
        binary: (T,) which tasks are binary.
    """

    def __init__(self, data: Data) -> None:
        self.binary = np.array([kind == "binary" for kind in data.tasks.values()])
        self._tasks = list(data.tasks)
        self._centre = np.where(self.binary, 0, np.nanmean(data.y["train"], axis=0))
        self._spread = np.where(self.binary, 1, np.nanstd(data.y["train"], axis=0))

    def __call__(self, labels: np.ndarray) -> np.ndarray:
        """Targets (N, T) float32 of labels, NaN where masked."""
        found: np.ndarray = ((labels - self._centre) / self._spread).astype(np.float32)
        return found

    def scores(self, probabilities: np.ndarray, outputs: np.ndarray) -> dict[str, np.ndarray]:
        """Scores by task: probabilities (N, T) of binary tasks, outputs (N, T) of the others."""
        values = np.where(self.binary, probabilities, outputs * self._spread + self._centre)
        return dict(zip(self._tasks, values.astype(np.float64).T, strict=True))
