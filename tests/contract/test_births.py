"""A date of birth is an age: in examples, in the snapshot and in what a server computes of it."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs import Config, DataError
from multigate.configs.contract import FrozenContract
from multigate.configs.files import SPLITS, TIME
from multigate.configs.sections.base import parse
from multigate.pipeline import job
from multigate.serving.feature_store.interface import FeatureQuery
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.feature_store.snapshot import Snapshot
from multigate.serving.feature_store.snapshot_writer import write_snapshot

START = datetime(2026, 3, 1, tzinfo=UTC)
END = START + timedelta(days=4)
BORN = {
    "u0": datetime(1900, 1, 1, tzinfo=UTC),
    "u1": datetime(1931, 12, 31, tzinfo=UTC),
    "u2": datetime(1969, 12, 31, tzinfo=UTC),
    "u3": datetime(1970, 1, 1, tzinfo=UTC),
    "u4": datetime(1984, 5, 17, tzinfo=UTC),
    "u5": None,
}
TABLES = {
    # unit, how a day is written, and the rule that reads it
    "iso": ("iso", lambda day: f"{day:%Y-%m-%d}", None),
    "slashes": ("iso", lambda day: f"{day:%d/%m/%Y}", {"time_of": "born", "form": "%d/%m/%Y"}),
    "seconds": ("s", lambda day: str(int(day.timestamp())), None),
    "milliseconds": ("ms", lambda day: str(int(day.timestamp()) * 1000), None),
}


def config(unit: str, rule: dict[str, Any] | None) -> Config:
    age = {"kind": "number", "side": "user", "age": unit, "missing": "indicator"}
    users = {"files": ["users.csv"], "key": "id"} | ({"derive": {"born": rule}} if rule else {})
    return parse(
        Config,
        {
            "name": "births",
            "contract": {
                "user": "user",
                "item": "item",
                "features": {
                    "user": {"kind": "id", "side": "user"},
                    "item": {"kind": "id", "side": "item"},
                    "born": age | {"source": "users"},
                    "since": age | {"column": "birth"},
                },
                "tasks": {
                    "click": {
                        "group": "engagement",
                        "type": "binary",
                        "label": {"rule": "column", "column": "click"},
                    }
                },
            },
            "pipeline": {
                "log": {
                    "shape": "impressions",
                    "files": ["log.csv"],
                    "columns": {"time": "time", "user": "user", "item": "item"},
                },
                "users": users,
                "cut_off": END.isoformat(),
                "split": {"by": "time", "validation": 0.2, "test": 0.2},
            },
        },
        "the test",
    )


def write(folder: Path, table: str, **changed: str) -> None:
    """Write a log with births of its own in the table's unit, and a table of users."""
    unit, spell, rule = TABLES[table]
    draw = random.Random(7)
    folder.mkdir(exist_ok=True)
    plain = spell if rule is None else TABLES[unit][1]
    lines = ["time,user,item,click,birth"]
    for at in range(300):
        time = int((START + timedelta(seconds=1000 * at)).timestamp())
        user = draw.choice(list(BORN))
        birth = changed.get("birth") or (plain(BORN[user]) if BORN[user] else "")
        lines.append(f"{time},{user},i{draw.randrange(9)},{int(draw.random() < 0.3)},{birth}")
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    born = {user: spell(day) if day else "" for user, day in BORN.items()} | changed
    users = [f"{user},{born[user]}" for user in BORN]
    (folder / "users.csv").write_text("\n".join(["id,born", *users]) + "\n")


@pytest.mark.parametrize("table", TABLES)
def test_a_date_of_birth_is_an_age(table: str, tmp_path: Path) -> None:
    unit, _, rule = TABLES[table]
    known = config(unit, rule)
    write(tmp_path / "log", table)
    job.run(known, tmp_path / "log", tmp_path / "examples")

    def age(user: str, at: datetime) -> Any:
        born = BORN[user]
        return None if born is None else pytest.approx((at - born).total_seconds(), rel=1e-6)

    parts = [one for split in SPLITS for one in (tmp_path / "examples" / split).glob("*.parquet")]
    rows = pl.concat(map(pl.read_parquet, parts), how="diagonal").to_dicts()
    assert len(rows) == 300
    for row in rows:
        assert row["born"] == row["since"] == age(row["user"], row[TIME])

    write_snapshot(tmp_path / "examples", tmp_path / "store")
    schema = FrozenContract.read(tmp_path / "examples/contract.json").schema_fingerprint
    stored = Snapshot(tmp_path / "store", known.contract, schema)
    later = END + timedelta(days=365)
    for clock, at in ((None, END), (later.timestamp, later)):
        online = OnlineFeatures(known.contract, stored, clock=clock)
        for user in BORN:
            query = FeatureQuery(user.encode(), ["born", "since"], np.array([], object), [])
            for name, column in online.read(query).columns.items():
                value = float(column.values[0]) if column.present[0] else None
                assert value == age(user, at), name


@pytest.mark.parametrize(
    ("table", "text", "message"),
    [
        ("iso", "0000-00-00", "expected ISO 8601 text"),
        ("iso", "1800-01-01", "outside the years 1900 to 2100"),
        ("iso", "1899-12-31", "outside the years 1900 to 2100"),
        ("iso", "1984-02-30", "expected ISO 8601 text"),
        ("slashes", "31/02/1984", "expected ISO 8601 text"),
        ("seconds", "-5364662400", "outside the years 1900 to 2100"),
        ("milliseconds", "-9" + "9" * 18, "outside the years 1900 to 2100"),
    ],
)
def test_what_is_no_date_of_birth_is_refused(
    table: str, text: str, message: str, tmp_path: Path
) -> None:
    unit, _, rule = TABLES[table]
    write(tmp_path / "log", table, u2=text)
    with pytest.raises(DataError, match=rf"users.csv: line 4: born: {message}"):
        job.run(config(unit, rule), tmp_path / "log", tmp_path / "examples")
    if rule is None:
        write(tmp_path / "log", table, birth=text)
        with pytest.raises(DataError, match=f"since: {message}"):
            job.run(config(unit, rule), tmp_path / "log", tmp_path / "examples")


def test_the_time_of_a_row_begins_in_1970(tmp_path: Path) -> None:
    """An age reads older times; a row's own time, from which splits and labels run, does not."""
    write(tmp_path / "log", "iso")
    text = (tmp_path / "log/log.csv").read_text().splitlines()
    text[1:] = [f"-86400,{line.partition(',')[2]}" for line in text[1:]]
    (tmp_path / "log/log.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(DataError, match="time: outside the years 1970 to 2100"):
        job.run(config("iso", None), tmp_path / "log", tmp_path / "examples")
