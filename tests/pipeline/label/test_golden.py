"""Hand-written logs whose every label, mask and feature is worked out beside them."""

import json
from datetime import UTC, datetime

import polars as pl
import pytest

from multigate.configs import FrozenContract, Statistics
from multigate.pipeline.job import run

T = 1_700_000_000  # 2023-11-14T22:13:20Z; times below are seconds after it

# (seconds, event, item, user, session, value, device), and where they matter (id, length)
LOG = [
    # User a, session s1.
    (0, "VIEW", "x", "a", "s1", "", "phone"),
    (1, "LIKE", "z", "a", "", "", ""),  # a is never shown z: an orphan, but part of the history
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
    # User c, never in a session: a history of more than three views.
    (2000, "VIEW", "p", "c", "", "", ""),
    (2010, "VIEW", "q", "c", "", "", ""),
    (2020, "VIEW", "r", "c", "", "", ""),
    (2030, "VIEW", "p", "c", "", "", ""),
    (2040, "LIKE", "p", "c", "", "", ""),  # of the view at 2030, the latest, not of that at 2000
    (2050, "VIEW", "q", "c", "", "", ""),
    (2050, "BUY", "q", "c", "", "3", "", "e1"),  # at the view's very time: belongs to it
    (2051, "BUY", "q", "c", "", "3", "", "e1"),  # a duplicate by its id: the earlier one stays
    (2052, "BUY", "q", "c", "", "2", ""),
    (2052, "BUY", "q", "c", "", "2", ""),  # a duplicate by its full row
    (2150, "VIEW", "q", "c", "", "", ""),
    (2151, "VIEW", "r", "c", "", "", ""),
    (5751, "LIKE", "q", "c", "", "", ""),  # 3601 s after the view at 2150: not within 1 h
    (5751, "LIKE", "r", "c", "", "", ""),  # 3600 s after the view at 2151: within 1 h
    (5752, "RATE", "q", "c", "", "4", ""),  # rated counts where liked within 1 h only
    # User d, session s4.
    (6000, "VIEW", "p", "d", "s4", "", "tv"),
    (6000, "VIEW", "m", "d", "s4", "", "tv"),  # at the same time: neither sees the other
    (6030, "WATCH", "p", "d", "s4", "30", "", "", "60"),
    (6040, "WATCH", "m", "d", "s4", "45", "", "", "30"),  # 1.5 times its length
    (6041, "WATCH", "p", "d", "s4", "99", "", "", "0"),  # of no length: nothing to divide by
    (6060, "VIEW", "k", "d", "s4", "", ""),  # the session's last event: no dwell
    (6070, "WATCH", "k", "d", "", "12", ""),  # of unknown length: attributed, labels nothing
    # User e.
    (2045, "LIKE", "p", "e", "", "", ""),  # e is never shown p: an orphan, but an event of p
    (6100, "VIEW", "k", "e", "", "", "desk", "e1"),  # ids are the user's own: no duplicate
    (6101, "VIEW", "r", "e", "", "", ""),
    # User f alone is shown z.
    (2151, "VIEW", "z", "f", "", "", "tv"),  # at the time of c's last view, which cannot draw z
    (4950, "VIEW", "z", "f", "", "", ""),  # nor can a at 5000: a had liked it, unseen, at 1
    # Users f and g, a day before the log ends: labels stay open for 86400 s.
    (9000, "VIEW", "u", "f", "s5", "", ""),
    (95401, "DISLIKE", "u", "f", "s5", "", ""),  # 86401 s later: late, and ends no dwell
    (9001, "VIEW", "v", "g", "s6", "", "phone"),
    (95401, "DISLIKE", "v", "g", "s6", "", ""),  # 86400 s later: still attributed
    (9002, "VIEW", "w", "g", "", "", ""),  # what waits for a day closes at 95402, after the log
    (9100, "LIKE", "w", "g", "", "", ""),
]
# Each of these is one row in and one reject.
BAD = [
    "yesterday,VIEW,x,b,s9,,phone,,",
    f"{T},VIEW,x,,s9,,phone,,",
    f"{T},VIEW,x,b",
]

