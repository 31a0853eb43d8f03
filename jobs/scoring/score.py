"""Scores a file of rows with a version, a part at a time: memory does not grow with the file."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import numpy as np
import pyarrow as pa

from multigate.configs.errors import DataError, ServingError
from multigate.configs.files import new_file
from multigate.configs.storage import Place
from multigate.jobs.scoring.rows import kind_of, writer
from multigate.jobs.scoring.version import Version
from multigate.serving.core.layout import SCORE

_SHOWN = 10
"""Rows without scores that are named."""


class ScoreResult(TypedDict):
    """What `score` returns."""

    out: str
    """The file."""
    rows: int
    unscored: int
    """Rows without scores, which lack a required feature (`missing: error`)."""
    lacking: dict[int, list[str]]
    """The first of these rows, counted from 0, and the features that they lack."""
    unknown: dict[str, int]
    """Rows whose user, or item, the model's vocabulary lacks, by feature."""
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
    out: Place,
    *,
    keep: Sequence[str] | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> ScoreResult:
    """Write rows with their scores, the same as the server's Predict and Rank give.

    A row that lacks a required feature (`missing: error`) is written without scores.

    Args:
        version: the model.
        parts: tables with the same columns, whose rows are scored; see `Version.predict`.
        out: file or address to write, complete or not at all; its name says the format, see
            `rows.FORMATS`.
        keep: columns of the rows to write beside the scores; None: all.
        progress: called with the number of rows so far.

    Raises:
        DataError: no rows, none with all required features, a column that is not there, or one
            with the name of a score.
        ServingError: a value contradicts the contract; the message names the row.
    """
    started, rows = time.perf_counter(), 0
    names = score_columns(version.tasks)
    filled: list[str] = []
    unscored, lacking = 0, dict[int, list[str]]()
    unknown: Counter[str] = Counter()
    with new_file(out) as temporary, writer(temporary, kind_of(out)) as write:
        for part in parts:
            if not rows:
                _check(part.column_names, keep, list(names.values()))
                filled = [name for name in version.features if name not in part.column_names]
            try:
                found = version.score_rows(part)
            except (ServingError, DataError) as error:
                raise type(error)(f"from row {rows} on: {error}") from None
            written = part if keep is None else part.select(list(keep))
            for output, name in names.items():
                scores = found.scores[output]
                column = pa.array(scores, mask=np.isnan(scores) if found.lacking else None)
                written = written.append_column(name, column)
            write(written)
            unscored += len(found.lacking)
            unknown.update(found.unknown)
            for row, absent in found.lacking.items():
                if len(lacking) < _SHOWN:
                    lacking[rows + row] = absent
            rows += part.num_rows
            progress(rows)
        if not rows:
            raise DataError("no rows to score; expected at least one")
        if unscored == rows:
            row, (name, *_) = next(iter(lacking.items()))
            raise DataError(
                f"no row can be scored: feature {name!r}: expected a value (missing: error), "
                f"received none in row {row}, and {rows:,} rows lack such a value; add the column, "
                "or give the feature the rule default or indicator and train again"
            )
    return {
        "out": str(out),
        "rows": rows,
        "unscored": unscored,
        "lacking": lacking,
        "unknown": dict(unknown),
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
