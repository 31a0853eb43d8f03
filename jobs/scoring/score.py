"""Scores a file of rows with a version, a part at a time: memory does not grow with the file."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypedDict

import pyarrow as pa

from multigate.configs.errors import DataError, ServingError
from multigate.configs.files import new_file
from multigate.jobs.scoring.rows import kind_of, writer
from multigate.jobs.scoring.version import Version
from multigate.serving.core.layout import SCORE


class ScoreResult(TypedDict):
    """What `score` returns."""

    out: str
    """The file."""
    rows: int
    columns: list[str]
    """Those of the scores: `score`, and `score/TASK` for each task."""
    filled: list[str]
    """Features that the rows have no column for: of the version's snapshot, or missing."""
    seconds: float


def score_columns(tasks: Sequence[str]) -> dict[str, str]:
    """The names of the columns of scores, by output: `score`, and `score/TASK`."""
    return {SCORE: SCORE} | {task: f"{SCORE}/{task}" for task in tasks}


def score(
    version: Version,
    parts: Iterable[pa.Table],
    out: Path,
    *,
    keep: Sequence[str] | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> ScoreResult:
    """Write rows with their scores, the same as the server's Predict and Rank give.

    Args:
        version: the model.
        parts: tables with the same columns, whose rows are scored; see `Version.predict`.
        out: file to write, complete or not at all; its name says the format, see `rows.FORMATS`.
        keep: columns of the rows to write beside the scores; None: all.
        progress: called with the number of rows so far.

    Raises:
        DataError: no rows, a column that is not there, or one with the name of a score.
        ServingError: a value contradicts the contract; the message names the row.
    """
    started, rows = time.perf_counter(), 0
    names = score_columns(version.tasks)
    filled: list[str] = []
    with new_file(out) as temporary, writer(temporary, kind_of(out)) as write:
        for part in parts:
            if not rows:
                _check(part.column_names, keep, list(names.values()))
                filled = [name for name in version.features if name not in part.column_names]
            try:
                found = version.predict(part)
            except (ServingError, DataError) as error:
                raise type(error)(f"from row {rows} on: {error}") from None
            written = part if keep is None else part.select(list(keep))
            for output, name in names.items():
                written = written.append_column(name, pa.array(found[output]))
            write(written)
            rows += part.num_rows
            progress(rows)
        if not rows:
            raise DataError("no rows to score; expected at least one")
    return {
        "out": str(out),
        "rows": rows,
        "columns": list(names.values()),
        "filled": filled,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _check(columns: Sequence[str], keep: Sequence[str] | None, scores: Sequence[str]) -> None:
    """Refuse columns that cannot be written."""
    for name in keep or ():
        if name not in columns:
            raise DataError(f"--keep: expected some of {', '.join(columns)}, received {name!r}")
    for name in scores:
        if name in (columns if keep is None else keep):
            raise DataError(f"column {name!r}: the rows have it already; leave it out with --keep")
