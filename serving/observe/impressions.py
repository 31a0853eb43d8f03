"""The impression log: what was ranked, sampled, as rows that the pipeline reads back.

One row per item of an answer: the features as the model got them, each in the column that the
contract reads from a log (null where missing; see `feature_columns`), and these columns:

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

A call only puts its answer's features into a bounded queue; a thread makes the rows and writes
them.  Calls that do not fit are dropped and counted; no call waits.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from multigate.configs.contract import (
    LENGTH,
    PRESENT,
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.layout import SCORE, Arrays
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG
from multigate.serving.observe.gathering import GatherQueue
from multigate.serving.observe.row_files import RowFiles
from multigate.serving.observe.side import Side, sampled

_QUEUED_ROWS = 100_000  # some 50 MB with a dozen features
_POSITION = "position"
_OWN = "ranked/feature/"
"""Before the names of features whose column another one has."""
_TOGETHER = 2000
"""Rows that are made together."""
_GATHER_SECONDS = 2.0
"""For which the thread waits, after a call, for others whose rows it makes together with it."""


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
        self._queue = GatherQueue[Ranked](
            _QUEUED_ROWS, _TOGETHER, min(seconds_per_file, _GATHER_SECONDS)
        )
        self._thread = SupervisedThread("impressions", self._write, metrics.thread_failed)
        self._thread.start()

    def wants(self, request_id: str) -> bool:
        """Whether a call is sampled."""
        return sampled(request_id, self._rate)

    def add(self, ranked: Ranked) -> None:
        """Log a sampled call if there is room; never waits for the disk."""
        rows = len(ranked.order)
        # Of the answer alone: the queue's limit says nothing of the other candidates' memory.
        if rows and not self._queue.add(_of_the_answer(ranked), rows):
            self._metrics.impressions.add(ranked.model, "dropped", by=rows)

    def close(self) -> None:
        """Write what is queued, then stop."""
        self._queue.close()
        self._thread.join()

    def _write(self) -> None:
        ended = False
        while not ended:
            calls = self._queue.take(min(self._files.seconds_per_file, 1.0))
            ended = self._queue.ended
            for together in batches(calls, min(_TOGETHER, self._files.rows_per_file)):
                self._keep(together)
            self._files.finish_old(all_of_them=ended)

    def _keep(self, calls: list[Ranked]) -> None:
        try:
            table = rows_of(self._files.pyarrow, calls)
        except Exception:
            if len(calls) > 1:  # each alone: one may be the only one that fails
                for ranked in calls:
                    self._keep([ranked])
                return
            LOG.exception("impressions of request %s cannot be logged", calls[0].request_id)
            self._metrics.impressions.add(calls[0].model, "dropped", by=len(calls[0].order))
            return
        self._files.add(calls[0].model, calls[0].schema, table)


def batches(calls: Iterable[Ranked], rows: int) -> Iterator[list[Ranked]]:
    """Calls in a row that are of one version, up to so many rows, or one call of more."""
    batch: list[Ranked] = []
    held = 0
    for call in calls:
        size = len(call.order)
        other = batch and (call.contract is not batch[0].contract or call.model != batch[0].model)
        if batch and (other or call.version != batch[0].version or held + size > rows):
            yield batch
            batch, held = [], 0
        batch.append(call)
        held += size
    if batch:
        yield batch


def rows_of(pa: Any, calls: Sequence[Ranked], features: Collection[str] | None = None) -> Any:
    """Calls of one version as an Arrow table, each call's rows best first.

    Arrow takes some 10 us for a column, however short: calls are cheaper together.

    Args:
        pa: the package pyarrow.
        calls: of the same contract and version, with rows.
        features: that have a column; None: all of them.
    """
    calls = [_of_the_answer(call) for call in calls]
    contract, sizes = calls[0].contract, [len(call.order) for call in calls]
    which = np.repeat(np.arange(len(calls)), sizes)
    starts = np.cumsum([0, *(len(call.outputs[SCORE]) for call in calls[:-1])])
    order = np.concatenate([call.order for call in calls]) + starts[which]
    call_of_row = pa.array(which)

    def by_call(values: Any, kind: Any) -> Any:
        """A column with one value for all rows of a call."""
        return pa.array(values, kind).take(call_of_row)

    def by_row(name: str) -> np.ndarray:
        """Outputs of the answers' items."""
        return np.concatenate([call.outputs[name] for call in calls])[order]

    times = [round(call.at * 1e6) for call in calls]
    columns = {
        "ranked/time": by_call(times, pa.timestamp("us", "UTC")),
        "ranked/request_id": by_call([call.request_id for call in calls], pa.string()),
        "ranked/model_version": by_call([call.version for call in calls], pa.int64()),
        "ranked/position": pa.array(np.concatenate([np.arange(size) for size in sizes])),
        "ranked/candidate": pa.array(
            np.concatenate([_places(call) for call in calls]).astype(np.int64)
        ),
        "ranked/score": pa.array(by_row(SCORE)),
    }
    for name, (kind, values) in _sides(pa, [call.side for call in calls]).items():
        columns[name] = by_call(values, kind)
    for task in contract.tasks:
        columns[f"ranked/score/{task}"] = pa.array(by_row(task))
    inputs = [call.inputs for call in calls]
    own = feature_columns(contract, columns.keys())
    for name, feature in contract.features.items():
        if features is not None and name not in features:
            continue
        column = own[name]
        if feature.kind == _POSITION:
            columns[column] = columns["ranked/position"]
        else:
            rows = order if feature.side == "item" else which
            columns[column] = _column(pa, name, feature, inputs, rows)
    return pa.table(columns)


