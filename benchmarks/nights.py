"""What nightly runs cost that go on from the totals of the run before, against one run over all.

    python benchmarks/nights.py [--days N] [--events N] [--work FOLDER]

A log of N days (30) with N events each (200,000): views, and likes within an hour of them. The
counters have no window, labels wait for an hour. Measured are CPU seconds of this process, which
other work on the machine hardly changes:

    nights   one run a day, each with --previous
    whole    one run over all days

Both must have made the same rows: the impressions' numbers, counters and labels are compared.

Prints a line per kind of run and, last, one JSON line: `ratio`, nights over whole.
"""

import argparse
import json
import logging
import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from multigate.configs.config import Config
from multigate.configs.files import SPLITS
from multigate.configs.sections.base import parse
from multigate.pipeline import job
from multigate.pipeline.core.runner import import_beam

START = datetime(2026, 1, 1, tzinfo=UTC)
CONFIG = {
    "name": "nights",
    "contract": {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user", "column": "user", "dtype": "int"},
            "item_id": {"kind": "id", "side": "item", "column": "item", "dtype": "int"},
            "user_views": {
                "kind": "number",
                "side": "user",
                "count": {"of": "user", "events": ["VIEW"]},
            },
            "item_rate": {
                "kind": "number",
                "side": "item",
                "missing": "indicator",
                "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW"]},
            },
        },
        "tasks": {
            "like": {
                "group": "satisfaction",
                "type": "binary",
                "label": {"rule": "event", "events": ["LIKE"], "within": "1h"},
            }
        },
    },
    "pipeline": {
        "log": {
            "shape": "events",
            "files": ["date=*/part.parquet"],
            "format": {"type": "parquet"},
            "impression": "VIEW",
            "columns": {"time": "time", "user": "user", "item": "item", "event": "event"},
        },
        "split": {"by": "user", "validation": 0.1, "test": 0.1},
    },
}


def write_log(folder: Path, days: int, events: int) -> None:
    """Write the log, a folder for each day."""
    rng = np.random.default_rng(0)
    for day in range(days):
        start = int((START + timedelta(days=day)).timestamp())
        time_ = np.sort(start + rng.integers(0, 86_400, events))
        table = pl.DataFrame(
            {
                "time": time_,
                "user": rng.integers(0, events // 10, events),
                "item": (rng.pareto(1.1, events) * 100).astype(np.int64) % 20_000,
                "event": np.where(rng.random(events) < 0.2, "LIKE", "VIEW"),
            }
        )
        path = folder / f"date={START + timedelta(days=day):%Y-%m-%d}" / "part.parquet"
        path.parent.mkdir(parents=True)
        table.write_parquet(path)


def rows(folders: list[Path]) -> pl.DataFrame:
    """The rows of some folders, sorted."""
    names = ["meta/impression", "user_views", "item_rate", "label/like"]
    parts = [
        pl.read_parquet(path, columns=names)
        for folder in folders
        for split in SPLITS
        for path in (folder / split).glob("*.parquet")
    ]
    return pl.concat(parts).sort("meta/impression")


def measure(days: int, events: int, work: Path) -> float:
    """Run both and return the ratio of their costs."""
    write_log(work / "log", days, events)
    import_beam()
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    config = parse(Config, CONFIG, "nights")
    # The first run of a process also pays for what is imported late.
    job.run(config, work / "log", work / "warm", span=(START, START + timedelta(days=1)))
    at = [START + timedelta(days=day) for day in range(days + 1)]
    began, previous, folders = time.process_time(), None, []
    for day in range(days):
        out = work / f"night-{day}"
        job.run(config, work / "log", out, span=(at[day], at[day + 1]), previous=previous)
        previous = out
        folders.append(out)
    nights = time.process_time() - began
    print(f"nights: {nights:.1f} CPU s for {days} runs of {events:,} events")
    began = time.process_time()
    job.run(config, work / "log", work / "whole", span=(at[0], at[-1]))
    whole = time.process_time() - began
    print(f"whole: {whole:.1f} CPU s for one run of {days * events:,} events")
    if not rows(folders).equals(rows([work / "whole"])):
        raise SystemExit("the nights' rows differ from those of one run")
    print(json.dumps({"ratio": round(nights / whole, 3), "days": days, "events": events}))
    return nights / whole


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--events", type=int, default=200_000, help="of each day")
    parser.add_argument("--work", type=Path, help="folder for the log and the runs, removed")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=options.work))
    try:
        measure(options.days, options.events, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
