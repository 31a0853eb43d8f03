"""Signs that the test is easier than the world: features that know the label, shared rows, time."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sklearn.metrics import roc_auc_score

from multigate.configs.contract import Contract, IdFeature, IdListFeature, PositionFeature
from multigate.configs.files import IMPRESSION, LABEL, TIME
from multigate.model.data.rows import Rows

_PRIOR = 10.0  # rows of the overall rate that a value's own rate is mixed with


def check_leaks(contract: Contract, rows: Rows, train: Rows, limit: float) -> dict[str, Any]:
    """Look for leaks.

    A feature alone ranks the rows by its number, by its list's length, by whether it is present, or
    by the mean label of the training rows with the same category.  Whether a higher number means a
    higher label is decided on the training rows: decided on the rows that are measured, every AUC
    would be above 0.5 by chance.  A regression label counts as 1 above its median.

    Args:
        contract: features and tasks.
        rows: the split that the model is measured on.
        train: the training split; the same object where that is what the model is measured on.
        limit: AUC of one feature alone above which it is taken for a leak.

    Returns:
        features, highest first: feature, by ("value", "length", "presence" or "mean label"), task,
        auc, leak; limit; shared_rows, how many rows have
        the impression of a training row, or None where examples have no such column; in_order,
        whether every row is newer than training, or None where times are not known; late_training,
        share of the training rows that are newer than the oldest row.
    """
    whole = _overlap(rows, train)
    if rows is train:
        # A category's mean label holds the row's own: half of the rows are judged by the others.
        half = np.random.default_rng(0).random(len(rows)) < 0.5
        rows, train = rows.take(np.flatnonzero(half)), train.take(np.flatnonzero(~half))
    found: list[dict[str, Any]] = []
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
    return {"features": found, "limit": limit, **whole}


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
    """Mean label of the training rows with each row's value, mixed with the overall mean, (N,)."""
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


def _overlap(rows: Rows, train: Rows) -> dict[str, Any]:
    result: dict[str, Any] = {"shared_rows": None, "in_order": None, "late_training": None}
    if IMPRESSION in rows.table.column_names and IMPRESSION in train.table.column_names:
        shared = np.isin(np.asarray(rows.table[IMPRESSION]), np.asarray(train.table[IMPRESSION]))
        result["shared_rows"] = int(shared.sum())
    if TIME in rows.table.column_names and TIME in train.table.column_names:
        oldest = pc.min(rows.table[TIME])
        if oldest.is_valid and pc.max(train.table[TIME]).is_valid:
            late = pc.sum(pc.greater_equal(train.table[TIME], oldest)).as_py() or 0
            result |= {"in_order": late == 0, "late_training": late / max(len(train), 1)}
    return result
