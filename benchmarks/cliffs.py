"""What odd columns cost the pipeline: lists in JSON, a wide column of Parquet that nobody reads.

    python benchmarks/cliffs.py --rows 200000

The job runs on a log of impressions and on the same log with the odd column, in turns. In JSON, one
row in twenty holds a text that begins with `[`, or a list; in Parquet, each row holds 128 floats.
Prints a line per log and, last, one JSON line: CPU seconds with the odd column over those without,
medians over the rounds. A first round, of imports and warm caches, does not count.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pipeline_logs
import polars as pl

from multigate.configs.config import Config
from multigate.configs.sections.base import parse
from multigate.pipeline import job


def write(folder: Path, rows: int) -> dict[str, Path]:
    """Write the logs; by name: the folder of each."""
    pipeline_logs.write_impressions(folder / "csv", rows)
    plain = pl.read_csv(folder / "csv" / "impressions.csv")
    random = np.random.default_rng(0)
    notes = ["fine"] * rows
    lists = list(notes)
    for place, at in enumerate(random.choice(rows, rows // 20, replace=False)):
        lists[at] = "[no list" if place % 2 else [1, 2, 3]
    wide = pl.Series("embedding", random.random((rows, 128), np.float32))
    for name in ("json", "json-lists", "parquet", "parquet-wide"):
        (folder / name).mkdir()
    records = plain.to_dicts()
    for name, column in (("json", notes), ("json-lists", lists)):
        with (folder / name / "impressions.jsonl").open("w") as file:
            for record, note in zip(records, column, strict=True):
                file.write(json.dumps(record | {"note": note}) + "\n")
    plain.write_parquet(folder / "parquet" / "impressions.parquet")
    plain.with_columns(wide).write_parquet(folder / "parquet-wide" / "impressions.parquet")
    return {name: folder / name for name in ("json", "json-lists", "parquet", "parquet-wide")}


def config(name: str) -> Config:
    """The configuration of the log of impressions, in another format."""
    values = pipeline_logs.config("impressions")
    form = "jsonl" if name.startswith("json") else "parquet"
    values["pipeline"]["log"] |= {"files": [f"impressions.{form}"], "format": {"type": form}}
    return parse(Config, values, name)


def measure(rows: int, rounds: int, work: Path) -> dict[str, float]:
    """Run every log in turns; CPU seconds of the odd ones over those of the plain ones."""
    logs = write(work, rows)
    cpu: dict[str, list[float]] = {name: [] for name in logs}
    for number in range(1 + rounds):
        for name, folder in logs.items():
            began = time.process_time()
            job.run(config(name), folder, work / "out")
            if number:
                cpu[name].append(time.process_time() - began)
            shutil.rmtree(work / "out")
    medians = {name: statistics.median(seconds) for name, seconds in cpu.items()}
    for name, seconds in medians.items():
        print(f"{name:13} {seconds:6.1f} s of CPU, {rows / seconds:10,.0f} rows per CPU second")
    return {
        "json_lists": round(medians["json-lists"] / medians["json"], 2),
        "parquet_wide": round(medians["parquet-wide"] / medians["parquet"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="of each log")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        print(json.dumps(measure(options.rows, options.rounds, Path(work))))


if __name__ == "__main__":
    main()