TASKS = ["view", "like", "dislike", "good", "dwell", "long", "bought", "rated"]
TASKS += ["buys", "watched", "finished"]
COUNTERS = ["item_views", "item_age", "item_liking", "user_likes", "user_rest"]
# What the fixture's contract lacks.
MORE = {
    "contract.features.bought_lately": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "history": {"events": ["BUY"], "last": 3, "within": "100s"},
    },
    "contract.features.item_views": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"], "within": "100s"},
    },
    "contract.features.item_age": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": ["VIEW"], "which": "first"},
        "missing": "indicator",
    },
    "contract.features.item_liking": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW"]},
        "missing": "indicator",
    },
    "contract.features.user_likes": {
        "kind": "number",
        "side": "user",
        "count": {"of": "user", "events": ["LIKE"], "within": "100s"},
    },
    "contract.features.user_rest": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["VIEW"]},
        "missing": "indicator",
    },
    "contract.tasks.buys": {
        "group": "engagement",
        "type": "regression",
        "label": {"rule": "event", "events": ["BUY"], "aggregate": "count"},
    },
    "contract.tasks.watched": {
        "group": "engagement",
        "type": "regression",
        "label": {"rule": "event", "events": ["WATCH"], "aggregate": "sum", "over": "length"},
        "clip": [0.0, 1.0],
    },
    "contract.tasks.finished": {
        "group": "engagement",
        "type": "binary",
        "label": {"rule": "event", "events": ["WATCH"], "aggregate": "max", "over": "length"},
        "at_least": 0.75,
    },
    "pipeline.log.columns.event_id": "id",
    "pipeline.negatives": {"per_positive": 1, "recent": "100s", "unmatched": "keep"},
    "pipeline.hold_back": True,
    "pipeline.split": {
        "by": "time",
        "validation": datetime.fromtimestamp(T + 50, UTC).isoformat(),
        "test": datetime.fromtimestamp(T + 1000, UTC).isoformat(),
        "embargo": False,
    },
}

