"""Leaks: features that know the label, rows that training saw, rows older than training.

Deepchecks was considered: it is under the AGPL, and trains a tree for each pair of feature and
label, where one sort tells as much.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.metrics import roc_auc_score

from multigate.configs.contract import (
    Contract,
    IdFeature,
    IdListFeature,
    PositionFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.files import IMPRESSION, LABEL, TIME
from multigate.model.assessment.results import FeatureLeak, LeakSummary
from multigate.model.data.encoding import vectors
from multigate.model.data.rows import Rows

_PRIOR = 10.0  # rows of the overall mean label that are added to each value's own rows


def check_leaks(contract: Contract, rows: Rows, train: Rows, limit: float) -> LeakSummary:
    """Look for leaks.

    A feature alone ranks the rows by its number, by its list's length, by whether it is present, or
    by the mean label of the training rows with the same category.  Whether a higher number means a
    higher label is decided on the training rows: decided on the rows that are measured, every AUC
    would be above 0.5 by chance.  A regression label counts as 1 above its median.

    Args:
        contract: features and tasks.
        rows: the split that the model is measured on.
        train: the training split; the same object as `rows` where the model is measured on it.
        limit: AUC above which a feature is taken for a leak.
    """
    shared, late = _shared_rows(rows, train), _late_training(rows, train)
    if rows is train:
        # A category's mean label includes the row's own, so that one half judges the other.
        half = np.random.default_rng(0).random(len(rows)) < 0.5
        rows, train = rows.take(np.flatnonzero(half)), train.take(np.flatnonzero(~half))
    found: list[FeatureLeak] = []
    for name, task in contract.tasks.items():
        y, usable = _labels(rows, name, task.type == "regression")
        past, past_usable = _labels(train, name, task.type == "regression")
        if not usable.any() or y[usable].min() == y[usable].max():
            continue
        for feature_name, feature in contract.features.items():
            if isinstance(feature, PositionFeature):
                continue  # the served model does not see positions
            orders = _orders(feature, feature_name, rows, train, past, past_usable)
            for by, (values, before) in orders.items():
                if values.min() == values.max():
                    continue
                area = float(roc_auc_score(y[usable], values[usable]))
                if before is not None and _falls(past[past_usable], before[past_usable]):
                    area = 1 - area
                found.append(
                    {
                        "feature": feature_name,
                        "by": by,
                        "task": name,
                        "auc": area,
                        "leak": area > limit,
                    }
                )
    found.sort(key=lambda row: -row["auc"])
    return {
        "features": found,
        "limit": limit,
        "shared_rows": shared,
        "in_order": None if late is None else late == 0,
        "late_training": late,
    }


def _labels(rows: Rows, task: str, regression: bool) -> tuple[np.ndarray, np.ndarray]:
    """Labels as 0 and 1, and which rows have one."""
    column = rows.table[LABEL + task].cast(pa.float64())
    y = np.asarray(pc.fill_null(column, np.nan).combine_chunks())
    usable = ~np.isnan(y)
    if regression and usable.any():
        y = (y > np.median(y[usable])).astype(np.float64)
    return y, usable


def _orders(
    feature: Any, name: str, rows: Rows, train: Rows, past: np.ndarray, usable: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """The ways in which a feature can order the rows, by their name.

    Returns:
        Values of the rows (N,), and of the training rows; None for mean labels, which rise.
    """
    column, before = rows.table[name].combine_chunks(), train.table[name].combine_chunks()
    found: dict[str, tuple[np.ndarray, np.ndarray | None]] = {
        "presence": (_present(column), _present(before))
    }
    if isinstance(feature, IdFeature):
        return found | {"mean label": (_rates(column, before, past, usable), None)}
    if isinstance(feature, IdListFeature):
        of = np.asarray(pc.list_parent_indices(before))
        values = _rates(pc.list_flatten(column), pc.list_flatten(before), past[of], usable[of])
        parents = np.asarray(pc.list_parent_indices(column))
        sums = np.bincount(parents, values, minlength=len(column))
        mean = sums / np.maximum(np.bincount(parents, minlength=len(column)), 1)
        return {"length": (_lengths(column), _lengths(before)), "mean label": (mean, None)}
    if isinstance(feature, TextFeature):
        lengths = [np.asarray(pc.fill_null(pc.utf8_length(c), 0)) for c in (column, before)]
        return found | {"length": (lengths[0], lengths[1])}
    if isinstance(feature, VectorFeature):
        norms = [np.linalg.norm(vectors(name, feature, c)[0], axis=1) for c in (column, before)]
        return found | {"norm": (norms[0], norms[1])}
    return found | {"value": (_numbers(column), _numbers(before))}


def _present(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_valid()).astype(np.float64)


def _lengths(column: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.float64)


def _numbers(column: pa.Array) -> np.ndarray:
    """Values as float64, missing ones replaced by the median."""
    numbers = np.asarray(pc.fill_null(column.cast(pa.float64()), np.nan))
    median = np.nanmedian(numbers) if np.isfinite(numbers).any() else 0.0
    return np.nan_to_num(numbers, nan=median)


def _falls(labels: np.ndarray, values: np.ndarray) -> bool:
    """Whether higher values go with lower labels."""
    if len(labels) == 0 or labels.min() == labels.max():
        return False
    return bool(roc_auc_score(labels, values) < 0.5)


def _rates(
    column: pa.Array, before: pa.Array, labels: np.ndarray, usable: np.ndarray
) -> np.ndarray:
    """Mean label of the training rows with each row's value, smoothed by the overall mean, (N,)."""
    known = pc.dictionary_encode(before.filter(pa.array(usable)))
    codes = np.asarray(pc.fill_null(known.indices, -1)).astype(np.int64)
    y, size = labels[usable], len(known.dictionary)
    overall = float(y.mean()) if len(y) else 0.0
    inside = codes >= 0
    sums = np.bincount(codes[inside], y[inside], minlength=size)
    counts = np.bincount(codes[inside], minlength=size)
    rates = np.append((sums + _PRIOR * overall) / (counts + _PRIOR), overall)
    place = pc.index_in(column, value_set=known.dictionary)
    found: np.ndarray = rates[np.asarray(pc.fill_null(place, -1)).astype(np.int64)]
    return found


def _shared_rows(rows: Rows, train: Rows) -> int | None:
    """How many rows have the impression of a training row."""
    if not all(IMPRESSION in split.table.column_names for split in (rows, train)):
        return None
    shared = np.isin(np.asarray(rows.table[IMPRESSION]), np.asarray(train.table[IMPRESSION]))
    return int(shared.sum())


def _late_training(rows: Rows, train: Rows) -> float | None:
    """Share of the training rows that are not older than the oldest row."""
    if not all(TIME in split.table.column_names for split in (rows, train)):
        return None
    oldest = pc.min(rows.table[TIME])
    if not oldest.is_valid or not pc.max(train.table[TIME]).is_valid:
        return None
    late = pc.sum(pc.greater_equal(train.table[TIME], oldest)).as_py() or 0
    return float(late / max(len(train), 1))
