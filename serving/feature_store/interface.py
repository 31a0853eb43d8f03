"""The feature store's interface: looks up the features that a Rank call leaves out.

A store holds the pipeline's snapshot: the features that an impression at the cut-off would have.
`serving.feature_store.online_features` makes of them what a request sees.

Feast was considered: its online stores have no clock for times since an event, and read their own
table formats, not the pipeline's snapshot.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from multigate.configs.contract import Contract, IdListFeature, LabelCount, Side, VectorFeature
from multigate.configs.errors import DataError, ServingError
from multigate.configs.files import ExamplesFolder
from multigate.configs.statistics import Statistics
from multigate.serving.core.layout import empty_like, value_dtype


@dataclass(frozen=True)
class Column:
    """The values of one feature for several rows."""

    values: np.ndarray
    """(rows,); vectors (rows, S); lists (rows, L), padded at the end.  Fillers where a value is
    missing."""
    present: np.ndarray
    """(rows,) bool."""
    lengths: np.ndarray | None = None
    """(rows,) int64; lists only."""

    def count(self) -> int:
        """The number of values that are present."""
        rows = len(self.present)
        # Nearly every column is complete: one look instead of `rows`.
        return rows if self.present is all_present(rows) else int(np.count_nonzero(self.present))


@dataclass(frozen=True)
class FeatureQuery:
    """The ids and features to look up: those that a request leaves out."""

    user: bytes | int | None
    """None: the request names no user, or needs no feature of the user."""
    user_features: Sequence[str]
    items: np.ndarray
    """(N,) bytes objects or int64."""
    item_features: Sequence[str]
    categories: Mapping[str, Column] = field(default_factory=dict)
    """The categories that the request gives, by feature: (N,) of the item, (1,) of the context."""


@dataclass(frozen=True)
class FeatureAnswer:
    """What a store found."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    """By feature: (1,) for features of the user, (N,) for those of items."""
    problem: str = ""
    """Why the store did not answer; empty where it did."""
    queried: bool = True
    """False where the circuit breaker kept the store from being called."""
    cut_off: float | None = None
    """Seconds since 1970; the features are computed from the log up to then."""
    priors: Mapping[str, float] = field(default_factory=dict)
    """By feature, the rate or mean of an id without past labels."""
    lacks_user: bool = False
    """Whether the store was asked for a user whom it does not know."""
    lacks_items: np.ndarray | None = None
    """(K,) the places of items that it was asked for and does not know; None where it knows all."""


class FeatureStore(Protocol):
    """Features of users and items by id."""

    remote: bool
    """Whether the store is behind a network, so that a query blocks."""

    def read(self, query: FeatureQuery) -> FeatureAnswer:
        """Look up features; a network failure becomes the answer's `problem`, not an exception."""

    def close(self) -> None:
        """Release connections and files."""


def stored_columns(contract: Contract, side: Side) -> dict[str, Any]:
    """The columns that a store holds by this side's id, as features: not the id.

    Instead of rates by category, the user has the lists that they are looked up in.
    """
    crosses = contract.crosses()
    found = stored_features(contract, side)
    found = {name: feature for name, feature in found.items() if name not in crosses}
    return found | (contract.cross_lists() if side == "user" else {})


def stored_features(contract: Contract, side: Side) -> dict[str, Any]:
    """The features that a store answers by this side's id, in the contract's order: not the id."""
    ids = (contract.user, contract.item)
    return {name: feature for name, feature in contract.of_side(side) if name not in ids}


@functools.lru_cache(maxsize=64)
def all_present(rows: int) -> np.ndarray:
    """Presence (rows,) that is all True; shared between calls, hence read-only."""
    is_present = np.ones(rows, bool)
    is_present.setflags(write=False)
    return is_present


def missing_column(feature: Any, rows: int) -> Column:
    """A column of missing values."""
    dtype, all_missing = value_dtype(feature), np.zeros(rows, bool)
    if isinstance(feature, IdListFeature):
        return Column(empty_like(dtype, (rows, 1)), all_missing, np.zeros(rows, np.int64))
    if isinstance(feature, VectorFeature):
        return Column(empty_like(dtype, (rows, feature.size)), all_missing)
    return Column(empty_like(dtype, (rows,)), all_missing)


def pad_lists(flat: np.ndarray, lengths: np.ndarray, dtype: str) -> np.ndarray:
    """Concatenated lists as (rows, L), each padded at the end."""
    values = empty_like(dtype, (len(lengths), max(int(lengths.max(initial=0)), 1)))
    values[np.arange(values.shape[1]) < lengths[:, None]] = flat
    return values


def to_column(feature: Any, values: Sequence[Any]) -> Column:
    """A column from Python values.  None is missing; lists hold no None."""
    dtype = value_dtype(feature)
    present = np.fromiter((value is not None for value in values), bool, len(values))
    if isinstance(feature, IdListFeature):
        lists = [(value or ())[-feature.max_length :] for value in values]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = _array(dtype, [value for values_ in lists for value in values_])
        return Column(pad_lists(flat, lengths, dtype), present, lengths)
    filler: Any = "" if dtype == "string" else 0
    if isinstance(feature, VectorFeature):
        filler = [0.0] * feature.size
    return Column(_array(dtype, [filler if v is None else v for v in values]), present)


def _array(dtype: str, values: list[Any]) -> np.ndarray:
    if dtype != "string":
        return np.array(values, dtype)
    found = np.empty(len(values), object)
    found[:] = [value.encode() for value in values]
    return found


def read_priors(folder: ExamplesFolder, contract: Contract) -> dict[str, float]:
    """The priors of a folder of examples.

    Raises:
        DataError: the statistics are missing or damaged, or lack the prior of a feature.
    """
    wanted = [
        n for n, rule in contract.label_counters().items() if not isinstance(rule, LabelCount)
    ]
    if not wanted:
        return {}
    priors = Statistics.read(folder.statistics).priors
    if absent := [name for name in wanted if name not in priors]:
        raise DataError(
            f"{folder.statistics}: priors: expected those of {', '.join(wanted)}; "
            f"{absent[0]!r} is absent; make the examples again with `multigate examples`"
        )
    return {name: priors[name] for name in wanted}


def parse_cut_off(text: str | None) -> float | None:
    """A manifest's cut-off (ISO 8601) as seconds since 1970."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a snapshot, or of the examples that it comes from.

    Raises:
        ServingError: the file is absent or damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ServingError(f"{path}: cannot be read as a snapshot's manifest: {error}") from None
    if not isinstance(values, dict):
        raise ServingError(f"{path}: expected a JSON object")
    return values
