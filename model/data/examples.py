"""Examples on disk to encoded arrays in memory."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError
from multigate.configs.files import LABEL, REQUEST, SPLITS, TIME, ExamplesFolder
from multigate.configs.statistics import Statistics
from multigate.model.data.encoding import Encoded, Encoder
from multigate.model.data.hashing import hash_ids
from multigate.model.data.recency import newest_time, recency_weights
from multigate.model.data.rows import Rows, as_weights
from multigate.model.ranker import scores

_ROWS_AT_ONCE = 1 << 18  # rows read and encoded together; bounds the memory of raw text


@dataclass(frozen=True)
class Examples:
    """One split, encoded.

    Attributes:
        features: arrays by feature, see `model.data.encoding`.
        labels: (N, T) float32 in own units, in the contract's order of tasks; NaN where masked.
        weights: (N,) float32 weights of the rows in the loss; None if all are equal.
        requests: (N,) int64, equal for the rows of one request of a user; None if not read.
        taught: (N, T) float32, `Taught.scores` of the rows; None without a teacher.
    """

    features: Encoded
    labels: np.ndarray
    weights: np.ndarray | None = None
    requests: np.ndarray | None = None
    taught: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray | slice) -> "Examples":
        """Some rows."""
        weights = None if self.weights is None else self.weights[rows]
        requests = None if self.requests is None else self.requests[rows]
        taught = None if self.taught is None else self.taught[rows]
        features = {k: v[rows] for k, v in self.features.items()}
        return Examples(features, self.labels[rows], weights, requests, taught)


class RowGroup(NamedTuple):
    """A row group of a Parquet file: the smallest part that can be read."""

    path: Path
    number: int
    first: int
    """Place of its first row in the split."""
    rows: int


class Taught(NamedTuple):
    """What a teacher says of the rows of two splits, see `model.baselines.teacher`.

    All scores are in the labels' transforms, in the order of the files; NaN for tasks that it does
    not teach.

    Attributes:
        scores: (N, T) float32, of the training rows; NaN also where a row does not learn it.
        held_out: (V, T) float32, of the validation rows.
        share: of the scores in a label of a training row.
    """

    scores: np.ndarray
    held_out: np.ndarray
    share: float


class Lesson(NamedTuple):
    """How a teacher teaches a task in an epoch.

    Attributes:
        share: of its score in the label of a training row.
        unlabelled: whether rows that have its score and no label learn the score.
    """

    share: float
    unlabelled: bool = True


class Split:
    """One split of an examples folder; its row groups are read on demand.

    Args:
        folder: of examples.
        split: one of `SPLITS`.
        encoder: of the examples or of a checkpoint.
        weight: column of the rows' weights in the loss; None for equal weights.
        recency: half-life of weights by age, see `model.data.recency`; None for none.
        requests: whether to read which rows are of one request.
        taught: what a teacher says of its rows; None without one.

    Attributes:
        groups: the row groups, in the order of the files.
        rows: number of rows of the split.

    Raises:
        DataError: no such split, no rows, a file is damaged or a column is missing.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        encoder: Encoder,
        weight: str | None = None,
        recency: timedelta | None = None,
        requests: bool = False,
        taught: Taught | None = None,
    ) -> None:
        if split not in SPLITS:
            raise DataError(f"split: expected one of {', '.join(SPLITS)}; received {split!r}")
        self.encoder = encoder
        self.weight, self.recency, self.requests = weight, recency, requests
        self._taught = taught
        contract = encoder.contract
        labels = [LABEL + task for task in contract.tasks]
        options = {}  # columns that an option of the training reads
        if weight is not None:
            options[weight] = "weight"
        if recency is not None:
            options[TIME] = "recency"
        if requests:
            options[REQUEST] = "ranking"
        self.columns = list(dict.fromkeys([*contract.features, *labels, *options]))
        self.groups: list[RowGroup] = []
        self.rows = 0
        paths = sorted(ExamplesFolder(folder).split(split).glob("*.parquet"))
        for path in paths:
            with _open(path, self.columns, options) as file:
                for index in range(file.metadata.num_row_groups):
                    rows = file.metadata.row_group(index).num_rows
                    if rows:
                        self.groups.append(RowGroup(path, index, self.rows, rows))
                        self.rows += rows
        if not self.rows:
            raise DataError(
                f"{ExamplesFolder(folder).split(split)}: no examples in {len(paths)} Parquet "
                "files; expected at least one row; see the manifest's counts, and the split's "
                "shares or dates"
            )
        self._newest = newest_time(paths) if recency is not None else 0

    def read(self, groups: Iterable[RowGroup]) -> Iterator[Examples]:
        """Read and encode row groups in the given order, in parts of bounded size.

        Raises:
            DataError: see `read_split`.
        """
        for path, members in itertools.groupby(groups, key=lambda group: group.path):
            yield from self._read_file(path, list(members))

    def sample(self, limit: int) -> Examples:
        """Up to about `limit` rows of row groups that are spread evenly; at least one group's.

        Raises:
            DataError: see `read_split`.
        """
        return concatenate(list(self.read(self.spread(limit))))

    def spread(self, limit: int) -> list[RowGroup]:
        """The row groups of `sample`."""
        mean = max(self.rows // max(len(self.groups), 1), 1)
        step = max(-(-len(self.groups) * mean // limit), 1)
        return self.groups[::step]

    def _read_file(self, path: Path, members: list[RowGroup]) -> Iterator[Examples]:
        contract = self.encoder.contract
        groups = [group.number for group in members]
        places = itertools.chain.from_iterable(
            range(group.first, group.first + group.rows) for group in members
        )
        with _open(path, self.columns) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=self.columns):
                table = pa.Table.from_batches([batch])
                try:
                    features = self.encoder(table)
                except DataError as error:
                    raise DataError(f"{path}: {error}") from None
                labels = [
                    _labels(table[LABEL + name], task.type == "binary", f"{path}: {LABEL}{name}")
                    for name, task in contract.tasks.items()
                ]
                weights = None
                if self.weight is not None:
                    weights = as_weights(table[self.weight], f"{path}: {self.weight}")
                if self.recency is not None:
                    by_age = recency_weights(table[TIME], self._newest, self.recency)
                    weights = by_age if weights is None else weights * by_age
                requests = _requests(table, contract.user) if self.requests else None
                taught = None
                if self._taught is not None:
                    taught = self._taught.scores[np.fromiter(places, np.int64, len(table))]
                yield Examples(features, np.stack(labels, axis=1), weights, requests, taught)


def concatenate(parts: Sequence[Examples]) -> Examples:
    """Concatenate one or more parts."""
    weights = [part.weights for part in parts if part.weights is not None]
    requests = [part.requests for part in parts if part.requests is not None]
    taught = [part.taught for part in parts if part.taught is not None]
    return Examples(
        {key: np.concatenate([part.features[key] for part in parts]) for key in parts[0].features},
        np.concatenate([part.labels for part in parts]),
        np.concatenate(weights) if weights else None,
        np.concatenate(requests) if requests else None,
        np.concatenate(taught) if taught else None,
    )


def read_split(folder: Path, split: str, encoder: Encoder, weight: str | None = None) -> Examples:
    """Read and encode one split of an examples folder, in the order of its files.

    Args:
        folder: of examples.
        split: one of `SPLITS`.
        encoder: of the examples or of a checkpoint.
        weight: column of the rows' weights in the loss; None for equal weights.

    Raises:
        DataError: no such split, no rows, a column is missing, a label does not fit its task's
            type, or a weight is negative or not finite.
    """
    found = Split(folder, split, encoder, weight)
    return concatenate(list(found.read(found.groups)))


def encode(rows: Rows, encoder: Encoder, weight: str | None = None) -> Examples:
    """Encode rows that are read already.

    Args:
        rows: N of them.
        encoder: of the examples or of a checkpoint.
        weight: column of the rows' weights in the loss; None for equal weights.

    Raises:
        DataError: see `read_split`.
    """
    rows.check_columns(list(encoder.contract.features))
    try:
        features = encoder(rows.table)
    except DataError as error:
        raise DataError(f"{rows.source}: {error}") from None
    weights = None if weight is None else rows.weights(weight)
    return Examples(features, rows.labels(encoder.contract), weights)


def targets(
    examples: Examples,
    contract: Contract,
    statistics: Statistics,
    lessons: Mapping[str, Lesson] | None = None,
) -> np.ndarray:
    """Training targets (N, T) float32, see `scores.targets`; NaN where masked.

    Args:
        examples: N rows.
        contract: tasks.
        statistics: of the training split.
        lessons: by task that is taught; none: no task.
    """
    columns = []
    for t, (name, task) in enumerate(contract.tasks.items()):
        known = scores.targets(task, statistics.tasks[name], examples.labels[:, t])
        lesson = (lessons or {}).get(name)
        if lesson is not None and examples.taught is not None:
            taught = scores.scaled(task, statistics.tasks[name], examples.taught[:, t])
            mixed = (1 - lesson.share) * known + lesson.share * taught
            if lesson.unlabelled:
                mixed = np.where(np.isnan(known), taught, mixed)
            known = np.where(np.isnan(taught), known, mixed)
        columns.append(known)
    return np.stack(columns, axis=1)


def batches(
    features: Encoded, targets: np.ndarray, size: int
) -> Iterator[tuple[Encoded, np.ndarray]]:
    """Cut rows into batches; the last may be smaller, and no row is dropped.

    Args:
        features: arrays of N rows.
        targets: (N, T).
        size: B.
    """
    for start in range(0, len(targets), size):
        rows = slice(start, start + size)
        yield {name: values[rows] for name, values in features.items()}, targets[rows]


def _open(
    path: Path, columns: list[str], options: Mapping[str, str] | None = None
) -> pq.ParquetFile:
    """Open a Parquet file and check its columns; `options` are those that keys of `train` name."""
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file: {error}; build the examples again") from None
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        file.close()
        advice = "build the examples with this contract"
        if missing[0] in (options or {}):
            key = (options or {})[missing[0]]
            advice = f"correct train.{key}, or add the column to the examples"
        raise DataError(
            f"{path}: column {missing[0]!r} is missing; received "
            f"{', '.join(file.schema_arrow.names)}; {advice}"
        )
    return file


def _requests(table: pa.Table, user: str) -> np.ndarray:
    """A number (N,) for each row's request and user; different ones differ but for chance."""
    largest = 1 << 62
    both = [
        hash_ids(pc.fill_null(table[name].cast(pa.string()), "").combine_chunks(), largest)
        for name in (REQUEST, user)
    ]
    mixed = both[0].view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ both[1].view(np.uint64)
    return (mixed >> np.uint64(1)).astype(np.int64)


def _labels(column: pa.ChunkedArray, binary: bool, where: str) -> np.ndarray:
    """Labels (N,) float32 of one task, NaN where masked."""
    values = pc.fill_null(column.cast(pa.float32()), np.nan).to_numpy()
    known = values[~np.isnan(values)]
    wrong = known[(known != 0) & (known != 1)] if binary else known[~np.isfinite(known)]
    if len(wrong):
        expected = "0 or 1" if binary else "finite numbers"
        raise DataError(
            f"{where}: expected {expected} or null, received {wrong[0]}; correct the label rule"
        )
    return values
