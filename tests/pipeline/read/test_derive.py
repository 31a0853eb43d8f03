"""Columns that the configuration derives, in logs of each format and in side tables."""

import json

import polars as pl
import pyarrow.parquet as pq
import pytest

from multigate.configs import ConfigError, DataError
from multigate.pipeline.job import run

ROWS = [
    # time, device, region, topic, url, click: 2023-11-14 22:13:20 UTC and hours later
    (1_700_000_000, "ios", "DE", " Sport", "/item/7?x", 1),
    (1_700_003_600, "ios", "", "sport", "/item/8", 0),
    (1_700_100_000, "web", "FR", "NEWS", "/item/7", 0),
    (1_700_200_000, "web", "DE", "", "/item/9", 1),
]
NAMES = ["time", "device", "region", "topic", "url", "click"]
DERIVED = {
    "contract.features": {
        "user": {"kind": "id", "side": "user"},
        "item": {"kind": "id", "side": "item", "dtype": "int"},
        "topic": {"kind": "id", "side": "item", "missing": "indicator"},
        "hour": {"kind": "id", "side": "context", "dtype": "int"},
        "weekday": {"kind": "id", "side": "context", "dtype": "int"},
    },
    "contract.user": "user",
    "contract.item": "item",
    "contract.tasks.stars": None,
    "pipeline.log.columns": {"time": "time", "user": "user", "item": "item"},
    "pipeline.log.time_zone": "Europe/Berlin",
    "pipeline.log.derive": {
        "user": {"join": ["device", "region"]},
        "item": {"extract": "url", "pattern": r"/item/(\d+)"},
        "topic": {"lower": "topic"},
        "hour": {"hour_of": "time"},
        "weekday": {"weekday_of": "time"},
    },
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
}


def write(folder, kind):
    frame = pl.DataFrame(ROWS, NAMES, orient="row")
    if kind == "csv":
        frame.write_csv(folder / "log.csv")
    elif kind == "parquet":
        frame.write_parquet(folder / "log.parquet")
    else:
        lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS]
        (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    return {"pipeline.log.format": {"type": kind}, "pipeline.log.files": [f"log.{kind}"]}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_derived_columns_stand_where_a_files_own_may(
    kind, impression_config, read_examples, tmp_path
):
    changes = DERIVED | write(tmp_path, kind)
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    names = ["user", "item", "topic", "hour", "weekday"]
    rows = read_examples(tmp_path / "out").sort("meta/time").select(names).rows()
    assert rows == [
        ("ios|DE", 7, "sport", 23, 2),  # in Berlin an hour later than in UTC, a Tuesday
        ("ios|", 8, "sport", 0, 3),
        ("web|FR", 7, "news", 3, 4),
        ("web|DE", 9, None, 6, 5),
    ]


def test_a_side_tables_key_and_features_may_be_derived(impression_config, read_examples, tmp_path):
    changes = DERIVED | write(tmp_path, "csv")
    (tmp_path / "items.csv").write_text("page,Maker\n/item/7,Acme\n/item/8, acme \n/item/9,Zeta\n")
    maker = {"kind": "id", "side": "item", "source": "items"}
    changes |= {
        "contract.features.maker": maker,
        "pipeline.items": {
            "files": ["items.csv"],
            "key": "id",
            "derive": {
                "id": {"extract": "page", "pattern": r"/item/(\d+)"},
                "maker": {"lower": "Maker"},
            },
        },
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time").select("item", "maker").rows()
    assert rows == [(7, "acme"), (8, "acme"), (7, "acme"), (9, "zeta")]


def test_a_missing_source_is_named_as_the_files_column(impression_config, tmp_path):
    changes = DERIVED | write(tmp_path, "csv")
    changes["pipeline.log.derive"] = changes["pipeline.log.derive"] | {
        "user": {"join": ["device", "regoin"]}
    }
    with pytest.raises(DataError, match=r"log\.csv: no column 'regoin'; .*'region'"):
        run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_user_without_any_part_is_missing(impression_config, read_examples, tmp_path):
    changes = DERIVED | write(tmp_path, "csv")
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1700200001,,,x,/item/1,0\n")
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert len(read_examples(tmp_path / "out")) == len(ROWS)
    rejects = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert [row["reason"] for row in rejects] == ["user: missing"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of join, lower, extract, first, .*, constant; received none"),
        ({"lower": "a", "hour_of": "b"}, "received lower and hour_of"),
        ({"extract": "a"}, "extract and pattern go together"),
        ({"join": ["a"]}, "at least 2"),
        ({"lowr": "a"}, "did you mean 'lower'"),
    ],
)
def test_a_wrong_rule_is_refused(rule, message, impression_config):
    with pytest.raises(ConfigError, match=message):
        impression_config(**{"pipeline.log.derive": {"user": rule}})


def test_a_column_without_a_name_has_that_of_its_place(impression_config, read_examples, tmp_path):
    lines = [f"{at},{row[0]},{row[1]},{row[2]},{row[5]}" for at, row in enumerate(ROWS)]
    (tmp_path / "log.csv").write_text("\n".join([",time,user_id,region,click", *lines]) + "\n")
    changes = {
        "contract.features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item", "dtype": "int", "column": "column_1"},
        },
        "contract.tasks.stars": None,
        "pipeline.log.columns": {"time": "time", "user": "user_id", "item": "column_1"},
        "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert sorted(read_examples(tmp_path / "out")["item_id"]) == [0, 1, 2, 3]
