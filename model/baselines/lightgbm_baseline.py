"""LightGBM, one booster per task, on the columns of `model.baselines.table`.

Choices, the same for every data set:

- Rows whose label is masked are left out, task by task. Regression labels are learnt on the
  contract's transform and scores are taken back to the label's own units, then clipped as ours are.
- Objective `binary` (log loss), `regression` (squared error) or, of a task that predicts a
  quantile, `quantile` (pinball loss); at most 1,000 trees, stopped 30 trees after the best
  validation loss. `feature_fraction` and `bagging_fraction` 0.8 (bagging anew for each tree),
  `cat_smooth` and `cat_l2` 20, seed 0, everything else LightGBM's default.
- Of six settings (`SETTINGS`), the one with the lowest validation loss. No other tuning. Three of
  them split on no id, only on what is counted of ids (rates, rows, matches): where ids of the
  future are new, splits on known ones mislead. Two of these do not split on the number of training
  rows of an id either: it is never 0 in training, and is 0 for every new id.
- A task without a validation label gets the first setting and 100 trees. A task with one class
  only in training, or fewer than two labels, gets a constant: the mean label. A task without any
  training label gets no score.
- Deterministic: the same examples give the same scores, whatever the number of threads. Below
  100,000 training rows one thread is the default: several threads wait for one another, which took
  fifty times as long on a busy machine.

Row weights of the training (`train.weight`) are not used: reports weigh all rows alike. The
test split takes no part.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multigate.configs.baselines import LIGHTGBM, require_library
from multigate.configs.contract import Contract
from multigate.configs.progress import track
from multigate.configs.sections.labels import Task
from multigate.model.baselines.table import Tabulator, read_tables
from multigate.model.data.rows import Rows
from multigate.model.ranker.scores import as_score, transform


class Setting(NamedTuple):
    """What is chosen on validation."""

    leaves: int
    rate: float
    least_rows: int
    """Least rows per leaf."""
    ids: bool = True
    """Whether to split on ids; if not, on numbers alone."""
    counts: bool = True
    """Whether to split on the ids' numbers of training rows."""


SETTINGS = (
    Setting(31, 0.05, 50),
    Setting(127, 0.05, 20),
    Setting(15, 0.03, 200),
    Setting(15, 0.03, 200, ids=False),
    Setting(31, 0.05, 50, ids=False, counts=False),
    Setting(15, 0.03, 200, ids=False, counts=False),
)
MOST_TREES = 1000
PATIENCE = 30
TREES_WITHOUT_VALIDATION = 100
ROWS_FOR_THREADS = 100_000


@dataclass(frozen=True)
class TaskFit:
    """A task's model.

    Attributes:
        booster: None where the score is constant.
        constant: the score of every row, in the label's transform; None with a booster.
        setting: chosen on validation; None with a constant.
        trees: how many were kept.
        note: why the usual choice was not possible; empty otherwise.
    """

    booster: Any = None
    constant: float | None = None
    setting: Setting | None = None
    trees: int = 0
    note: str = ""

    def predict(self, table: np.ndarray, threads: int) -> np.ndarray:
        """Scores (N,) float64 of a table (N, F), in the label's transform."""
        if self.booster is None:
            return np.full(len(table), self.constant, np.float64)
        return np.asarray(self.booster.predict(table, num_threads=threads))


@dataclass(frozen=True)
class LightGBM:
    """Boosters of all tasks.

    Attributes:
        title: the library with its version.
        contract: whose features and tasks they have.
        tabulator: fitted on the training split.
        tasks: by name; a task without training labels is absent.
        seconds: that reading, tables and training took.
        threads: of training and scoring; 0 for all cores.
    """

    title: str
    contract: Contract
    tabulator: Tabulator
    tasks: Mapping[str, TaskFit]
    seconds: float
    threads: int

    def outputs(self, rows: Rows) -> dict[str, np.ndarray]:
        """What the boosters predict, (N,) float64 by task, on the labels' transforms."""
        table = self.tabulator(rows)
        return {name: fitted.predict(table, self.threads) for name, fitted in self.tasks.items()}

    def scores(self, rows: Rows) -> dict[str, np.ndarray]:
        """Scores (N,) float64 by task, in the labels' own units."""
        return {
            name: as_score(self.contract.tasks[name], values)
            for name, values in self.outputs(rows).items()
        }


