"""Parquet files that are filled row by row in a background thread; readers see only whole ones."""

import contextlib
import importlib
import os
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multigate.configs.errors import ServingError
from multigate.serving.core.status import LOG

_BYTES_PER_FILE = 64 << 20  # in memory, whatever the number of rows


@dataclass
class _File:
    """A file that is being filled."""

    since: float
    """Monotonic seconds of its first rows."""
    tables: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class RowFiles:
    """Tables of rows, written to `FOLDER/MODEL/NAME-*.parquet`; used by one thread."""

    def __init__(
        self,
        folder: Path,
        name: str,
        rows_per_file: int,
        seconds_per_file: float,
        count: Callable[[str, str, int], None],
    ) -> None:
        """Check that files can be written.

        Args:
            folder: created if absent.
            name: of a file, up to its number; may lie in a folder below the model's.
            rows_per_file: a file is finished once it has so many rows.
            seconds_per_file: a file is finished once its first row is so old.
            count: called with the model, `written` or `dropped`, and a number of rows.

        Raises:
            ServingError: the folder cannot be written to, or pyarrow is not installed.
        """
        try:
            self.pyarrow = importlib.import_module("pyarrow")
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
        self._name = name
        self.rows_per_file = rows_per_file
        self.seconds_per_file = seconds_per_file
        self._count = count
        self._files = 0
        self._open: dict[tuple[str, str], _File] = {}

    def add(self, model: str, schema: str, table: Any) -> None:
        """Add the rows of an Arrow table to the file of a model and schema."""
        key = model, schema
        file = self._open.setdefault(key, _File(time.monotonic()))
        file.tables.append(table)
        file.rows += len(table)
        file.bytes += table.nbytes
        if file.rows >= self.rows_per_file or file.bytes >= _BYTES_PER_FILE:
            self._finish(key)

    def finish_old(self, all_of_them: bool = False) -> None:
        """Write the files that are old enough."""
        for key, file in list(self._open.items()):
            if all_of_them or time.monotonic() - file.since >= self.seconds_per_file:
                self._finish(key)

    def _finish(self, key: tuple[str, str]) -> None:
        """Write a file under a hidden name, then rename it."""
        model, file = key[0], self._open.pop(key)
        self._files += 1
        number = f"{time.time_ns()}-{os.getpid()}-{self._files}"
        path = self._folder / urllib.parse.quote(model, safe="") / f"{self._name}-{number}.parquet"
        partial = path.with_name(f".{path.name}.partial")
        try:
            # Versions of one schema may have tasks and features in another order.
            table = self.pyarrow.concat_tables(file.tables, promote_options="default")
            path.parent.mkdir(parents=True, exist_ok=True)
            # A dictionary of scores costs a third of the time, and the file is larger with it.
            floating = self.pyarrow.types.is_floating
            repeated = [one.name for one in table.schema if not floating(one.type)]
            # Readers choose rows by these; statistics of all columns cost a fifth of the time.
            chosen_by = [name for name in repeated if name.startswith("ranked/")]
            self._parquet.write_table(
                table,
                partial,
                compression="zstd",
                use_dictionary=repeated,
                write_statistics=chosen_by,
            )
            partial.rename(path)
        except Exception as error:  # whatever it is, the thread must live on
            LOG.error("impressions: %s cannot be written: %s", path, error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self._count(model, "dropped", file.rows)
        else:
            self._count(model, "written", file.rows)
