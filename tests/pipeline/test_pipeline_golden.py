"""Hand-written logs whose every label, mask and history is worked out beside them."""

import json
from datetime import UTC, datetime

import polars as pl
import pytest

from configs import FrozenContract, Statistics
from pipeline.job import run

T = 1_700_000_000  # 2023-11-14T22:13:20Z; times below are seconds after it

# (seconds, event, item, user, session, value, device)
LOG = [
    # User a, session s1.
    (0, "VIEW", "x", "a", "s1", "", "phone"),
    (1, "LIKE", "z", "a", "", "", ""),  # z was never shown: an orphan, but part of the history
    (10, "VIEW", "y", "a", "s1", "", ""),
    (10, "LIKE", "x", "a", "s1", "", ""),  # of the view at 0; not yet visible to the view at 10
    (40, "BUY", "x", "a", "s1", "5", ""),
    (41, "BUY", "x", "a", "s1", "7", ""),
    (100, "VIEW", "x", "a", "s1", "", "phone"),
    (100, "LIKE", "x", "a", "s1", "", ""),  # at the very time of a view: belongs to that view
    (160, "DISLIKE", "x", "a", "s1", "", ""),  # of the view at 100, the latest
    (5000, "VIEW", "y", "a", "s2", "", "desk"),
    (9000, "LIKE", "y", "a", "s2", "", ""),  # 4000 s later: attributed, but not within 1 h
    (95401, "LIKE", "y", "a", "s2", "", ""),  # 90401 s later: late, attribution ends after 1 d
    (0, "VIEW", "x", "a", "s1", "", "phone"),  # a duplicate
    # User b.
    (5, "LIKE", "x", "b", "s9", "", ""),  # before any view: an orphan
    (20, "VIEW", "x", "b", "s9", "", "phone"),
    (22, "LIKE", "x", "b", "s9", "", ""),
    (25, "RATE", "x", "b", "s9", "9", ""),  # clipped to 5
    (30, "VIEW", "y", "b", "", "", "desk"),  # of no session: no dwell
]
# Each of these is one row in and one reject.
BAD = [
    "yesterday,VIEW,x,b,s9,,phone",
    f"{T},VIEW,x,,s9,,phone",
    f"{T},VIEW,x,b",
]

EXPECTED = {
    # (user, item, seconds): split, labels in the order of `TASKS`, recent, liked, device
    # Dwell 10: the next event of session s1 is at 10 (the LIKE at 1 has no session). Two BUYs.
    ("a", "x", 0): ("train", [1, 1, 0, 1, 10, 0, 12, None], [], [], "phone"),
    # Dwell 30 = 40 - 10, which is long. The LIKE at 10 is not before 10.
    ("a", "y", 10): ("train", [1, 0, 0, 0, 30, 1, None, None], ["x"], ["z"], None),
    # Liked and disliked: not good.
    ("a", "x", 100): (
        "validation",
        [1, 1, 1, 0, 60, 1, None, None],
        ["x", "y"],
        ["z", "x"],
        "phone",
    ),
    # Dwell 4000, capped at 600. Liked too late for like, in time for good.
    ("a", "y", 5000): (
        "test",
        [1, 0, 0, 1, 600, 1, None, None],
        ["x", "y", "x"],
        ["x", "x"],
        "desk",
    ),
    ("b", "x", 20): ("train", [1, 1, 0, 1, 2, 0, None, 5], [], ["x"], "phone"),
    # No dwell, hence no long either.
    ("b", "y", 30): ("train", [1, 0, 0, 0, None, None, None, None], ["x"], ["x", "x"], "desk"),
}
TASKS = ["view", "like", "dislike", "good", "dwell", "long", "bought", "rated"]


