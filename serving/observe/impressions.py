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

A call only puts references into a bounded queue; a thread makes the rows and writes them.  Calls
that do not fit are dropped and counted; no call waits.
"""

import contextlib
import importlib
import os
import threading
import time
import urllib.parse
import zlib
from collections import deque
from dataclasses import dataclass, field
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
from multigate.configs.errors import ServingError
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG

_QUEUED_ROWS = 100_000  # some 50 MB with a dozen features
_BYTES_PER_FILE = 64 << 20  # in memory, whatever the number of rows
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
    places: np.ndarray | None = None
    """(N,) where the candidates stand in the request; None: in this order."""


@dataclass
class _File:
    """A file that is being filled."""

    since: float
    """Monotonic seconds of its first call."""
    tables: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


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
        try:
            self._pa = importlib.import_module("pyarrow")
            self._parquet = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise ServingError(
                "--impression_log: needs pyarrow, which is not installed: pip install pyarrow"
            ) from None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServingError(f"--impression_log {folder}: {error.strerror}") from None
        if not os.access(folder, os.W_OK):
            raise ServingError(f"--impression_log {folder}: cannot be written to")
        self._folder = folder
        self._rate = rate
        self._rows_per_file = rows_per_file
        self._seconds_per_file = seconds_per_file
        self._metrics = metrics
        self._changed = threading.Condition()
        self._queue: deque[Ranked] = deque()
        self._queued = 0  # rows
        self._closed = False
        self._files = 0
        self._open: dict[tuple[str, str], _File] = {}
        self._thread = SupervisedThread("impressions", self._write, metrics.thread_failures.add)
        self._thread.start()

    def add(self, ranked: Ranked) -> None:
        """Log a call if it is sampled and there is room; never waits for the disk."""
        rows = len(ranked.order)
        if rows == 0 or not sampled(ranked.request_id, self._rate):
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
                    self._changed.wait(min(self._seconds_per_file, 1.0))
                calls = list(self._queue)
                self._queue.clear()
                self._queued = 0
                ended = self._closed
            for ranked in calls:
                self._keep(ranked)
            for key, file in list(self._open.items()):
                if ended or time.monotonic() - file.since >= self._seconds_per_file:
                    self._finish(key)

    def _keep(self, ranked: Ranked) -> None:
        key = ranked.model, ranked.schema
        try:
            table = rows_of(self._pa, ranked)
        except Exception:
            LOG.exception("impressions of request %s cannot be logged", ranked.request_id)
            self._metrics.impressions.add(ranked.model, "dropped", by=len(ranked.order))
            return
        file = self._open.setdefault(key, _File(time.monotonic()))
        file.tables.append(table)
        file.rows += len(table)
        file.bytes += table.nbytes
        if file.rows >= self._rows_per_file or file.bytes >= _BYTES_PER_FILE:
            self._finish(key)

    def _finish(self, key: tuple[str, str]) -> None:
        """Write a file under a hidden name, then rename it: readers see only whole files."""
        model, file = key[0], self._open.pop(key)
        folder = self._folder / urllib.parse.quote(model, safe="")
        self._files += 1
        name = f"impressions-{time.time_ns()}-{os.getpid()}-{self._files}.parquet"
        partial = folder / f".{name}.partial"
        try:
            # Versions of one schema may have tasks and features in another order.
            table = self._pa.concat_tables(file.tables, promote_options="default")
            folder.mkdir(exist_ok=True)
            self._parquet.write_table(table, partial, compression="zstd")
            partial.rename(folder / name)
        except Exception as error:  # whatever it is, the thread must live on
            LOG.error("impressions: %s cannot be written: %s", folder / name, error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._metrics.impressions.add(model, "dropped", by=file.rows)
        else:
            self._metrics.impressions.add(model, "written", by=file.rows)


def sampled(request_id: str, rate: float) -> bool:
    """Whether a call is logged; whoever knows its id, such as a feedback collector, can tell."""
    return zlib.crc32(request_id.encode()) < rate * 2**32


def rows_of(pa: Any, ranked: Ranked) -> Any:
    """A call as an Arrow table of K rows, best first."""
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
    for task in contract.tasks:
        columns[f"ranked/score/{task}"] = pa.array(ranked.outputs[task][order])
    for name, feature in contract.features.items():
        column = feature.column or name
        if feature.kind == _POSITION:
            columns[column] = columns["ranked/position"]
            continue
        places = order if feature.side == "item" else np.zeros(len(order), np.int64)
        columns[column] = pa.array(
            _values(name, feature, ranked.inputs, places), _type(pa, feature)
        )
    return pa.table(columns)


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
