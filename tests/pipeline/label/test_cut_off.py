"""What depends on where the log ends: impressions held back, and snapshots."""

from datetime import UTC, datetime

import polars as pl
import pytest

from multigate.configs import DataError, FrozenContract
from multigate.features import count_events, last_items, seconds_since
from multigate.pipeline.job import run

HEADER = "time,event,item,user,session,value,device"
T = 1_700_000_000
SPLIT = {"pipeline.split": {"by": "user", "validation": 0.01, "test": 0.01}}
SATISFACTION = {"group": "satisfaction", "type": "binary"}
HOLD = {
    "pipeline.hold_back": True,
    "pipeline.attribution": "2h",
    **SPLIT,
    # All labels stay open for two hours.
    "contract.tasks": {
        "dislike": {**SATISFACTION, "label": {"rule": "event", "events": ["DISLIKE"]}},
        "good": {
            **SATISFACTION,
            "label": {"rule": "event", "events": ["LIKE"]},
            "without": "dislike",
        },
    },
}
EVERY = ["LIKE", "DISLIKE", "BUY", "RATE"]
COUNTERS = {
    "contract.features.item_views": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "contract.features.item_rest": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": ["LIKE"]},
        "missing": "indicator",
    },
    "contract.features.user_events_1h": {
        "kind": "number",
        "side": "user",
        "count": {"of": "user", "events": [*EVERY, "VIEW"], "within": "1h"},
    },
    "contract.features.genre": {"kind": "id", "side": "item", "missing": "indicator"},
    "contract.features.plan": {"kind": "id", "side": "user", "missing": "indicator"},
}


