"""Examples on disk to encoded arrays in memory, and from there to batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from configs.contract import Contract
from configs.errors import DataError
from configs.files import LABEL, SPLITS, ExamplesFolder
from configs.statistics import Statistics
from model import backend, scores
from model.encoding import Encoded, Encoder

_ROWS_AT_ONCE = 1 << 18  # read and encoded together: bounds what raw text needs of memory

Batch = tuple[Encoded, np.ndarray]
"""Encoded features (B, ...) and targets (B, T)."""


@dataclass(frozen=True)
class Examples:
    """One split, encoded.

    Attributes:
        features: arrays by feature, see `model.encoding`.
        labels: (N, T) float32 in own units, in the contract's order of tasks; NaN where masked.
    """

    features: Encoded
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray | slice) -> "Examples":
        """Some rows."""
        return Examples({k: v[rows] for k, v in self.features.items()}, self.labels[rows])


def read_split(folder: Path, split: str, encoder: Encoder) -> Examples:
    """Read and encode one split of an examples folder, in the order of its files.

    Raises:
        DataError: no such split, no rows, a column is missing, or a label is not what its task's
            type allows.
    """
    if split not in SPLITS:
        raise DataError(f"split: expected one of {', '.join(SPLITS)}; received {split!r}")
    contract = encoder.contract
    columns = [*contract.features, *(LABEL + task for task in contract.tasks)]
    parts: list[Examples] = []
    paths = sorted(ExamplesFolder(folder).split(split).glob("*.parquet"))
    for path in paths:
        parts.extend(_read_file(path, columns, encoder))
    if not any(len(part) for part in parts):
        raise DataError(
            f"{ExamplesFolder(folder).split(split)}: no examples in {len(paths)} Parquet files; "
            "expected at least one row; see the manifest's counts, and the split's shares or dates"
        )
    keys = parts[0].features
    return Examples(
        {key: np.concatenate([part.features[key] for part in parts]) for key in keys},
        np.concatenate([part.labels for part in parts]),
    )


def targets(examples: Examples, contract: Contract, statistics: Statistics) -> np.ndarray:
    """Targets (N, T) float32 to train towards, see `scores.targets`; NaN where masked."""
    columns = [
        scores.targets(task, statistics.tasks[name], examples.labels[:, t])
        for t, (name, task) in enumerate(contract.tasks.items())
    ]
    return np.stack(columns, axis=1)


def shuffled(rows: int, seed: int, epoch: int) -> np.ndarray:
    """Order of the rows in one epoch, (N,): a function of seed and epoch alone."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def batches(
    features: Encoded, targets: np.ndarray, size: int, order: np.ndarray | None = None
) -> Iterator[Batch]:
    """Cut rows into batches; the last may be smaller, no row is left out.

    Args:
        features: arrays of N rows.
        targets: (N, T).
        size: B.
        order: (N,) order of the rows; as they stand where None.
    """
    for start in range(0, len(targets), size):
        stop = start + size
        rows = slice(start, stop) if order is None else order[start:stop]
        yield {name: values[rows] for name, values in features.items()}, targets[rows]


class Feed:
    """One split as input of `fit` and `evaluate`, epoch after epoch.

    On TensorFlow batches are gathered in C++ ahead of the model (`tf.data`), some ten times as
    fast as training consumes them; on other backends by NumPy, between two steps.

    Args:
        features: arrays of N rows.
        targets: (N, T).
        size: B.
    """

    def __init__(self, features: Encoded, targets: np.ndarray, size: int) -> None:
        self.size = size
        self.rows = len(targets)
        self.steps = -(-self.rows // size)
        self._features: Any = features
        self._targets: Any = targets
        if backend.name() == "tensorflow":
            import tensorflow as tf

            # Tensors once and for all: every epoch's pipeline refers to them, none copies them.
            self._features = {name: tf.constant(values) for name, values in features.items()}
            self._targets = tf.constant(targets)

    def epoch(self, order: np.ndarray | None = None) -> Any:
        """Batches of all rows, in the given order (N,) or as they stand."""
        if backend.name() != "tensorflow":
            return batches(self._features, self._targets, self.size, order)
        import tensorflow as tf

        arrays = (self._features, self._targets)
        rows = tf.data.Dataset.from_tensor_slices(np.arange(self.rows) if order is None else order)
        return (
            rows.batch(self.size)
            .map(lambda index: tf.nest.map_structure(lambda a: tf.gather(a, index), arrays))
            .prefetch(4)
        )


def _read_file(path: Path, columns: list[str], encoder: Encoder) -> Iterator[Examples]:
    """Read one Parquet file in pieces."""
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file: {error}; build the examples anew") from None
    with file:
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise DataError(
                f"{path}: column {missing[0]!r} is missing; received "
                f"{', '.join(file.schema_arrow.names)}; build the examples with this contract"
            )
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
            table = pa.Table.from_batches([batch])
            try:
                features = encoder(table)
            except DataError as error:
                raise DataError(f"{path}: {error}") from None
            labels = [
                _labels(table[LABEL + name], task.type == "binary", f"{path}: {LABEL}{name}")
                for name, task in encoder.contract.tasks.items()
            ]
            yield Examples(features, np.stack(labels, axis=1))


def _labels(column: pa.ChunkedArray, binary: bool, where: str) -> np.ndarray:
    """Labels (N,) float32 of one task, NaN where masked."""
    values = pc.fill_null(column.cast(pa.float32()), np.nan).to_numpy()
    known = values[~np.isnan(values)]
    wrong = known[(known != 0) & (known != 1)] if binary else known[~np.isfinite(known)]
    if len(wrong):
        expected = "0 or 1" if binary else "finite numbers"
        raise DataError(
            f"{where}: expected {expected} or null, received {wrong[0]}; mend the task's label rule"
        )
    return values
