"""Requests whose rows hold lists become one row for each item."""

import json

import polars as pl
import pyarrow.parquet as pq
import pytest
from tests.pipeline.read.log_file import write

from multigate.configs import ConfigError
from multigate.pipeline.job import run
from multigate.pipeline.read.derive import with_lists

ROWS = [
    # time, user, shown, prices, clicked
    (1_700_000_000, "u1", ["1", "2", "3"], [1.5, 2.5, 3.5], ["2"]),
    (1_700_003_600, "u2", ["4", "1"], [4.5, 1.5], []),
    (1_700_100_000, "u1", [], [], []),  # nothing was shown
    (1_700_200_000, "u3", ["5", "6"], [5.5], ["5"]),  # a price is missing
]
NAMES = ["time", "user_id", "shown", "prices", "clicked"]
EXPLODED = {
    "contract.features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item", "dtype": "int", "column": "shown"},
        "price": {"kind": "number", "side": "item", "column": "prices"},
        "slot": {"kind": "position", "side": "context", "max_position": 5},
    },
    "contract.tasks.stars": None,
    "contract.tasks.click.label": {"rule": "column", "column": "hit"},
    "pipeline.log.columns": {"time": "time", "user": "user_id", "item": "shown"},
    "pipeline.log.explode": {"columns": ["shown", "prices"], "separator": ";"},
    "pipeline.log.derive": {
        "hit": {"member": "shown", "of": "clicked", "separator": ";"},
        "slot": {"place_in": "shown"},
    },
    "pipeline.max_reject_rate": 0.5,
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_request_becomes_one_row_for_each_item(kind, impression_config, read_examples, tmp_path):
    changes = EXPLODED | write(tmp_path, kind, NAMES, ROWS)
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time", "slot")
    assert rows.select("user_id", "item_id", "price", "slot", "label/click").rows() == [
        ("u1", 1, 1.5, 0, 0),
        ("u1", 2, 2.5, 1, 1),
        ("u1", 3, 3.5, 2, 0),
        ("u2", 4, 4.5, 0, 0),
        ("u2", 1, 1.5, 1, 0),
    ]
    [reject] = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert reject["reason"] == "shown and prices: expected lists of one length"
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["rows"]["impressions"], manifest["rows"]["rejects"]) == (5, 1)


def test_one_bad_item_rejects_its_own_row(impression_config, read_examples, tmp_path):
    changes = EXPLODED | write(tmp_path, "csv", NAMES, ROWS)
    with (tmp_path / "log.csv").open("a") as file:
        file.write("1700300000,u9,7;x;8,1;2;3,8\n")
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").filter(user_id="u9").sort("slot")
    assert rows.select("item_id", "slot", "label/click").rows() == [(7, 0, 0), (8, 2, 1)]
    reasons = [one["reason"] for one in pq.read_table(tmp_path / "out" / "rejects").to_pylist()]
    assert "item: expected an integer" in reasons


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_missing_list_beside_others_rejects_the_row(
    kind, impression_config, read_examples, tmp_path
):
    missing = (1_700_300_000, "u9", ["7", "8"], None, ["7"])
    changes = EXPLODED | write(tmp_path, kind, NAMES, [*ROWS, missing])
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert len(read_examples(tmp_path / "out")) == 5
    rejects = pq.read_table(tmp_path / "out" / "rejects").to_pylist()
    assert [one["reason"] for one in rejects] == 2 * [
        "shown and prices: expected lists of one length"
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_blanks_keep_their_places(kind, impression_config, read_examples, tmp_path):
    rows = [
        (1_700_300_000, "u1", ["7", None, "8"], [7.5, None, 8.5], ["8"]),  # nothing stood there
        (1_700_300_100, "u2", ["7", "8", "9"], [7.5, None, 9.5], ["9"]),  # of 8, no price is known
        (1_700_300_200, "u3", ["7", None, "8"], [7.5, 0.5, 8.5], []),  # a price of no item
    ]
    changes = EXPLODED | write(tmp_path, kind, NAMES, [*ROWS, *rows])
    changes["contract.features"] = changes["contract.features"] | {
        "price": {"kind": "number", "side": "item", "column": "prices", "missing": "indicator"}
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    made = read_examples(tmp_path / "out").filter(pl.col("meta/time") >= 1_700_300_000_000_000)
    made = made.sort("meta/time", "slot")
    assert made.select("user_id", "item_id", "slot", "price", "label/click").rows() == [
        ("u1", 7, 0, 7.5, 0),
        ("u1", 8, 2, 8.5, 1),
        ("u2", 7, 0, 7.5, 0),
        ("u2", 8, 1, None, 0),
        ("u2", 9, 2, 9.5, 1),
        ("u3", 7, 0, 7.5, 0),
        ("u3", 8, 2, 8.5, 0),
    ]
    reasons = [one["reason"] for one in pq.read_table(tmp_path / "out" / "rejects").to_pylist()]
    assert sorted(reasons) == ["item: missing", "shown and prices: expected lists of one length"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_one_item_may_lack_a_value(kind, impression_config, read_examples, tmp_path):
    """As text, its list is the empty one's; in other formats it holds a blank."""
    rows = [(1_700_300_000, "u1", ["7"], [None], ["7"]), (1_700_300_100, "u2", ["8"], [8.5], [])]
    changes = EXPLODED | write(tmp_path, kind, NAMES, [*ROWS, *rows])
    changes["contract.features"] = changes["contract.features"] | {
        "price": {"kind": "number", "side": "item", "column": "prices", "missing": "indicator"}
    }
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    made = read_examples(tmp_path / "out").filter(pl.col("meta/time") >= 1_700_300_000_000_000)
    assert made.sort("meta/time").select("user_id", "item_id", "price", "label/click").rows() == [
        ("u1", 7, None, 1),
        ("u2", 8, 8.5, 0),
    ]


def test_a_separator_may_end_a_list():
    rows = pl.DataFrame(
        {"shown": ["a;b;", "a;;b", "a;b;c", "a;b"], "flag": ["1;0", "1;0", "1;0;", "1"]}
    )
    lists = with_lists(rows, ["shown", "flag"], ";")
    assert lists["shown"].to_list() == [["a", "b"], ["a", None, "b"], ["a", "b", "c"], ["a", "b"]]
    assert lists["flag"].to_list() == [["1", "0"], ["1", "0"], ["1", "0", None], ["1"]]


def test_an_event_id_is_that_of_the_row_and_not_of_each_item(
    impression_config, read_examples, tmp_path
):
    named = [(*row, f"e{at}") for at, row in enumerate(ROWS[:2])]
    changes = EXPLODED | write(tmp_path, "csv", [*NAMES, "event"], [*named, named[0]])
    changes["pipeline.log.columns"] = changes["pipeline.log.columns"] | {"event_id": "event"}
    manifest = run(impression_config(**changes), tmp_path, tmp_path / "out")
    assert (manifest["rows"]["impressions"], manifest["rows"]["duplicates"]) == (5, 3)
    assert read_examples(tmp_path / "out")["label/click"].sum() == 1


def test_a_place_is_that_of_an_exploded_column(impression_config):
    changes = EXPLODED | {"pipeline.log.derive": {"slot": {"place_in": "showm"}}}
    with pytest.raises(ConfigError, match=r"explode.columns \(shown, prices\), received 'showm'"):
        impression_config(**changes)
