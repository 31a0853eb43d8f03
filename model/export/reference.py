"""`reference.json`: statistics of the test split, with which a server detects drift.

    {"rows": int,
     "features": {name: {"missing": share, "unseen": share or null}},
     "scores": {task: {"edges": [21 floats], "counts": [20 ints]}}}

missing: the share of the rows without a value; for a list, the share of empty lists.  unseen: the
share of the rows with an id that is not in the vocabulary; for a list, the share of its values that
are kept; null for a feature without a vocabulary.  Scores are as served, in their own units.  The
edges are evenly spaced between the 0.5 % and 99.5 % quantiles of the scores; values beyond them
count in the first or last bin.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multigate.configs.contract import (
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.model.data.encoding import Encoded, vectors

BINS = 20
_ENDS = (0.005, 0.995)


class FeatureShares(TypedDict):
    """One feature; see the module docstring."""

    missing: float
    unseen: float | None


class Histogram(TypedDict):
    """Edges (21) and counts (20)."""

    edges: list[float]
    counts: list[int]


class Reference(TypedDict):
    """The file; features and scores by name."""

    rows: int
    features: dict[str, FeatureShares]
    scores: dict[str, Histogram]


def report(
    contract: Contract, table: pa.Table, encoded: Encoded, scores: Mapping[str, np.ndarray]
) -> Reference:
    """The content of `reference.json`.

    Args:
        contract: of the version.
        table: the test split, N rows.
        encoded: its features.
        scores: (N,) by task, as served.
    """
    features: dict[str, FeatureShares] = {}
    for name, feature in contract.of_side("user", "item", "context"):
        absent = _absent(feature, table[name].combine_chunks())
        features[name] = {"missing": float(absent.mean()), "unseen": None}
        if (buckets := contract.unknown_codes(name)) is not None:
            codes = encoded[name] if encoded[name].ndim == 2 else encoded[name][~absent]
            unseen = np.count_nonzero((codes >= 1) & (codes <= buckets))
            values = np.count_nonzero(codes) if codes.ndim == 2 else table.num_rows
            features[name]["unseen"] = unseen / max(values, 1)
    return {
        "rows": table.num_rows,
        "features": features,
        "scores": {task: histogram(found) for task, found in scores.items()},
    }


def histogram(scores: np.ndarray) -> Histogram:
    """Edges (21) and counts (20) of scores (N,), N >= 1."""
    values = scores.astype(np.float64)
    low, high = np.quantile(values, _ENDS)
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # all equal: bins around the value
        width = max(abs(low), 1.0)
        low, high = low - width / 2, high + width / 2
    edges = np.linspace(low, high, BINS + 1)
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)
    return {"edges": edges.tolist(), "counts": np.bincount(place, minlength=BINS).tolist()}


def _absent(feature: Any, column: pa.Array) -> np.ndarray:
    """Whether each row lacks a value, (N,) bool."""
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if isinstance(feature, IdListFeature):
        return np.asarray(pc.list_value_length(column).fill_null(0)) == 0
    if isinstance(feature, VectorFeature):
        return ~vectors("", feature, column)[1]
    absent = ~np.asarray(column.is_valid())
    if isinstance(feature, NumberFeature):
        finite = np.isfinite(np.asarray(column.cast(pa.float64()).fill_null(np.nan)))
        return absent | ~finite
    if isinstance(feature, IdFeature | TextFeature) and feature.dtype == "string":
        return absent | np.asarray(pc.equal(column.cast(pa.string()), "").fill_null(False))
    return absent