def fit(examples: Path, contract: Contract, *, threads: int = 0) -> LightGBM:
    """Train on the training split, with early stopping on validation.

    Args:
        examples: folder of examples.
        contract: features and tasks.
        threads: of LightGBM; 0 for one, or for all cores with 100,000 training rows or more.

    Raises:
        ConfigError: LightGBM is not installed.
        DataError: a split or a column cannot be read.
    """
    require_library(LIGHTGBM)
    import lightgbm

    started = time.perf_counter()
    tabulator, train, tables, labels, _ = read_tables(examples, contract)
    threads = threads or default_threads(len(train))
    tasks = {}
    named = track(contract.tasks.items(), "LightGBM", len(contract.tasks), "tasks")
    for t, (name, task) in enumerate(named):
        columns = [transform(task, one[:, t]) for one in labels]
        known = [~np.isnan(column) for column in columns]
        x, y = [
            [values[inside] for values, inside in zip(of, known, strict=True)]
            for of in (tables, columns)
        ]
        if len(y[0]):
            tasks[name] = fit_task(tabulator, task, x, y, threads)
    return LightGBM(
        title=f"LightGBM {lightgbm.__version__}",
        contract=contract,
        tabulator=tabulator,
        tasks=tasks,
        seconds=time.perf_counter() - started,
        threads=threads,
    )


def default_threads(rows: int) -> int:
    """Threads for so many training rows: one, or 0 for all cores."""
    return int(rows < ROWS_FOR_THREADS)


def fit_task(
    tabulator: Tabulator,
    task: Task,
    x: list[np.ndarray],
    y: list[np.ndarray],
    threads: int,
    settings: Sequence[Setting] = SETTINGS,
    weights: Sequence[np.ndarray | None] = (None, None),
) -> TaskFit:
    """Train one task.

    Args:
        tabulator: names the columns.
        task: what it predicts.
        x: tables (N, F) of training and validation rows with a label.
        y: their labels (N,), transformed.
        threads: of LightGBM.
        settings: of which validation chooses.
        weights: (N,) of the training and validation rows; None where all are equal.
    """
    import lightgbm

    if y[0].min() == y[0].max():
        return TaskFit(constant=float(y[0][0]), note="every training label is the same")
    given = {
        "feature_name": tabulator.columns,
        "categorical_feature": tabulator.categories,
        "free_raw_data": False,
    }
    common = {
        "objective": task.measured_as,  # LightGBM's names are the same
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "cat_smooth": 20,
        "cat_l2": 20,
        "seed": 0,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,  # the settings differ in the least rows per leaf
        "num_threads": threads,
        "verbosity": -1,
    }
    if task.quantile is not None:
        common["alpha"] = task.quantile
    train = lightgbm.Dataset(x[0], y[0], weight=weights[0], params=common, **given)
    validated = len(y[1]) > 0
    valid = [lightgbm.Dataset(x[1], y[1], train, weights[1], params=common)] if validated else []
    best, least = TaskFit(), np.inf
    for setting in settings if validated else settings[:1]:
        chosen: dict[str, Any] = {
            "num_leaves": setting.leaves,
            "learning_rate": setting.rate,
            "min_data_in_leaf": setting.least_rows,
        }
        unread = {*(() if setting.ids else tabulator.categories)}
        unread |= {*(() if setting.counts else tabulator.counts)}
        if unread:  # a gain of nothing is never taken
            chosen["feature_contri"] = [float(name not in unread) for name in tabulator.columns]
        booster = lightgbm.train(
            common | chosen,
            train,
            MOST_TREES if validated else TREES_WITHOUT_VALIDATION,
            valid_sets=valid,
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)] if validated else [],
        )
        if not validated:
            note = "no validation label: the first setting, without early stopping"
            return TaskFit(booster, None, setting, booster.num_trees(), note)
        (loss,) = booster.best_score["valid_0"].values()
        if loss < least:
            best, least = TaskFit(booster, None, setting, booster.best_iteration), loss
    return best
