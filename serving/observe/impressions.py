"""The impression log: what was ranked, sampled, as rows that the pipeline reads back.

One row per item of an answer: the features as the model got them, each in the column that the
contract reads from a log (null where missing), and these columns:

    ranked/time            when it was answered
    ranked/request_id      the call; feedback joins on it and the item
    ranked/model_version   who ranked
    ranked/position        place in the answer, from 0; also in the contract's position feature
    ranked/candidate       place among the caller's candidates
    ranked/score           combined
    ranked/score/TASK      per task
    ranked/trial           the version on trial when it was answered; null without one
    ranked/group           canary or stable: whom the user was given to, whoever answered
    ranked/canary          percentage of the users whom the canary had
    ranked/shadow          whether the shadow log has to have the call

A call only puts references into a bounded queue; a thread makes the rows and writes them.  Calls
that do not fit are dropped and counted; no call waits.
"""

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdListFeature,
    NumberFeature,
    VectorFeature,
)
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG
from multigate.serving.observe.row_files import RowFiles
from multigate.serving.observe.side import Side, sampled

_QUEUED_ROWS = 100_000  # some 50 MB with a dozen features
_POSITION = "position"


@dataclass(frozen=True)
class Ranked:
    """One answered call; holds references, no copies."""

    model: str
    version: int
    schema: str
    contract: Contract
    request_id: str
    inputs: Arrays
    """Of the `rank` signature, with M = 1."""
    outputs: Arrays
    """(N,) each."""
    order: np.ndarray
    """(K,) candidates of the answer, best first."""
    at: float
    """Seconds since 1970."""
    side: Side | None = None
    """Of the trial, while a version is on trial."""
    places: np.ndarray | None = None
    """(N,) where the candidates stand in the request; None: in this order."""


