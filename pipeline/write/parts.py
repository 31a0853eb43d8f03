"""Writes tables as Parquet files whose bytes depend on their rows alone."""

from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from multigate.configs.files import IMPRESSION, REQUEST, TIME, P, new_part
from multigate.configs.storage import Place

_ROWS = 1 << 16


def write_parquet(frame: pl.DataFrame, path: Place, schema: pa.Schema) -> None:
    """Write a table with exactly this schema."""
    with (
        new_part(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for start in range(0, max(len(frame), 1), _ROWS):
            rows = frame[start : start + _ROWS].select(schema.names)
            writer.write_table(rows.to_arrow().cast(schema))


class SplitWriter:
    """Writes one part per split, piece by piece; a split without rows gets no file.

    Args:
        paths: of the parts, by split.
        schema: of all.
    """

    def __init__(self, paths: Mapping[str, Place], schema: pa.Schema) -> None:
        self._paths, self._schema = paths, schema
        # These values hardly repeat: a dictionary would cost time and save no space.
        unlike = (TIME, IMPRESSION, REQUEST)
        self._repeated = [name for name in schema.names if name not in unlike]
        self._writers: dict[str, Any] = {}
        self._files = ExitStack()
        self.rows = dict.fromkeys(paths, 0)
        """Rows written, by split."""

    def write(self, frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
        """Append rows to the parts that their `split` names; returns the rows by split."""
        divided = {name: frame.filter(pl.col("split") == name) for name in self._paths}
        for name, rows in divided.items():
            path = self._paths[name]
            if not len(rows):
                continue
            if name not in self._writers:
                self._writers[name] = self._files.enter_context(
                    pq.ParquetWriter(
                        self._files.enter_context(new_part(path)),
                        self._schema,
                        compression="zstd",
                        use_dictionary=self._repeated,
                        write_statistics=[TIME],  # the rows of a part are in its order
                    )
                )
            table = rows.select(self._schema.names).to_arrow().cast(self._schema)
            self._writers[name].write_table(table, row_group_size=_ROWS)
            self.rows[name] += len(rows)
        return divided

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.__exit__(kind, error, trace)


def part_path(folder: P, number: int) -> P:
    """The path of one part."""
    return folder / f"part-{number:05d}.parquet"
