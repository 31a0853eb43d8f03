"""Reads a folder of examples from Python: a split as Arrow or NumPy columns."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import DataError
from multigate.configs.files import LABEL, SPLITS, ExamplesFolder
from multigate.jobs.scoring.rows import split_parts
from multigate.model.data.rows import read_rows


class Examples:
    """A folder that `multigate.examples` or the verb wrote.

    Columns are the features by their names (raw values), `label/TASK` (null where the label is
    masked), `meta/time`, `meta/request`, `meta/sampled` and `meta/impression`.

    Attributes:
        folder: of the examples.
        contract: features and tasks.
        labels: names of the columns of labels, in the contract's order of tasks.
    """

    splits = SPLITS

    def __init__(self, folder: str | Path) -> None:
        """Open a folder of examples; no row is read.

        Raises:
            DataError: the folder holds no examples.
        """
        self.folder = Path(folder)
        self._files = ExamplesFolder(self.folder)
        if not self._files.contract.is_file():
            raise DataError(f"{folder}: expected a folder of examples, found no contract.json")
        self.contract: Contract = FrozenContract.read(self._files.contract).contract
        self.labels = [f"{LABEL}{task}" for task in self.contract.tasks]

    @property
    def manifest(self) -> dict[str, Any]:
        """Where the rows of the log went, and how many examples there are."""
        return _read(self._files.manifest)

    @property
    def report(self) -> dict[str, Any]:
        """The pipeline's report of the examples: labels, features, vocabularies, drift."""
        return _read(self._files.report)

    def count(self, split: str) -> int:
        """Rows of a split: train, validation or test.

        Raises:
            DataError: no such split.
        """
        if split not in self.splits:
            raise DataError(f"split: expected one of {', '.join(self.splits)}; received {split!r}")
        return int(self.manifest["examples"]["splits"][split])

    def table(self, split: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole split, N rows.

        Args:
            split: train, validation or test.
            columns: names of the columns; None: all.

        Raises:
            DataError: no such split or column, or no rows.
        """
        if columns is not None:
            known = self._columns(split)
            for name in columns:
                if name not in known:
                    raise DataError(
                        f"{self.folder}: column {name!r}: expected some of {', '.join(known)}"
                    )
        return read_rows(self.folder, split, None if columns is None else list(columns)).table

    def arrays(self, split: str, columns: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """A whole split as NumPy arrays (N,), by column.

        Missing numbers are NaN, missing texts None; a list is an array within an array of objects.

        Args:
            split: train, validation or test.
            columns: names of the columns; None: all.

        Raises:
            DataError: no such split or column, or no rows.
        """
        table = self.table(split, columns)
        return {name: table[name].to_numpy() for name in table.column_names}

    def batches(self, split: str) -> Iterator[pa.Table]:
        """A split some thousands of rows at a time, for splits that do not fit into memory."""
        return split_parts(self.folder, split)

    def __repr__(self) -> str:
        return f"Examples({str(self.folder)!r})"

    def _columns(self, split: str) -> list[str]:
        return list(next(iter(self.batches(split))).column_names)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}; make the examples again") from None
    return found
