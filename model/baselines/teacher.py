"""Distillation: the ranker learns from boosted trees beside the labels.

A rare label is one draw of a chance; the score of a good model is the chance itself, with an error
of its own.  A target between the two has less noise than the label (Hinton, Vinyals and Dean 2015;
Furlanello et al. 2018).  Trees err in other ways than a network does, and so they are the teacher;
what is exported and served is the ranker alone.

A tree that has seen a row knows its label by heart.  So users are divided into folds, and the rows
of each fold are scored by trees that were trained on all others.

Where few rows have a label, such as what was paid for what was bought, the ranker sees too few
targets to learn even what the trees say.  The trees have a score for every row, and so some rows
without a label have it as their target; of those that were shown: what users would have done with a
drawn negative is what no label tells, neither the ranker nor the trees.

The trees know the place that a row was shown at, as the ranker does in training.  A score without
it would say that places do not matter, and the position tower would learn half of their effect.

A teacher that knows less than the ranker makes it worse: trees cannot tell whose items a user
likes where no column counts it.  So the trees score the validation rows too, and the training
compares (`model.training.loop`).
"""

import hashlib
from importlib.metadata import version
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.baselines import require_library
from multigate.configs.contract import Contract
from multigate.configs.files import SAMPLED, new_file
from multigate.configs.progress import track
from multigate.configs.sections.model import Teacher
from multigate.model.baselines.lightgbm_baseline import (
    SETTINGS,
    Setting,
    default_threads,
    fit_task,
)
from multigate.model.baselines.table import Tables, read_tables
from multigate.model.data.examples import Taught
from multigate.model.data.hashing import hash_ids
from multigate.model.data.rows import Rows
from multigate.model.ranker.scores import transform

_SEED = 0  # of the rows without a label that learn a score


def scores(
    examples: Path,
    contract: Contract,
    options: Teacher,
    kept: Path | None = None,
    weight: str | None = None,
) -> Taught:
    """The teacher's part in the labels of the training split, which is read into memory.

    The same examples give the same scores.  Trees are those of `model.baselines`; the setting of a
    task is the one that is best on validation in the first fold.

    Args:
        examples: folder of examples.
        contract: features and tasks.
        options: of the teacher.
        kept: file of scores: they are read from it where they are of the same rows and options,
            and written to it otherwise.  So neither a training that is resumed nor the next trial
            of a search waits for the trees again.
        weight: column of the rows' weights in training, which the trees have as well; None for
            equal ones.

    Raises:
        ConfigError: the library is not installed.
        DataError: a split or a column cannot be read.
    """
    require_library(options.library)
    tables = read_tables(examples, contract, places=True, weight=weight)
    fold = _folds(tables.train, contract.user, options.folds)
    identity = _identity(tables, contract, fold, options)
    found = None if kept is None else _read(kept, identity)
    if found is None:
        found = _fit(tables, contract, fold, options)
        if kept is not None:
            _write(kept, identity, found)
    taught, held_out = found
    learnt = _learnt(tables.labels[0], _shown(tables.train), options.unlabelled)
    return Taught(np.where(learnt, taught, np.nan), held_out, options.share)


def _learnt(labels: np.ndarray, shown: np.ndarray, unlabelled: float) -> np.ndarray:
    """Whether a row learns a task's score (N, T): all with a label, and a draw of others shown.

    Args:
        labels: (N, T), NaN where masked.
        shown: (N,) bool.
        unlabelled: how many others for each row with a label.
    """
    known = ~np.isnan(labels)
    others = ~known & shown[:, None]
    rates = unlabelled * known.sum(axis=0) / np.maximum(others.sum(axis=0), 1)
    drawn = np.random.default_rng(_SEED).random(labels.shape) < rates
    return known | (others & drawn)


def _shown(rows: Rows) -> np.ndarray:
    """Whether a row (N,) was shown, and is no drawn negative."""
    if SAMPLED not in rows.table.column_names:
        return np.ones(len(rows), bool)
    return ~np.asarray(pc.fill_null(rows.table[SAMPLED], False))


def _fit(
    tables: Tables, contract: Contract, fold: np.ndarray, options: Teacher
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of the training rows (N, T) and of the validation rows (V, T), transformed.

    A validation row has the mean over the folds' trees.  NaN for tasks without a teacher.
    """
    train, held_out = tables.values
    labels, held_out_labels = tables.labels
    weights = tables.weights or (np.ones(len(train)), np.ones(len(held_out)))
    threads = default_threads(len(train))
    found = np.full(labels.shape, np.nan, np.float32)
    of_held_out = np.full(held_out_labels.shape, np.nan, np.float32)
    taught = [(t, task) for t, task in enumerate(contract.tasks.values()) if options.teaches(task)]
    for t, task in track(taught, "teacher", len(taught), "tasks"):
        known, to_measure = (
            ~np.isnan(label[:, t]) & (w > 0)
            for label, w in zip(tables.labels, weights, strict=True)
        )
        targets = [transform(task, of[:, t]) for of in (labels, held_out_labels)]
        settings: tuple[Setting, ...] = SETTINGS
        on_held_out = []
        for number in range(options.folds):
            inside = fold == number
            to_learn = ~inside & known
            if not inside.any() or not to_learn.any():
                continue
            fitted = fit_task(
                # Of ids it only knows how often they come, which says nothing of labels.
                tables.tabulator,
                task,
                [train[to_learn], held_out[to_measure]],
                [targets[0][to_learn], targets[1][to_measure]],
                threads,
                settings,
                (None, None)
                if tables.weights is None
                else (weights[0][to_learn], weights[1][to_measure]),
            )
            found[inside, t] = fitted.predict(train[inside], threads)
            on_held_out.append(fitted.predict(held_out, threads))
            if fitted.setting is not None:
                settings = (fitted.setting,)
        if on_held_out:
            of_held_out[:, t] = np.mean(on_held_out, axis=0)
    return found, of_held_out


def _identity(tables: Tables, contract: Contract, fold: np.ndarray, options: Teacher) -> str:
    """A hash of all that the scores depend on."""
    found = hashlib.blake2b(digest_size=16)
    parts = (*tables.values, *tables.labels, *(tables.weights or ()), fold)
    release = version(options.library)
    tasks = [(task.type, task.transform, options.teaches(task)) for task in contract.tasks.values()]
    for said in (release, tasks, tables.tabulator.columns, *(part.shape for part in parts)):
        found.update(repr(said).encode())
    for part in parts:
        found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


def _read(kept: Path, identity: str) -> tuple[np.ndarray, np.ndarray] | None:
    """What `_fit` found, of a file; None where it is absent, damaged or of other rows."""
    try:
        # NumPy leaves a damaged file open that it has opened itself.
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as held:
            found = held["scores"], held["held_out"]
            return found if str(held["identity"]) == identity else None
    except (OSError, EOFError, ValueError, KeyError, BadZipFile):
        return None


def _write(kept: Path, identity: str, found: tuple[np.ndarray, np.ndarray]) -> None:
    with new_file(kept) as temporary, temporary.open("wb") as file:
        np.savez(file, identity=np.array(identity), scores=found[0], held_out=found[1])


def _folds(rows: Rows, user: str, count: int) -> np.ndarray:
    """The fold (N,) of each row's user; rows without one share a fold."""
    ids = pc.fill_null(rows.table[user].cast(pa.string()), "").combine_chunks()
    return hash_ids(ids, count)
