"""A small log in one of the formats that the pipeline reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl


def write(
    folder: Path, kind: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> dict[str, Any]:
    """Write a log, and say in a configuration's keys how it is read.

    Args:
        folder: for the file.
        kind: csv, where `;` stands between the values of a list, jsonl or parquet.
        names: of the columns.
        rows: their values.
    """
    frame = pl.DataFrame(rows, names, orient="row")
    if kind == "csv":
        lists = [
            pl.col(n).cast(pl.List(pl.String)).list.eval(pl.element().fill_null("")).list.join(";")
            for n in frame.columns
            if frame[n].dtype == pl.List
        ]
        frame.with_columns(lists).write_csv(folder / "log.csv")
    elif kind == "parquet":
        frame.write_parquet(folder / "log.parquet")
    else:
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    return {"pipeline.log.format": {"type": kind}, "pipeline.log.files": [f"log.{kind}"]}
