"""Attribution, duplicates and label rules at their edges."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.pipeline.job import run
from multigate.pipeline.label.attribute import attribute
from multigate.pipeline.label.labels import apply_steps
from multigate.pipeline.shuffle.buckets import deduplicate

START = datetime(2026, 1, 1, tzinfo=UTC)


def events(*rows):
    """Rows (user, item, seconds or None)."""
    times = [None if s is None else START + timedelta(seconds=s) for _, _, s in rows]
    return pl.DataFrame(
        {
            "user": [r[0] for r in rows],
            "item": [r[1] for r in rows],
            "time": pl.Series(times, dtype=pl.Datetime("us", "UTC")),
        }
    )


@pytest.mark.parametrize(
    ("seconds", "impression", "late", "orphans"),
    [
        (9, None, 0, 1),  # before the first view
        (10, 0, 0, 0),  # at its very time
        (20, 2, 0, 0),  # of two views at 20, the later row
        (50, 2, 0, 0),  # 30 s after it: the window's last moment
        (50.000001, None, 1, 0),
        (None, None, 0, 1),
    ],
)
def test_feedback_goes_to_the_latest_view_within_the_window(seconds, impression, late, orphans):
    views = events(("a", "x", 10), ("a", "x", 20), ("a", "x", 20), ("a", "y", 30), ("b", "x", 30))
    found = attribute(views, events(("a", "x", seconds)), timedelta(seconds=30))
    assert found.feedback["impression"].to_list() == ([] if impression is None else [impression])
    assert (found.late, found.orphans) == (late, orphans)


def test_the_same_event_id_of_a_user_counts_once():
    frame = events(("a", "x", 1), ("a", "x", 2), ("a", "y", 3), ("b", "x", 4), ("a", "x", 5))
    ids = pl.Series("event_id", ["e1", "e1", None, "e1", None])
    numbers = pl.int_range(5, dtype=pl.UInt64)
    frame = frame.with_columns(ids, fingerprint=numbers, identity=ids.rank("dense"))
    assert deduplicate(frame)["fingerprint"].to_list() == [0, 2, 3, 4]
    again = pl.concat([frame[:3], frame[2:]])  # the same fingerprint, without an id
    assert deduplicate(again)["fingerprint"].to_list() == [0, 2, 3, 4]


def test_masks_follow_without_and_when(event_config):
    binary = {"group": "engagement", "type": "binary"}
    rule = {"rule": "dwell", "cap": "10m"}
    contract = event_config(
        **{
            "contract.tasks": {
                "both": {**binary, "label": rule, "at_least": 10.0, "without": "bad"},
                "given": {**binary, "label": rule, "at_least": 10.0, "when": "bad"},
                "bad": {**binary, "label": {"rule": "event", "events": ["LIKE"]}},
            }
        }
    ).contract
    value = pl.Series([10.0, 10.0, 10.0, 9.0, None, None])
    bad = pl.Series([1.0, 0.0, None, 0.0, 1.0, 0.0])
    labels = apply_steps(contract, {"both": value, "given": value, "bad": bad})
    # A masked `bad` is not 1; a label that is masked stays so.
    assert labels["both"].to_list() == [0.0, 1.0, 1.0, 0.0, None, None]
    assert labels["given"].to_list() == [1.0, None, None, None, None, None]
    assert list(labels) == ["both", "given", "bad"]


def test_a_sum_beyond_float32_is_refused(event_config):
    rule = {"rule": "event", "events": ["RATE"], "aggregate": "sum"}
    task = {"group": "engagement", "type": "regression", "label": rule}
    contract = event_config(**{"contract.tasks": {"paid": task}}).contract
    whole = pl.Series([1.0, 3e38, None])
    assert apply_steps(contract, {"paid": whole})["paid"].to_list()[0] == 1.0
    message = r"^contract\.tasks\.paid\.label: expected numbers within float32, received 6e\+38"
    with pytest.raises(DataError, match=message):
        apply_steps(contract, {"paid": whole + whole})
    clipped = event_config(**{"contract.tasks": {"paid": task | {"clip": [0, 100]}}}).contract
    assert apply_steps(clipped, {"paid": whole + whole})["paid"].to_list() == [2.0, 100.0, None]


def test_negatives_of_an_impression_log_take_the_items_own_features(
    impression_config, read_examples, tmp_path
):
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars\n"
        "10,1,50,r1,2.5,red,0,1,4\n"
        "20,1,50,r2,3.5,blue,1,0,\n"  # the price of 50 has changed
        "30,2,60,r3,9,,2,1,5\n"
    )
    config = impression_config(
        **{
            "pipeline.negatives": {"per_positive": 1, "unmatched": "keep"},
            "pipeline.split": {"by": "random", "validation": 0.01, "test": 0.01},
        }
    )
    manifest = run(config, tmp_path, tmp_path / "out")
    assert manifest["examples"]["sampled_negatives"] == 1
    (row,) = read_examples(tmp_path / "out").filter(pl.col("meta/sampled")).to_dicts()
    # 2's view at 30 gets item 50 as it was at 20, at the position of 2's view.
    assert (row["user_id"], row["item_id"], row["meta/request"]) == (2, 50, "r3")
    assert (row["price"], row["tags"], row["place"]) == (3.5, ["blue"], 2)
    assert (row["label/click"], row["label/stars"]) == (None, None)


HEADER = "time,event,item,user,session,value,device,length"
FEEDBACK = [
    "0,VIEW,x,a,s,,,",
    "10,BUY,x,a,s,30,,60",
    "20,BUY,x,a,s,15,,60",
    "30,BUY,x,a,s,90,,0",  # of no length: no value
    "40,BUY,x,a,s,,,60",  # of no value
    "5,VIEW,y,a,s,,,",
    "6,BUY,y,a,s,9,,",
    "7,LIKE,y,a,s,,,",
    "8,DISLIKE,y,a,s,,,",
    "9,RATE,y,a,s,3,,",
]


@pytest.mark.parametrize(("aggregate", "expected"), [("sum", 0.75), ("max", 0.5)])
def test_values_of_events_over_a_column(aggregate, expected, event_config, read_examples, tmp_path):
    (tmp_path / "log.csv").write_text("\n".join([HEADER, *FEEDBACK]) + "\n")
    label = {"rule": "event", "events": ["BUY"], "aggregate": aggregate, "over": "length"}
    watched = {"group": "engagement", "type": "regression", "label": label}
    most = watched | {"type": "binary", "at_least": 0.6}
    config = event_config(
        **{"contract.tasks.watched": watched, "contract.tasks.most": most},
        **{"pipeline.split": {"by": "user", "validation": 0.01, "test": 0.01}},
    )
    run(config, tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").filter(~pl.col("meta/sampled")).sort("meta/time")
    assert rows["label/watched"].to_list() == [expected, None]
    assert rows["label/most"].to_list() == [float(expected >= 0.6), None]


def test_a_ratio_of_two_columns(impression_config, read_examples, tmp_path):
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars,watched,length\n"
        "1,1,10,r,,,,1,,30,60\n"
        "2,1,11,r,,,,1,,90,60\n"
        "3,1,12,r,,,,0,,0,60\n"
        "4,1,13,r,,,,1,,5,0\n"  # nothing to divide by
        "5,1,14,r,,,,1,,,60\n"
        "6,1,15,r,,,,1,,5,\n"
    )
    label = {"rule": "ratio", "column": "watched", "over": "length"}
    task = {"group": "engagement", "type": "regression", "label": label, "clip": [0.0, 1.0]}
    config = impression_config(
        **{
            "contract.tasks.share": task | {"when": "click"},
            "contract.tasks.whole": {**task, "type": "binary", "at_least": 0.9},
        }
    )
    run(config, tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time")
    assert rows["label/share"].to_list() == [0.5, 1.0, None, None, None, None]
    assert rows["label/whole"].to_list() == [0.0, 1.0, 0.0, None, None, None]


@pytest.mark.parametrize(("within", "expected"), [("10m", None), ("1h", 600), (None, 600)])
def test_a_dwell_ends_while_labels_are_open(
    within, expected, event_config, read_examples, tmp_path
):
    # 3000 s later; the other labels wait for a day.
    lines = [HEADER, "0,VIEW,x,a,s,,,", "3000,VIEW,y,a,s,,,"]
    lines += [f"{at},{kind},y,a,s,,," for at, kind in enumerate(["LIKE", "DISLIKE"], 3001)]
    lines += [f"{at},{kind},y,a,s,1,," for at, kind in enumerate(["BUY", "RATE"], 3010)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    label = {"rule": "dwell", "cap": "10m"} | ({"within": within} if within else {})
    config = event_config(
        **{"contract.tasks.dwell.label": label},
        **{"pipeline.split": {"by": "user", "validation": 0.01, "test": 0.01}},
    )
    run(config, tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time")
    assert rows["label/dwell"][0] == expected
