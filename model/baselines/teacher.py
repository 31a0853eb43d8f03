"""Distillation: the ranker learns from boosted trees beside the labels.

A rare label is one draw of a chance; the score of a good model is the chance itself, with an error
of its own.  A target between the two has less noise than the label (Hinton, Vinyals and Dean 2015;
Furlanello et al. 2018).  Trees err in other ways than a network does, and so they are the teacher;
what is exported and served is the ranker alone.

A tree that has seen a row knows its label by heart.  So users are divided into folds, and the rows
of each fold are scored by trees that were trained on all others.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.baselines import require_library
from multigate.configs.contract import Contract
from multigate.configs.progress import track
from multigate.configs.sections.model import Teacher
from multigate.model.baselines.lightgbm_baseline import (
    SETTINGS,
    Setting,
    default_threads,
    fit_task,
)
from multigate.model.baselines.table import Tabulator
from multigate.model.data.examples import SoftLabels
from multigate.model.data.hashing import hash_ids
from multigate.model.data.rows import Rows, read_rows


def scores(examples: Path, contract: Contract, options: Teacher) -> SoftLabels:
    """The teacher's part in the labels of the training split, which is read into memory.

    The same examples give the same scores.  Trees are those of `model.baselines`; the setting of a
    task is the one that is best on validation in the first fold.

    Args:
        examples: folder of examples.
        contract: features and tasks.
        options: of the teacher.

    Raises:
        ConfigError: the library is not installed.
        DataError: a split or a column cannot be read.
    """
    require_library(options.library)
    rows, held_out = (read_rows(examples, split) for split in ("train", "validation"))
    # Of ids it only knows how often they come, which says nothing of labels.
    tabulator = Tabulator(contract, rows)
    tables = tabulator(rows), tabulator(held_out)
    labels = rows.labels(contract), held_out.labels(contract)
    fold, threads = _folds(rows, contract.user, options.folds), default_threads(len(rows))
    found = np.full(labels[0].shape, np.nan, np.float32)
    binary = [(t, task) for t, task in enumerate(contract.tasks.values()) if task.type == "binary"]
    for t, task in track(binary, "teacher", len(binary), "tasks"):
        to_measure = ~np.isnan(labels[1][:, t])
        settings: tuple[Setting, ...] = SETTINGS
        for number in range(options.folds):
            inside = fold == number
            to_learn = ~inside & ~np.isnan(labels[0][:, t])
            if not inside.any() or not to_learn.any():
                continue
            fitted = fit_task(
                tabulator,
                task,
                [tables[0][to_learn], tables[1][to_measure]],
                [labels[0][to_learn, t], labels[1][to_measure, t]],
                threads,
                settings,
            )
            found[inside, t] = fitted.predict(tables[0][inside], threads)
            if fitted.setting is not None:
                settings = (fitted.setting,)
    return SoftLabels(found, options.share)


def _folds(rows: Rows, user: str, count: int) -> np.ndarray:
    """The fold (N,) of each row's user; rows without one share a fold."""
    ids = pc.fill_null(rows.table[user].cast(pa.string()), "").combine_chunks()
    return hash_ids(ids, count)