def feature_columns(contract: Contract, taken: Collection[str] = ()) -> dict[str, str]:
    """The column of each feature: the one that the contract reads, unless another feature has it.

    Several features may read one column, such as a title and the year in it, or columns of one name
    in different tables.  The column goes to the feature that holds most of it, and the others have
    one of their own, `ranked/feature/NAME`.

    Args:
        contract: the features.
        taken: columns that no feature may have.
    """

    def loss(name: str) -> tuple[Any, ...]:
        """Highest for the feature from which the least is known of its column."""
        feature: Any = contract.features[name]
        computed = any(
            getattr(feature, key, None) for key in ("pattern", "age", "counter", "history", "entry")
        )
        return (
            name not in (contract.user, contract.item),
            feature.source != "log",
            computed,
            not isinstance(feature, IdFeature | TextFeature),  # these keep the text
            feature.column not in (None, name),
            name,  # not the order in the contract, which versions of one schema need not share
        )

    found, held = {}, set(taken)
    for name in sorted(contract.features, key=loss):
        column = contract.features[name].column or name
        found[name] = f"{_OWN}{name}" if column in held else column
        held.add(column)
    return found


def _sides(pa: Any, sides: Sequence[Side | None]) -> dict[str, tuple[Any, list[Any]]]:
    """What the rows say of the trial: type and values by call."""
    return {
        "ranked/trial": (pa.int64(), [side and side.trial.version for side in sides]),
        "ranked/group": (pa.string(), [side and side.group for side in sides]),
        "ranked/canary": (pa.float64(), [side and side.trial.canary for side in sides]),
        "ranked/shadow": (pa.bool_(), [side and side.shadowed for side in sides]),
    }


def _of_the_answer(ranked: Ranked) -> Ranked:
    """The call as if only its answer's items had been asked for.

    An answer may have ten of a thousand candidates, and rows are made of all that calls have.
    """
    order = ranked.order
    if len(order) == len(ranked.outputs[SCORE]):
        return ranked
    inputs = dict(ranked.inputs)
    for name, _ in ranked.contract.of_side("item"):
        for key in (name, name + PRESENT, name + LENGTH):
            if key in inputs:
                inputs[key] = inputs[key][order]
    outputs = {name: values[order] for name, values in ranked.outputs.items()}
    return replace(
        ranked, inputs=inputs, outputs=outputs, order=np.arange(len(order)), places=_places(ranked)
    )


def _places(ranked: Ranked) -> np.ndarray:
    """(K,) where the answer's items stand in the request."""
    return ranked.order if ranked.places is None else ranked.places[ranked.order]


def _column(pa: Any, name: str, feature: Any, inputs: Sequence[Arrays], rows: np.ndarray) -> Any:
    """A feature's values, null where missing.  Makes whole arrays, and no object per value.

    Args:
        pa: the package pyarrow.
        name: of the feature.
        feature: of the contract.
        inputs: of the calls.
        rows: which of the inputs' rows, counted over all calls.
    """
    kind, values = _type(pa, feature), [one[name] for one in inputs]
    missing = None
    if name + PRESENT in inputs[0]:
        missing = ~np.concatenate([one[name + PRESENT] for one in inputs])
    if isinstance(feature, IdListFeature):
        lengths = [one[name + LENGTH] for one in inputs]
        held = [
            lists[np.arange(lists.shape[1]) < length[:, None]]
            for lists, length in zip(values, lengths, strict=True)
        ]
        made = _lists(pa, kind, np.concatenate(held), np.concatenate(lengths))
    elif isinstance(feature, VectorFeature):
        vectors = np.concatenate(values)
        there = np.ones(len(vectors), bool) if missing is None else ~missing
        made = _lists(pa, kind, vectors[there].ravel(), vectors.shape[1] * there)
    elif values[0].dtype == object:
        made = pa.array(np.concatenate(values), kind, mask=missing)  # refuses what is not UTF-8
    else:
        numbers = np.concatenate(values)[rows]  # NumPy takes rows of numbers faster than Arrow
        return pa.array(numbers, kind, mask=None if missing is None else missing[rows])
    return made.take(pa.array(rows))


def _lists(pa: Any, kind: Any, values: np.ndarray, lengths: np.ndarray) -> Any:
    """Lists of so many values each, one list after the other; null where a list is empty."""
    ends = pa.array(np.cumsum([0, *lengths.tolist()]), pa.int32())
    return pa.ListArray.from_arrays(
        ends, pa.array(values, kind.value_type), mask=pa.array(lengths == 0)
    )


def _type(pa: Any, feature: Any) -> Any:
    if isinstance(feature, VectorFeature):
        return pa.list_(pa.float32())
    if isinstance(feature, NumberFeature):
        return pa.float32()
    one = pa.string() if feature.dtype == "string" else pa.int64()
    return pa.list_(one) if isinstance(feature, IdListFeature) else one
