"""Features that a Rank call leaves out: they come from a store of known users and items.

A store holds the pipeline's snapshot: what an impression at the cut-off would see.  Numbers of
`since` grow with the clock, as the pipeline's definition does while nothing new happens; counters
and histories are as of the cut-off.  An id that the log does not name had no events: its counts are
0, as the pipeline's are, and whatever else there is to know of it is missing.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from multigate.configs.contract import Contract, IdListFeature, NumberFeature, Side
from multigate.configs.errors import ServingError
from multigate.serving.core.layout import empty_like, value_dtype


@dataclass(frozen=True)
class Column:
    """One feature of some rows."""

    values: np.ndarray
    """(rows,), or of a list (rows, L), padded at the end; fillers where absent."""
    present: np.ndarray
    """(rows,) bool."""
    lengths: np.ndarray | None = None
    """(rows,) int64, of a list."""


@dataclass(frozen=True)
class Question:
    """What a request leaves out."""

    user: bytes | int | None
    """None: the user is not named, or no feature of the user is asked for."""
    user_features: Sequence[str]
    items: np.ndarray
    """(N,) bytes objects or int64."""
    item_features: Sequence[str]


@dataclass(frozen=True)
class Stored:
    """What a store has to say."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    """(1,) for features of the user, (N,) for those of items."""
    problem: str = ""
    """Why the store said nothing."""
    asked: bool = True
    """Whether it was asked at all: one that fails again and again is left alone for a moment."""
    cut_off: float | None = None
    """Seconds since 1970 up to which the features know the log."""


class Store(Protocol):
    """A source of features by id."""

    remote: bool
    """Whether an answer comes over a network, so that one has to wait for it."""

    def read(self, question: Question) -> Stored:
        """Answer, or name the problem; never raises for what a network does."""

    def close(self) -> None:
        """Give back what it holds."""


class OnlineFeatures:
    """A store as the request's reader asks it, with the clock taken into account."""

    def __init__(
        self,
        contract: Contract,
        store: Store,
        clock: Callable[[], float] | None = time.time,
        observe: Callable[[Stored, float], None] = lambda stored, seconds: None,
    ) -> None:
        """Wrap a store.

        Args:
            contract: of the features.
            store: holds them.
            clock: seconds since 1970; None stops it at the cut-off.
            observe: is told every answer and how many seconds it took.
        """
        self._store = store
        self.remote = store.remote
        self._observe = observe
        self._clock = clock
        self._advancing = {
            name: feature.since.within
            for name, feature in contract.features.items()
            if isinstance(feature, NumberFeature) and feature.since is not None
        }

        self._counted = [
            name
            for name, feature in contract.features.items()
            if isinstance(feature, NumberFeature) and feature.count is not None
        ]

    def read(self, question: Question) -> Stored:
        """The features asked for, as of now."""
        started = time.perf_counter()
        stored = self._store.read(question)
        self._observe(stored, time.perf_counter() - started)
        counted = {
            name: replace(column, present=np.ones_like(column.present))
            for name in self._counted
            if (column := stored.columns.get(name)) is not None
        }
        stored = replace(stored, columns={**stored.columns, **counted})
        if self._clock is None or stored.cut_off is None:
            return stored
        passed = max(self._clock() - stored.cut_off, 0.0)
        advanced = {
            name: advance(stored.columns[name], passed, within)
            for name, within in self._advancing.items()
            if name in stored.columns
        }
        return replace(stored, columns={**stored.columns, **advanced})

    def close(self) -> None:
        """Give back what the store holds."""
        self._store.close()


def advance(column: Column, seconds: float, within: timedelta | None = None) -> Column:
    """Times since an event, so many seconds later, had nothing happened in between.

    Args:
        column: seconds since the event.
        seconds: how much later it is.
        within: events longer ago are forgotten.
    """
    later = column.values.astype(np.float64) + seconds
    limit = np.inf if within is None else within.total_seconds()
    present = column.present & (later <= limit)
    return replace(column, values=np.where(present, later, 0).astype(np.float32), present=present)


def stored_features(contract: Contract, side: Side) -> dict[str, Any]:
    """The features of a side that a store holds under the side's id, in the contract's order."""
    ids = (contract.user, contract.item)
    return {name: feature for name, feature in contract.of_side(side) if name not in ids}


def absent(feature: Any, rows: int) -> Column:
    """A column of missing values."""
    dtype, nothing = value_dtype(feature), np.zeros(rows, bool)
    if isinstance(feature, IdListFeature):
        return Column(empty_like(dtype, (rows, 1)), nothing, np.zeros(rows, np.int64))
    return Column(empty_like(dtype, (rows,)), nothing)


def padded(flat: np.ndarray, lengths: np.ndarray, dtype: str) -> np.ndarray:
    """Lists one after the other as (rows, L), padded at the end."""
    values = empty_like(dtype, (len(lengths), max(int(lengths.max(initial=0)), 1)))
    values[np.arange(values.shape[1]) < lengths[:, None]] = flat
    return values


def column_of(feature: Any, values: Sequence[Any]) -> Column:
    """A column from Python values, None where missing; lists without None and empty texts."""
    dtype = value_dtype(feature)
    present = np.fromiter((value is not None for value in values), bool, len(values))
    if isinstance(feature, IdListFeature):
        lists = [(value or ())[-feature.max_length :] for value in values]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = _array(dtype, [value for values_ in lists for value in values_])
        return Column(padded(flat, lengths, dtype), present, lengths)
    filler = "" if dtype == "string" else 0
    return Column(_array(dtype, [filler if v is None else v for v in values]), present)


def _array(dtype: str, values: list[Any]) -> np.ndarray:
    if dtype != "string":
        return np.array(values, dtype)
    found = np.empty(len(values), object)
    found[:] = [value.encode() for value in values]
    return found


def read_cut_off(text: str | None) -> float | None:
    """Seconds since 1970 of a manifest's cut-off."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def read_manifest(path: Path) -> dict[str, Any]:
    """A snapshot's manifest.

    Raises:
        ServingError: it is absent or damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ServingError(f"{path}: not a snapshot's manifest: {error}") from None
    if not isinstance(values, dict):
        raise ServingError(f"{path}: expected a JSON object")
    return values