EXPECTED = {
    # (user, item, seconds): split, labels in the order of `TASKS`, recent, liked, bought lately,
    # device, numbers in the order of `COUNTERS`.
    # Dwell 10: the next event of session s1 is at 10 (the LIKE at 1 has no session). Two BUYs.
    # Nothing was before.
    ("a", "x", 0): (
        "train",
        [1, 1, 0, 1, 10, 0, 12, None, 2, None, None],
        *([], [], []),
        "phone",
        [0, None, None, 0, None],
    ),
    # Dwell 30 = 40 - 10, which is long. The LIKE at 10 is not before 10. y is new: neither age nor
    # rate. a had liked z (at 1) and had viewed x 10 s before.
    ("a", "y", 10): (
        "train",
        [1, 0, 0, 0, 30, 1, None, None, 0, None, None],
        *(["x"], ["z"], []),
        None,
        [0, None, None, 1, 10],
    ),
    # Liked and disliked: not good. No event on another item follows in s1: no dwell, hence no long.
    # Bought at 40 and 41. Of x: views at 0, which [0, 100) holds, and
    # 20; the first at 0; likes at 5, 10 and 22 for two views. a liked at 1 and 10, viewed y at 10.
    ("a", "x", 100): (
        "validation",
        [1, 1, 1, 0, None, None, None, None, 0, None, None],
        *(["x", "y"], ["z", "x"], ["x", "x"]),
        "phone",
        [2, 100, 1.5, 2, 90],
    ),
    # Only likes of y itself follow in s2: no dwell. Liked too late for like, in time for good. Of
    # y: no view since 4900, the first at 10, no like for two views. a's likes are long past, its
    # last view at 100.
    ("a", "y", 5000): (
        "test",
        [1, 0, 0, 1, None, None, None, None, 0, None, None],
        *(["x", "y", "x"], ["x", "x"], []),
        "desk",
        [0, 4990, 0, 0, 4900],
    ),
    # In s9, b's own LIKE and RATE of x follow: no dwell. Of x: one view, at 0 (its duplicate does
    # not count); likes at 5 (the orphan) and 10.
    ("b", "x", 20): (
        "train",
        [1, 1, 0, 1, None, None, None, 5, 0, None, None],
        *([], ["x"], []),
        "phone",
        [1, 20, 2, 1, None],
    ),
    # Of no session, hence no dwell. Of y: the view at 10, no like. b liked at 5 and 22.
    ("b", "y", 30): (
        "train",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["x"], ["x", "x"], []),
        "desk",
        [1, 20, 0, 2, 10],
    ),
    # The LIKE at 2040 is of the later view. Nobody had seen p, nor c anything.
    ("c", "p", 2000): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *([], [], []),
        None,
        [0, None, None, 0, None],
    ),
    # All feedback on q follows its view at 2050. q is new.
    ("c", "q", 2010): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["p"], [], []),
        None,
        [0, None, None, 0, 10],
    ),
    # The LIKE of r follows its view at 2151. r is new.
    ("c", "r", 2020): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["p", "q"], [], []),
        None,
        [0, None, None, 0, 10],
    ),
    # Liked at 2040. Of p: the view at 2000, no like yet.
    ("c", "p", 2030): (
        "test",
        [1, 1, 0, 1, None, None, None, None, 0, None, None],
        *(["p", "q", "r"], [], []),
        None,
        [1, 30, 0, 0, 10],
    ),
    # Bought for 3 at 2050 and for 2 at 2052, each with a duplicate; the former is not before 2050.
    # Of the views p, q, r, p the last three. Of q: the view at 2010. c liked at 2040, viewed at
    # 2030.
    ("c", "q", 2050): (
        "test",
        [1, 0, 0, 0, None, None, 5, None, 2, None, None],
        *(["q", "r", "p"], ["p"], []),
        None,
        [1, 40, 0, 1, 20],
    ),
    # Liked 3601 s later: good, but like is 0, which masks rated. [2050, 2150) holds the BUYs at
    # 2050 and 2052 and the view of q at 2050, not that at 2010, nor the LIKE at 2040. q had two
    # views and no like.
    ("c", "q", 2150): (
        "test",
        [1, 0, 0, 1, None, None, None, None, 0, None, None],
        *(["r", "p", "q"], ["p"], ["q", "q"]),
        None,
        [1, 140, 0, 0, 100],
    ),
    # Liked 3600 s later, never rated. [2051, 2151) holds the BUY at 2052 alone: that at 2050 is
    # 101 s ago, that at 2051 a duplicate. Of r: the view at 2020, 131 s ago.
    ("c", "r", 2151): (
        "test",
        [1, 1, 0, 1, None, None, None, None, 0, None, None],
        *(["p", "q", "q"], ["p"], ["q"]),
        None,
        [0, 131, 0, 0, 1],
    ),
    # Dwell 40 = 6040 - 6000: the WATCH at 6030 is of p, the other view is not later. Watched
    # 30 / 60, below 0.75; the 99 by 0 are nothing. Of p: views at 2000 and 2030, likes at 2040
    # (c) and 2045 (the orphan).
    ("d", "p", 6000): (
        "test",
        [1, 0, 0, 0, 40, 1, None, None, 0, 0.5, 0],
        *([], [], []),
        "tv",
        [0, 4000, 1, 0, None],
    ),
    # Watched 45 / 30, clipped to 1; finished clips nothing, 1.5 reaches 0.75. m is new.
    ("d", "m", 6000): (
        "test",
        [1, 0, 0, 0, 30, 1, None, None, 0, 1, 1],
        *([], [], []),
        "tv",
        [0, None, None, 0, None],
    ),
    # Watched for a share that nobody knows: masked. Of the two views at 6000, m comes first: at the
    # same time, items are in their own order.
    ("d", "k", 6060): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["m", "p"], [], []),
        None,
        [0, None, None, 0, 60],
    ),
    # Of k: d's view at 6060. e had liked p, at 2045, and had viewed nothing.
    ("e", "k", 6100): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *([], ["p"], []),
        "desk",
        [1, 40, 0, 0, None],
    ),
    # Of r: views at 2020 and 2151, the LIKE at 5751.
    ("e", "r", 6101): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["k"], ["p"], []),
        None,
        [0, 4081, 0.5, 0, 1],
    ),
    # Of z: a's LIKE at 1 for no view, hence no rate.
    ("f", "z", 2151): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *([], [], []),
        "tv",
        [0, None, None, 0, None],
    ),
    # Of z: the view at 2151, the LIKE at 1.
    ("f", "z", 4950): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["z"], [], []),
        None,
        [0, 2799, 1, 0, 2799],
    ),
    # The next event of session s5 is late as feedback.
    # f had viewed z twice, last at 4950.
    ("f", "u", 9000): (
        "test",
        [1, 0, 0, 0, None, None, None, None, 0, None, None],
        *(["z", "z"], [], []),
        None,
        [0, None, None, 0, 4050],
    ),
    # Its labels close at 95401, which the log still holds. Disliked at the day's very end.
    ("g", "v", 9001): (
        "test",
        [1, 0, 1, 0, None, None, None, None, 0, None, None],
        *([], [], []),
        "phone",
        [0, None, None, 0, None],
    ),
    # view and like have closed; all others are open.
    ("g", "w", 9002): (
        "test",
        [1, 1, *[None] * 9],
        *(["v"], [], []),
        None,
        [0, None, None, 0, 1],
    ),
}
# Drawn from what the log had shown in the 100 s before, without what the user had touched by then.
# Five windows leave one item each; the others leave none: at 0, 2000, 4950, 6000 and 9000 nothing
# was shown so lately; a, c and d (at 6060) had touched all that was, a at 5000 the z of 4950, at 1;
# c at 2151 does not see what is shown at 2151; b's views match: x at 20 was liked at 5, and no
# other item was; at 30 b had touched both x and y (y by this very view); at 6101, e had viewed k,
# and m was 101 s ago.
NEGATIVES = {
    # c viewed p, which stands in [p, q, r] once, as q and r do, and the hash takes q; user, request
    # and context are the positive's, and so are its histories and user's counters.
    ("c", "q", 2030): ("test", ["p", "q", "r"], [], [], None, [1, 20, 0, 0, 10]),
    # c viewed q; of [q, r, p], p was liked at 2040, and q was not: r is alike.
    ("c", "r", 2050): ("test", ["q", "r", "p"], ["p"], [], None, [1, 30, 0, 1, 20]),
    # [2051, 2151) showed q alone, at 2150; its first view was at 2010, and it had no like.
    ("f", "q", 2151): ("test", [], [], [], "tv", [1, 141, 0, 0, None]),
    # [6000, 6100) showed p, which e had liked, k, the positive's own, and m, at its very start.
    ("e", "m", 6100): ("test", [], ["p"], [], "desk", [1, 100, 0, 0, None]),
    # [8901, 9001) showed u alone, at 9000.
    ("g", "u", 9001): ("test", [], [], [], "phone", [1, 1, 0, 0, None]),
    # [8902, 9002) showed u and v, which g had viewed.
    ("g", "u", 9002): ("test", ["v"], [], [], None, [1, 2, 0, 0, 1]),
}