def write(folder, rows, extra="genre,plan"):
    folder.mkdir()
    lines = [f"{HEADER},{extra}", *(",".join(str(value) for value in row) for row in rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


def row(seconds, event, item, user, genre="", plan=""):
    return (T + seconds, event, item, user, "s", "", "", genre, plan)


def times(examples):
    logged = examples.filter(~pl.col("meta/sampled"))
    return sorted(int(t.timestamp()) - T for t in logged["meta/time"])


LOG = [
    *(row(at, kind, "x", "a") for at, kind in enumerate(["VIEW", *EVERY])),
    row(100, "VIEW", "y", "a"),
    row(200, "VIEW", "x", "b"),
    row(250, "LIKE", "x", "b"),
    row(7299, "VIEW", "x", "c"),
    row(7300, "VIEW", "y", "c"),
]


def test_impressions_whose_labels_are_open_are_held_back(event_config, read_examples, tmp_path):
    folder = write(tmp_path / "log", LOG)
    manifest = run(event_config(**HOLD), folder, tmp_path / "out")
    # The log is whole up to 7300; an impression waits 7200 s. At 100 it ends at 7300, which is
    # still known; at 200 it would end at 7400.
    assert times(read_examples(tmp_path / "out")) == [0, 100]
    assert manifest["rows"] == {
        "rows_in": 10,
        "impressions": 2,
        "feedback": 5,  # that of b's held impression, too: it has been attributed
        "orphans": 0,
        "late": 0,
        "duplicates": 0,
        "rejects": 0,
        "held_back": 3,
        "dropped": 0,
        "outside": 0,
        "forgotten": 0,
        "after_cut_off": 0,
        "collapsed": 0,
    }
    assert manifest["labels"] == {"open": {"dislike": 0, "good": 0}, "embargoed": {}}
    everything = run(
        event_config(**HOLD | {"pipeline.hold_back": False}), folder, tmp_path / "everything"
    )
    assert (everything["rows"]["held_back"], everything["rows"]["impressions"]) == (0, 5)


@pytest.mark.parametrize(("seconds", "kept"), [(7200, []), (7201, [0]), (7401, [0, 100, 200])])
def test_the_cut_off_may_be_named(seconds, kept, event_config, read_examples, tmp_path):
    # Up to 7200, the end of the first impression's window, and not including it.
    cut_off = datetime.fromtimestamp(T + seconds, UTC).isoformat()
    folder = write(tmp_path / "log", LOG)
    config = event_config(**HOLD, **{"pipeline.cut_off": cut_off})
    if not kept:
        with pytest.raises(DataError, match=r"3 were held back because their labels were open at"):
            run(config, folder, tmp_path / "out")
        return
    manifest = run(config, folder, tmp_path / "out")
    assert times(read_examples(tmp_path / "out")) == kept
    # Rows at or after the cut-off are not part of the run: of five impressions two, by 7200.
    later = sum(at >= seconds for at in (7299, 7300))
    assert manifest["rows"]["after_cut_off"] == later
    assert manifest["rows"]["held_back"] == 5 - later - len(kept)


def test_labels_are_held_back_one_by_one(event_config, read_examples, tmp_path):
    options = {"pipeline.hold_back": True, "pipeline.attribution": "2h"}
    config = event_config(**options, **{"pipeline.negatives.unmatched": "keep"})
    manifest = run(config, write(tmp_path / "log", LOG), tmp_path / "out")
    rows = read_examples(tmp_path / "out").filter(~pl.col("meta/sampled")).sort("meta/time")
    # The log is whole up to 7300. view closes at once, like after 1 h, dislike after 2 h, rated
    # with like, good with dislike; dwell after a day.
    assert rows.select("label/view", "label/like", "label/dislike", "label/good").rows() == [
        (1, 1, 1, 0),
        (1, 0, 0, 0),
        (1, 1, None, None),
        (1, None, None, None),
        (1, None, None, None),
    ]
    assert rows["label/dwell"].null_count() == 5
    assert manifest["rows"]["held_back"] == 0
    waiting = {"view": 0, "like": 2, "dislike": 3, "good": 3, "bought": 3, "rated": 3}
    assert manifest["labels"]["open"] == waiting | {"dwell": 5, "long": 5}


def test_a_held_impression_is_labelled_by_a_later_run(event_config, read_examples, tmp_path):
    more = [*LOG, row(7350, "LIKE", "x", "c"), row(99_999, "VIEW", "x", "d")]
    first, later = tmp_path / "first", tmp_path / "later"
    run(event_config(**HOLD), write(tmp_path / "a", LOG), first)
    run(event_config(**HOLD), write(tmp_path / "b", more), later)
    found = read_examples(later).filter(~pl.col("meta/sampled"))
    liked = found.filter(pl.col("user_id") == "c").sort("meta/time")
    assert liked.select("item_id", "label/good").rows() == [("x", 1.0), ("y", 0.0)]
    earlier = read_examples(first).drop("split")
    same = found.join(earlier.select("meta/impression"), on="meta/impression", how="semi")
    assert same.select(earlier.columns).equals(earlier.filter(~pl.col("meta/sampled")))
    assert times(found) == [0, 100, 200, 7299, 7300]


SHOP = [
    row(0, "VIEW", "x", "a", "old", "free"),
    row(10, "VIEW", "x", "b", "new", "paid"),
    row(20, "VIEW", "y", "a", "", "paid"),  # y has no genre
    row(30, "LIKE", "x", "a", "wrong", "wrong"),  # feedback says nothing of user or item
    row(4000, "VIEW", "x", "a", "newest", ""),  # a has no plan any more
    row(4001, "LIKE", "z", "b"),  # z was never shown
    *(row(4002, kind, "x", "a") for kind in EVERY[1:]),
]


def snapshot(out, name):
    return pl.read_parquet(out / "snapshot" / name / "*.parquet").sort(pl.first())


def test_snapshots_hold_what_an_impression_after_the_log_would(event_config, tmp_path):
    config = event_config(**COUNTERS)
    run(config, write(tmp_path / "log", SHOP), tmp_path / "out")
    users, items = snapshot(tmp_path / "out", "users"), snapshot(tmp_path / "out", "items")
    # The cut-off is a microsecond after 4002: 3 feedback events and the view at 4000 of a are
    # within the hour before (402.000001 to 4002.000001), b's like at 4001, too.
    assert users.rows() == [
        ("a", ["x", "y", "x"], ["x"], 4, None),
        ("b", ["x"], ["z"], 1, "paid"),
    ]
    assert users.columns == ["user_id", "recent", "liked", "user_events_1h", "plan"]
    # x was liked at 30, z at 4001; nobody viewed z.
    assert items.columns == ["item_id", "item_views", "item_rest", "genre"]
    expected = [3972.000001, None, 1.000001]
    assert items["item_rest"].to_list() == [x and pytest.approx(x, rel=1e-6) for x in expected]
    assert items.drop("item_rest").rows() == [("x", 3, "newest"), ("y", 1, None), ("z", 0, None)]


def test_a_snapshot_of_the_past_ignores_what_came_later(event_config, tmp_path):
    cut_off = datetime.fromtimestamp(T + 10, UTC).isoformat()
    config = event_config(**COUNTERS, **SPLIT, **{"pipeline.cut_off": cut_off})
    run(config, write(tmp_path / "log", SHOP), tmp_path / "out")
    # Of what happened up to and not including 10, there is the view at 0.
    assert snapshot(tmp_path / "out", "users").rows() == [("a", ["x"], [], 1, "free")]
    assert snapshot(tmp_path / "out", "items").rows() == [("x", 1, None, "old")]


def test_snapshots_join_side_tables(event_config, tmp_path):
    changes = {
        "contract.features.genre": {"kind": "id", "side": "item", "source": "items"},
        "contract.features.plan": {"kind": "id", "side": "user", "source": "users"},
        "pipeline.users": {"files": ["users.csv"], "key": "id"},
        "pipeline.items": {"files": ["items.csv"], "key": "id"},
    }
    folder = write(tmp_path / "log", SHOP)
    (folder / "users.csv").write_text("id,plan\na,free\nb,paid\nq,free\n")
    (folder / "items.csv").write_text("id,genre\nx,drama\ny,comedy\n")
    run(event_config(**COUNTERS | changes), folder, tmp_path / "out")
    users, items = snapshot(tmp_path / "out", "users"), snapshot(tmp_path / "out", "items")
    assert dict(users.select("user_id", "plan").rows()) == {"a": "free", "b": "paid"}
    # The table does not know z, which was never shown: its genre is missing.
    assert dict(items.select("item_id", "genre").rows()) == {"x": "drama", "y": "comedy", "z": None}


def test_a_client_computes_the_same_as_the_snapshot(event_config, tmp_path):
    config = event_config(**COUNTERS, **{"pipeline.buckets": 2})
    run(config, write(tmp_path / "log", SHOP), tmp_path / "out")
    frozen = FrozenContract.read(tmp_path / "out/contract.json").contract.features
    log = pl.DataFrame(
        {
            "time": pl.Series([r[0] for r in SHOP]).cast(pl.Int64) * 1_000_000,
            "event": [r[1] for r in SHOP],
            "item": [r[2] for r in SHOP],
            "user": [r[3] for r in SHOP],
        }
    ).with_columns(pl.col("time").cast(pl.Datetime("us", "UTC")))
    now = pl.lit(log["time"].max()).dt.offset_by("1us")
    users, items = snapshot(tmp_path / "out", "users"), snapshot(tmp_path / "out", "items")
    asked = users.select(user="user_id", time=now)
    views = log.filter(pl.col("event") == "VIEW")
    assert last_items(views, asked, 3).to_list() == users["recent"].to_list()
    within = frozen["user_events_1h"].count.within
    assert count_events(log, asked, "user", within).to_list() == users["user_events_1h"].to_list()
    asked = items.select(item="item_id", time=now)
    likes = log.filter(pl.col("event") == "LIKE")
    rest = seconds_since(likes, asked, "item").cast(pl.Float32)
    assert rest.to_list() == items["item_rest"].to_list()