class ImpressionLog:
    """Writes sampled calls to `FOLDER/MODEL/impressions-*.parquet`."""

    def __init__(
        self,
        folder: Path,
        rate: float,
        rows_per_file: int,
        seconds_per_file: float,
        metrics: ServerMetrics,
    ) -> None:
        """Start the writer.

        Args:
            folder: created if absent.
            rate: share of the calls to log, chosen by request id.
            rows_per_file: a file is finished once it has so many rows.
            seconds_per_file: a file is finished once its first row is so old.
            metrics: counts the rows written and dropped.

        Raises:
            ServingError: the folder cannot be written to, or pyarrow is not installed.
        """
        self._files = RowFiles(
            folder,
            "impressions",
            rows_per_file,
            seconds_per_file,
            lambda model, result, rows: metrics.impressions.add(model, result, by=rows),
        )
        self._rate = rate
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queue: deque[Ranked] = deque()
        self._queued = 0  # rows
        self._closed = False
        self._thread = SupervisedThread("impressions", self._write, metrics.thread_failed)
        self._thread.start()

    def wants(self, request_id: str) -> bool:
        """Whether a call is sampled."""
        return sampled(request_id, self._rate)

    def add(self, ranked: Ranked) -> None:
        """Log a sampled call if there is room; never waits for the disk."""
        rows = len(ranked.order)
        if rows == 0:
            return
        with self._changed:
            full = self._closed or self._queued + rows > _QUEUED_ROWS
            if not full:
                self._queue.append(ranked)
                self._queued += rows
                self._changed.notify()
        if full:
            self._metrics.impressions.add(ranked.model, "dropped", by=rows)

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _write(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                if not self._queue and not self._closed:
                    self._changed.wait(min(self._files.seconds_per_file, 1.0))
                calls = list(self._queue)
                self._queue.clear()
                self._queued = 0
                ended = self._closed
            for ranked in calls:
                self._keep(ranked)
            self._files.finish_old(all_of_them=ended)

    def _keep(self, ranked: Ranked) -> None:
        try:
            table = rows_of(self._files.pyarrow, ranked)
        except Exception:
            LOG.exception("impressions of request %s cannot be logged", ranked.request_id)
            self._metrics.impressions.add(ranked.model, "dropped", by=len(ranked.order))
            return
        self._files.add(ranked.model, ranked.schema, table)


def rows_of(pa: Any, ranked: Ranked, features: Collection[str] | None = None) -> Any:
    """A call as an Arrow table of K rows, best first.

    Args:
        pa: the package pyarrow.
        ranked: the call.
        features: that have a column; None: all of them.
    """
    order, contract = ranked.order, ranked.contract
    columns = {
        "ranked/time": pa.array(
            np.full(len(order), round(ranked.at * 1e6)), pa.timestamp("us", "UTC")
        ),
        "ranked/request_id": pa.array([ranked.request_id] * len(order), pa.string()),
        "ranked/model_version": pa.array(np.full(len(order), ranked.version, np.int64)),
        "ranked/position": pa.array(np.arange(len(order))),
        "ranked/candidate": pa.array(_places(ranked).astype(np.int64)),
        "ranked/score": pa.array(ranked.outputs[SCORE][order]),
    }
    columns |= _side(pa, ranked.side, len(order))
    for task in contract.tasks:
        columns[f"ranked/score/{task}"] = pa.array(ranked.outputs[task][order])
    same = np.zeros(len(order), np.int64)
    for name, feature in contract.features.items():
        if features is not None and name not in features:
            continue
        column = feature.column or name
        if feature.kind == _POSITION:
            columns[column] = columns["ranked/position"]
            continue
        places, kind = order if feature.side == "item" else same, _type(pa, feature)
        inputs = ranked.inputs
        if inputs[name].ndim == 1 and inputs[name].dtype != object:  # without a Python object each
            present = inputs.get(name + PRESENT)
            missing = None if present is None else ~present[places]
            columns[column] = pa.array(inputs[name][places], kind, mask=missing)
        elif isinstance(feature, IdListFeature) and places is same:  # long, and the same K times
            array = pa.array(_values(name, feature, inputs, same[:1]), kind)
            columns[column] = array.take(pa.array(same))
        else:
            columns[column] = pa.array(_values(name, feature, inputs, places), kind)
    return pa.table(columns)


def _side(pa: Any, side: Side | None, rows: int) -> dict[str, Any]:
    """What the rows say of the trial."""
    values = (
        {"trial": None, "group": None, "canary": None, "shadow": None}
        if side is None
        else {
            "trial": side.trial.version,
            "group": side.group,
            "canary": side.trial.canary,
            "shadow": side.shadowed,
        }
    )
    types = {
        "trial": pa.int64(),
        "group": pa.string(),
        "canary": pa.float64(),
        "shadow": pa.bool_(),
    }
    return {f"ranked/{name}": pa.array([values[name]] * rows, kind) for name, kind in types.items()}


def _places(ranked: Ranked) -> np.ndarray:
    """(K,) where the answer's items stand in the request."""
    return ranked.order if ranked.places is None else ranked.places[ranked.order]


def _values(name: str, feature: Any, inputs: Arrays, places: np.ndarray) -> list[Any]:
    """Values of a feature at these rows; None where missing."""
    values = inputs[name][places]
    if isinstance(feature, IdListFeature):
        return [
            [_plain(value) for value in row[:length].tolist()] or None
            for row, length in zip(values, inputs[name + LENGTH][places], strict=True)
        ]
    present = inputs.get(name + PRESENT)
    plain = [_plain(value) for value in values.tolist()]
    if present is None:
        return plain
    known = present[places].tolist()
    return [value if there else None for value, there in zip(plain, known, strict=True)]


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _type(pa: Any, feature: Any) -> Any:
    if isinstance(feature, VectorFeature):
        return pa.list_(pa.float32())
    if isinstance(feature, NumberFeature):
        return pa.float32()
    one = pa.string() if feature.dtype == "string" else pa.int64()
    return pa.list_(one) if isinstance(feature, IdListFeature) else one