@pytest.fixture(scope="module")
def golden(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    rows = [f"{T + t},{event},{item},{user},{s},{v},{d}" for t, event, item, user, s, v, d in LOG]
    text = "time,event,item,user,session,value,device\n" + "\n".join([*rows, "", *BAD]) + "\n"
    (folder / "log.csv").write_text(text)
    config = event_config(
        **{
            "pipeline.split": {
                "by": "time",
                "validation": datetime.fromtimestamp(T + 50, UTC).isoformat(),
                "test": datetime.fromtimestamp(T + 1000, UTC).isoformat(),
            }
        }
    )
    manifest = run(config, folder, folder / "out")
    return folder / "out", manifest, config


def _labels(row):
    return [row[f"label/{task}"] for task in TASKS]


def test_every_label_mask_and_history_is_the_one_worked_out_by_hand(golden, read_examples):
    examples = read_examples(golden[0]).filter(~pl.col("meta/sampled"))
    found = {
        (row["user_id"], row["item_id"], int(row["meta/time"].timestamp()) - T): (
            row["split"],
            _labels(row),
            row["recent"],
            row["liked"],
            row["device"],
        )
        for row in examples.to_dicts()
    }
    assert found == EXPECTED


def test_the_one_possible_negative_is_drawn(golden, read_examples):
    # Before 20 the log had shown x (at 0) and y (at 10). b had touched x at 5, and y only later,
    # at 30: y is the only negative for b's view at 20. Everything that a was shown, a had touched;
    # at 30, b had touched both; at 0, nothing had been shown.
    sampled = read_examples(golden[0]).filter(pl.col("meta/sampled")).to_dicts()
    assert len(sampled) == 1
    row = sampled[0]
    assert (row["user_id"], row["item_id"], row["meta/time"].timestamp()) == ("b", "y", T + 20)
    assert _labels(row) == [0, None, None, None, None, None, None, None]
    assert (row["recent"], row["liked"], row["device"]) == ([], ["x"], "phone")
    positive = read_examples(golden[0]).filter(
        (pl.col("user_id") == "b") & (pl.col("item_id") == "x") & ~pl.col("meta/sampled")
    )
    assert row["meta/request"] == positive["meta/request"][0]
    assert row["split"] == positive["split"][0]


def test_the_manifest_accounts_for_every_row(golden):
    assert golden[1]["rows"] == {
        "rows_in": 21,
        "impressions": 6,
        "feedback": 8,
        "orphans": 2,
        "late": 1,
        "duplicates": 1,
        "rejects": 3,
        "held_back": 0,
        "dropped": 0,
        "outside": 0,
        "forgotten": 0,
    }
    assert golden[1]["cut_off"] == "2023-11-16T00:43:21.000001+00:00"  # after the like at 95401
    assert golden[1]["examples"] == {
        "total": 7,
        "impressions": 6,
        "sampled_negatives": 1,
        "negatives_missing": 5,
        "negatives_not_kept": 0,
        "splits": {"train": 5, "validation": 1, "test": 1},
    }
    assert json.loads((golden[0] / "manifest.json").read_text()) == golden[1]


def test_rejects_name_file_line_reason_and_text(golden):
    rejects = pl.read_parquet(golden[0] / "rejects" / "*.parquet")
    # The header is line 1, the events lines 2 to 19, line 20 is blank.
    assert rejects.to_dicts() == [
        {
            "file": "log.csv",
            "line": 21,
            "reason": "time: expected a number of s since 1970",
            "text": BAD[0],
        },
        {"file": "log.csv", "line": 22, "reason": "user: missing", "text": BAD[1]},
        {
            "file": "log.csv",
            "line": 23,
            "reason": "malformed line: expected 7 fields, received 4",
            "text": BAD[2],
        },
    ]


def test_vocabularies_and_statistics_come_from_the_training_split(golden):
    folder, _, config = golden
    read = {p.stem: pl.read_parquet(p).rows() for p in (folder / "vocabularies").iterdir()}
    # Training: a-x@0, a-y@10, b-x@20, b-y@30. The sampled negative does not count; recent and
    # liked share item_id's vocabulary and keep none.
    assert read == {
        "user_id": [("a", 2), ("b", 2)],
        "item_id": [("x", 2), ("y", 2)],
        "device": [("phone", 2), ("desk", 1)],
    }
    statistics = Statistics.read(folder / "statistics.json")
    assert statistics.rows == {"train": 5, "validation": 1, "test": 1}
    view, like = statistics.tasks["view"], statistics.tasks["like"]
    assert (view.count, view.masked, view.mean) == (5, 0, 0.8)  # 4 of 5: one is the negative
    assert view.std == pytest.approx(0.4)  # sqrt(0.8 * 0.2)
    assert (like.count, like.masked, like.mean) == (4, 1, 0.5)
    assert statistics.tasks["dwell"].mean == pytest.approx(
        (2.397895 + 3.433987 + 1.098612) / 3,
        abs=1e-6,  # ln 11, ln 31, ln 3
    )
    frozen = FrozenContract.read(folder / "contract.json")
    assert frozen.contract == config.contract


def test_an_impression_log(impression_config, read_examples, tmp_path):
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars\n"
        f"{T},1,10,r1,2.5,red|blue|green,0,1,4\n"  # clicked and rated
        f"{T},1,11,r1,,,1,0,3\n"  # rated without a click: masked; no price, no tags
        f"{T + 5},1,12,r2,nan,red,0,true,\n"  # sees the click at T; NaN is no price; no stars
        f"{T + 9},1,10,,1,|blue|,7,0,\n"  # sees both clicks, in order; of no request
        f"{T + 9},2,10,r4,1,,-1,0,\n"  # a negative position: rejected
        f"{T + 9},2,10.5,r4,1,,0,0,\n"  # an item that is no integer: rejected
        f"{T + 9},2,10,r4,1,,0,perhaps,\n"  # a label that is no number: rejected
    )
    manifest = run(impression_config(), tmp_path, tmp_path / "out")
    assert manifest["rejected"] == {
        "click: expected a number": 1,
        "item: expected an integer": 1,
        "place: expected a position from 0": 1,
    }
    rows = read_examples(tmp_path / "out").sort("meta/time", "item_id").to_dicts()
    names = ["item_id", "price", "tags", "place", "clicked", "label/click", "label/stars"]
    assert [[row[name] for name in names] for row in rows] == [
        [10, 2.5, ["blue", "green"], 0, [], 1.0, 4.0],
        [11, None, None, 1, [], 0.0, None],
        [12, None, ["red"], 0, [10], 1.0, None],
        [10, 1.0, ["blue"], 7, [10, 12], 0.0, None],
    ]
    assert [row["meta/request"] for row in rows[:3]] == ["r1", "r1", "r2"]
    assert rows[3]["meta/request"] == str(rows[3]["meta/impression"])
