"""Configurations and logs of a few rows, and ways to look at what came out."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs import Config
from multigate.configs.files import SPLITS
from multigate.configs.sections.base import parse

DATA = Path(__file__).parents[2].parent / "shared" / "data"

START = 1_700_000_000
"""First second of most logs of a few rows."""

EVENTS: dict[str, Any] = {
    "name": "events",
    "contract": {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user", "column": "user"},
            "item_id": {"kind": "id", "side": "item", "column": "item"},
            "device": {"kind": "id", "side": "context", "missing": "indicator"},
            "recent": {
                "kind": "id_list",
                "side": "user",
                "share": "item_id",
                "history": {"events": ["VIEW"], "last": 3},
            },
            "liked": {
                "kind": "id_list",
                "side": "user",
                "share": "item_id",
                "history": {"events": ["LIKE"], "last": 2},
            },
        },
        "tasks": {
            "view": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}},
            "like": {
                "group": "satisfaction",
                "type": "binary",
                "label": {"rule": "event", "events": ["LIKE"], "within": "1h"},
            },
            "dislike": {
                "group": "satisfaction",
                "type": "binary",
                "label": {"rule": "event", "events": ["DISLIKE"]},
            },
            "good": {
                "group": "satisfaction",
                "type": "binary",
                "label": {"rule": "event", "events": ["LIKE"]},
                "without": "dislike",
            },
            "dwell": {
                "group": "engagement",
                "type": "regression",
                "label": {"rule": "dwell", "cap": "10m"},
                "transform": "log1p",
            },
            "long": {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "dwell", "cap": "10m"},
                "at_least": 30.0,
            },
            "bought": {
                "group": "engagement",
                "type": "regression",
                "label": {"rule": "event", "events": ["BUY"], "aggregate": "sum"},
            },
            "rated": {
                "group": "satisfaction",
                "type": "regression",
                "label": {"rule": "event", "events": ["RATE"], "aggregate": "max"},
                "clip": [1.0, 5.0],
                "when": "like",
            },
        },
    },
    "pipeline": {
        "log": {
            "shape": "events",
            "files": ["log*.csv"],
            "format": {"type": "csv"},
            "impression": "VIEW",
            "columns": {
                "time": "time",
                "user": "user",
                "item": "item",
                "event": "event",
                "value": "value",
                "session": "session",
            },
        },
        "negatives": {"per_positive": 1},
        "split": {"by": "random", "validation": 0.2, "test": 0.2},
        "attribution": "1d",
        "hold_back": False,  # the tests' logs are shorter than a day
        "buckets": 3,
        "max_reject_rate": 0.5,
    },
}

IMPRESSIONS: dict[str, Any] = {
    "name": "impressions",
    "contract": {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user", "dtype": "int"},
            "item_id": {"kind": "id", "side": "item", "dtype": "int"},
            "price": {"kind": "number", "side": "item", "missing": "indicator"},
            "tags": {"kind": "id_list", "side": "item", "max_length": 2},
            "place": {"kind": "position"},
            "clicked": {
                "kind": "id_list",
                "side": "user",
                "dtype": "int",
                "share": "item_id",
                "history": {"events": ["click"], "last": 3},
            },
        },
        "tasks": {
            "click": {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "column", "column": "click"},
            },
            "stars": {
                "group": "satisfaction",
                "type": "regression",
                "label": {"rule": "column", "column": "stars"},
                "when": "click",
            },
        },
    },
    "pipeline": {
        "log": {
            "shape": "impressions",
            "files": ["log*"],
            "format": {"type": "csv"},
            "columns": {
                "time": "time",
                "user": "user_id",
                "item": "item_id",
                "request": "request",
            },
            "known_after": "0.5s",  # the tests' times are whole seconds
        },
        "split": {"by": "time", "validation": 0.2, "test": 0.2, "embargo": False},
        "hold_back": False,
        "buckets": 3,
        "max_reject_rate": 0.5,
    },
}


def _changed(values: dict[str, Any], changes: dict[str, Any]) -> Config:
    values = copy.deepcopy(values)
    for path, value in changes.items():
        at = values
        *parents, last = path.split(".")
        for key in parents:
            at = at.setdefault(key, {})
        if value is None:
            at.pop(last, None)
        else:
            at[last] = copy.deepcopy(value)  # a later path may change what an earlier one brought
    return parse(Config, values, "test")


@pytest.fixture(scope="session")
def event_config():
    """A configuration of an event log, with changes: `**{"pipeline.buckets": 2}`."""
    return lambda **changes: _changed(EVENTS, changes)


@pytest.fixture(scope="session")
def impression_config():
    """A configuration of an impression log, with changes."""
    return lambda **changes: _changed(IMPRESSIONS, changes)


@pytest.fixture(scope="session")
def separate_files():
    """Write impressions and feedback to files of their own; returns the changes that read them."""

    def write(folder: Path, shown: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> Any:
        for name, rows in (("shown", shown), ("feedback", feedback)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns = {name: name for name in ("time", "user", "item", "session")} | {"event_id": "id"}
        return {
            "pipeline.log.files": ["shown.jsonl"],
            "pipeline.log.format": {"type": "jsonl"},
            "pipeline.log.columns": columns,
            "pipeline.log.feedback": {
                "files": ["feedback.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {**columns, "event": "event", "value": "value"},
            },
            "pipeline.negatives": None,
        }

    return write


@pytest.fixture(scope="session")
def read_examples():
    """Read all examples of a folder, with their split, in an order of their own."""

    def read(folder: Path) -> pl.DataFrame:
        frames = [
            pl.read_parquet(path).with_columns(split=pl.lit(name))
            for name in SPLITS
            for path in sorted((folder / name).glob("*.parquet"))
        ]
        return pl.concat(frames).sort("meta/impression")

    return read


@pytest.fixture(scope="session")
def values(read_examples):
    """Columns of the examples below a folder, by user, item, seconds since START and sampled."""

    def read(folder: Path, names: Sequence[str]) -> dict[tuple[str, str, int, bool], list[Any]]:
        found = {}
        for row in read_examples(folder / "out").to_dicts():
            seconds = int(row["meta/time"].timestamp()) - START
            key = (row["user_id"], row["item_id"], seconds, row["meta/sampled"])
            found[key] = [row[name] for name in names]
        return found

    return read


@pytest.fixture(scope="session")
def real_data():
    """Path of a file of real data; skips where it is absent."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"needs the real data: no ../shared/data/{name}")
        return path

    return find


@pytest.fixture(scope="session")
def same_folders():
    """Compare two folders: row by row, then byte by byte, in every file."""

    def compare(folder: Path, expected: Path) -> None:
        names = [
            {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
            for root in (folder, expected)
        ]
        assert names[0] == names[1]
        assert len(names[0]) > 20
        for name in sorted(names[0]):
            if name.endswith(".parquet"):
                assert pl.read_parquet(folder / name).equals(pl.read_parquet(expected / name)), name
            assert (folder / name).read_bytes() == (expected / name).read_bytes(), name

    return compare