@pytest.fixture(scope="module")
def golden(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    header = "time,event,item,user,session,value,device,id,length"
    rows = []
    for seconds, *fields in LOG:
        rows.append(",".join([str(T + seconds), *fields, *[""] * (8 - len(fields))]))
    (folder / "log.csv").write_text("\n".join([header, *rows, "", *BAD]) + "\n")
    config = event_config(**MORE)
    manifest = run(config, folder, folder / "out")
    return folder / "out", manifest, config


def _labels(row):
    return [row[f"label/{task}"] for task in TASKS]


def _key(row):
    return row["user_id"], row["item_id"], int(row["meta/time"].timestamp()) - T


def _features(row):
    names = ["recent", "liked", "bought_lately", "device"]
    return *(row[name] for name in names), [row[name] for name in COUNTERS]


def test_every_label_mask_and_feature_is_the_one_worked_out_by_hand(golden, read_examples):
    rows = read_examples(golden[0]).filter(~pl.col("meta/sampled")).to_dicts()
    found = {_key(row): (row["split"], _labels(row), *_features(row)) for row in rows}
    assert found == EXPECTED
    assert len(rows) == len(EXPECTED)


def test_the_only_possible_negatives_are_drawn(golden, read_examples):
    examples = read_examples(golden[0])
    rows = examples.filter(pl.col("meta/sampled")).to_dicts()
    assert {_key(row): (row["split"], *_features(row)) for row in rows} == NEGATIVES
    assert len(rows) == len(NEGATIVES)
    for row in rows:
        assert _labels(row) == [0, *[None] * 10]
        positive = examples.filter(
            (pl.col("user_id") == row["user_id"])
            & (pl.col("meta/time") == row["meta/time"])
            & ~pl.col("meta/sampled")
        )
        assert positive["meta/request"].to_list() == [row["meta/request"]]


def test_the_manifest_accounts_for_every_row(golden):
    assert golden[1]["rows"] == {
        "rows_in": 54,  # 51 events and 3 that are none
        "impressions": 23,  # 4 of a, 2 of b, 7 of c, 3 of d, 2 of e, 3 of f, 2 of g
        "feedback": 20,  # 6 of a, 2 of b, 6 of c, 4 of d, 2 of g
        "orphans": 3,  # 1 each of a, b and e
        "late": 2,  # 1 each of a and f
        "duplicates": 3,  # 1 of a, 2 of c
        "rejects": 3,
        "held_back": 0,
        "dropped": 0,
        "outside": 0,
        "forgotten": 0,
        "after_cut_off": 0,
        "collapsed": 0,
    }
    waiting = dict.fromkeys(TASKS, 1) | {"view": 0, "like": 0}  # of g's w
    assert golden[1]["labels"] == {"open": waiting, "embargoed": {}}
    # Just after the last events, at 95401.
    assert golden[1]["cut_off"] == "2023-11-16T00:43:21.000001+00:00"
    assert golden[1]["examples"] == {
        "total": 29,
        "impressions": 23,
        "sampled_negatives": 6,
        "negatives_missing": 17,
        "unmatched": 20,  # z at 2151, v at 9001, w at 9002 were new; others could be drawn
        "negatives_not_kept": 0,
        "embargoed": 0,
        "splits": {"train": 4, "validation": 1, "test": 24},
    }
    assert json.loads((golden[0] / "manifest.json").read_text()) == golden[1]


def test_rejects_name_file_line_reason_and_text(golden):
    rejects = pl.read_parquet(golden[0] / "rejects" / "*.parquet")
    # The header is line 1, the events lines 2 to 52, line 53 is blank.
    assert rejects.to_dicts() == [
        {
            "file": "log.csv",
            "line": 54,
            "reason": "time: expected a number of s since 1970",
            "text": BAD[0],
        },
        {"file": "log.csv", "line": 55, "reason": "user: missing", "text": BAD[1]},
        {
            "file": "log.csv",
            "line": 56,
            "reason": "malformed line: expected 9 fields, received 4",
            "text": BAD[2],
        },
    ]


def test_vocabularies_and_statistics_come_from_the_training_split(golden):
    folder, _, config = golden
    read = {p.stem: pl.read_parquet(p).rows() for p in (folder / "vocabularies").iterdir()}
    # Training: a-x@0, a-y@10, b-x@20, b-y@30; histories share item_id's vocabulary and keep none.
    assert read == {
        "user_id": [("a", 2), ("b", 2)],
        "item_id": [("x", 2), ("y", 2)],
        "device": [("phone", 2), ("desk", 1)],
    }
    statistics = Statistics.read(folder / "statistics.json")
    assert statistics.rows == {"train": 4, "validation": 1, "test": 24}
    view, like = statistics.tasks["view"], statistics.tasks["like"]
    assert (view.count, view.masked, view.mean) == (4, 0, 1)
    assert (like.count, like.masked, like.mean) == (4, 0, 0.5)
    assert statistics.tasks["dwell"].mean == pytest.approx(
        (2.397895 + 3.433987) / 2,
        abs=1e-6,  # ln 11, ln 31
    )
    buys, watched = statistics.tasks["buys"], statistics.tasks["watched"]
    assert (buys.count, buys.masked, buys.mean) == (4, 0, 0.5)  # 2, 0, 0, 0
    assert buys.std == pytest.approx(0.8660254)  # sqrt(4 / 4 - 0.5 ** 2)
    # Nothing was watched in training: nothing to measure, and nothing that scales.
    assert (watched.count, watched.masked, watched.mean, watched.std) == (0, 4, 0, 1)
    views, age = statistics.features["item_views"], statistics.features["item_age"]
    # 0, 0, 1, 1; ages null, null, 20, 20.
    assert (views.count, views.missing, views.mean) == (4, 0, 0.5)
    assert (age.count, age.missing, age.mean) == (2, 2, 20)
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
