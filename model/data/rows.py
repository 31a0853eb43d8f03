"""The rows of one split as they are in the files, to score several models on the same rows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.errors import DataError, one_line
from multigate.configs.files import IMPRESSION, LABEL, REQUEST, SPLITS, ExamplesFolder
from multigate.configs.sections.nearest import did_you_mean, listed


@dataclass(frozen=True)
class Rows:
    """One split, in the order of its files.

    Attributes:
        source: folder that it was read from.
        table: every column: features, `label/<task>` and `meta/...`.
    """

    source: Path
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: np.ndarray) -> "Rows":
        """Some rows."""
        return Rows(self.source, self.table.take(pa.array(rows)))

    def spread(self, most: int) -> "Rows":
        """At most so many of the rows, evenly spread, the first and the last among them."""
        if len(self) <= most:
            return self
        return self.take(np.linspace(0, len(self) - 1, most).astype(np.int64))

    def once(self) -> "Rows":
        """The same impressions, each as one row with all its labels.

        Runs of several days that are read as one folder hold a row for each day on which a label of
        an impression closed, with the others masked. A ranked list holds the impression once,
        and what counts rows counts it once.
        """
        names = self.table.column_names
        if IMPRESSION not in names or self.table[IMPRESSION].null_count:
            return self
        _, first, of = np.unique(
            self.table[IMPRESSION].to_numpy(), return_index=True, return_inverse=True
        )
        if len(first) == len(self):
            return self
        order = np.argsort(first)  # that of the files
        table = self.table.take(pa.array(first[order]))
        for name in (name for name in names if name.startswith(LABEL)):
            column = self.table[name]
            known = np.flatnonzero(column.is_valid())
            place = np.full(len(first), -1)
            place[of[known]] = known
            at = pa.array(place[order], mask=place[order] < 0)
            table = table.set_column(names.index(name), name, column.take(at))
        return Rows(self.source, table)

    def labels(self, contract: Contract) -> np.ndarray:
        """Labels (N, T) float32 in own units, in the contract's order of tasks; NaN where masked.

        Raises:
            DataError: a task has no label column, an infinite label, or a binary label other than
                0 and 1.
        """
        self.check_columns([LABEL + name for name in contract.tasks])
        found = np.full((len(self), len(contract.tasks)), np.nan, np.float32)
        for t, (name, task) in enumerate(contract.tasks.items()):
            column = self.table[LABEL + name].cast(pa.float32())
            found[:, t] = pc.fill_null(column, np.nan).to_numpy()
            known = found[~np.isnan(found[:, t]), t]
            if np.isinf(known).any():
                raise DataError(
                    f"{self.source}: {LABEL}{name}: expected finite numbers or null, received "
                    f"{int(np.isinf(known).sum())} infinite values; clip the task's label"
                )
            wrong = known[(known != 0) & (known != 1)] if task.type == "binary" else known[:0]
            if len(wrong):
                raise DataError(
                    f"{self.source}: {LABEL}{name}: expected 0 or 1 or null, received {wrong[0]}; "
                    "correct the task's label rule"
                )
        return found

    def weights(self, name: str) -> np.ndarray:
        """Weights (N,) float32 of the rows, from a column.

        Raises:
            DataError: there is no such column, or it holds something else.
        """
        self.check_columns([name])
        return as_weights(self.table[name], f"{self.source}: {name}")

    def integers(self, name: str) -> np.ndarray | None:
        """A column (N,) as whole numbers, 0 where it is null; None if there is none."""
        if name not in self.table.column_names:
            return None
        return np.asarray(self.table[name].cast("int64").fill_null(0))

    def codes(self, name: str) -> np.ndarray:
        """A column's values as 0, 1, ..., (N,); a missing value counts as a value.

        Raises:
            DataError: there is no such column.
        """
        self.check_columns([name])
        column = pc.dictionary_encode(self.table[name], null_encoding="encode")
        return np.asarray(column.combine_chunks().indices).astype(np.int64)

    def lists(self, contract: Contract) -> np.ndarray:
        """Number 0, 1, ... of each row's ranked list (its request and user), (N,)."""
        users = self.codes(contract.user)
        if REQUEST not in self.table.column_names:
            return users
        requests = self.codes(REQUEST)
        pairs = requests * (int(users.max(initial=0)) + 1) + users
        found: np.ndarray = np.unique(pairs, return_inverse=True)[1]
        return found

    def check_columns(self, names: list[str]) -> None:
        """Raise DataError where a column is missing."""
        received = self.table.column_names
        missing = next((name for name in names if name not in received), None)
        if missing is not None:
            raise DataError(
                f"{self.source}: column {missing!r} is missing; {did_you_mean(missing, received)}"
                f"received {listed(received)}; use examples of the model's contract"
            )


def read_rows(examples: Path, split: str, columns: list[str] | None = None) -> Rows:
    """Read a whole split.

    Args:
        examples: folder of examples.
        split: one of `SPLITS`.
        columns: columns to read; all if None.

    Raises:
        DataError: no such split, no rows, or a file is not Parquet.
    """
    if split not in SPLITS:
        raise DataError(f"split: expected one of {', '.join(SPLITS)}; received {split!r}")
    folder = ExamplesFolder(examples).split(split)
    paths = sorted(folder.glob("*.parquet"))
    try:
        tables = [pq.read_table(path, columns=columns) for path in paths]
    except pa.ArrowInvalid as error:
        reason = one_line(error)
        raise DataError(f"{folder}: not Parquet: {reason}; build the examples again") from None
    if not sum(table.num_rows for table in tables):
        raise DataError(
            f"{folder}: no examples in {len(paths)} Parquet files; expected at least one row; see "
            "the manifest's counts, and the split's shares or dates"
        )
    return Rows(folder, pa.concat_tables(tables, promote_options="default"))


def as_weights(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """Weights (N,) float32 of rows; a missing weight is 1.

    Args:
        column: of numbers.
        where: the file and the column, for messages.

    Raises:
        DataError: it holds no numbers, or one that is negative or not finite.
    """
    try:
        values = pc.fill_null(column.cast(pa.float32()), 1.0).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(
            f"{where}: expected numbers as weights, received {column.type}; correct train.weight"
        ) from None
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if len(wrong):
        raise DataError(
            f"{where}: expected weights that are finite and at least 0, received {wrong[0]}; "
            "correct the column, or train.weight"
        )
    return values
