"""Rates, windows, dated tables, ratios and feedback by request: by hand, and by plain loops.

The golden log here and the one of `test_pipeline_golden` are some forty events together.
"""

import random
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from multigate.configs import DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.compute.tables import read_table
from multigate.pipeline.job import run

T = 1_700_000_000
HEADER = "time,event,item,user,request,value,length"
VIEWS, CLICKS = ["VIEW"], ["CLICK"]
CONTRACT = {
    "contract.features": {
        "user_id": {"kind": "id", "side": "user", "column": "user"},
        "item_id": {"kind": "id", "side": "item", "column": "item"},
        "topic": {"kind": "id", "side": "item", "source": "items", "missing": "indicator"},
        "price": {"kind": "number", "side": "item", "source": "items", "missing": "indicator"},
        "plan": {"kind": "id", "side": "user", "source": "users", "missing": "indicator"},
        "item_ctr": {
            "kind": "number",
            "side": "item",
            "rate": {"of": "item", "events": CLICKS, "per": VIEWS, "within": "100s"},
            "missing": "indicator",
        },
        "lately": {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": {"events": VIEWS, "last": 3, "within": "60s"},
        },
    },
    "contract.tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "event", "events": CLICKS, "within": "50s"},
        },
        "watched": {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "event", "events": ["WATCH"], "aggregate": "sum", "over": "length"},
            "clip": [0.0, 1.0],
        },
        "whole": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "event", "events": ["WATCH"], "aggregate": "sum", "over": "length"},
            "at_least": 0.9,
        },
    },
    "pipeline.log.columns": {
        "time": "time",
        "user": "user",
        "item": "item",
        "event": "event",
        "value": "value",
        "request": "request",
    },
    "pipeline.attribution": "100s",
    "pipeline.attribute_by": "request",
    "pipeline.items": {"files": ["items.csv"], "key": "id", "time": "since"},
    "pipeline.users": {
        "files": ["users.parquet"],
        "format": {"type": "parquet"},
        "key": "id",
        "time": "since",
    },
    "pipeline.split": {"by": "random", "validation": 0.05, "test": 0.05},
}
ONE_BY_ONE = {"pipeline.negatives": None}

LOG = [
    # User a. Request r1 shows x and y.
    (0, "VIEW", "x", "a", "r1", "", ""),
    (0, "VIEW", "y", "a", "r1", "", ""),
    (5, "CLICK", "x", "a", "r1", "", ""),
    (20, "VIEW", "x", "a", "r2", "", ""),  # x again
    (25, "CLICK", "x", "a", "r1", "", ""),  # names r1: of the view at 0, not of the latest at 20
    (26, "WATCH", "x", "a", "r2", 30, 60),
    (27, "WATCH", "x", "a", "r2", 45, 60),  # 0.5 + 0.75 of the view at 20, clipped to 1
    (28, "CLICK", "y", "a", "r9", "", ""),  # names a request that showed nothing: an orphan
    (29, "CLICK", "y", "a", "", "", ""),  # names none: of the latest view of y, at 0
    (50, "VIEW", "x", "a", "r3", "", ""),
    (55, "WATCH", "x", "a", "r3", 10, 0),  # of no length: no value
    (60, "VIEW", "y", "a", "r4", "", ""),
    (110, "CLICK", "x", "a", "r1", "", ""),  # 110 s after r1's view: late
    (130, "VIEW", "x", "a", "r5", "", ""),
    # User b.
    (10, "VIEW", "x", "b", "r6", "", ""),
    (12, "CLICK", "x", "b", "r6", "", ""),
    (12, "CLICK", "x", "b", "r6", "", ""),  # a duplicate
    (40, "VIEW", "z", "b", "r7", "", ""),
    (45, "WATCH", "z", "b", "r7", 30, 40),
    (95, "CLICK", "x", "b", "r6", "", ""),  # 85 s: attributed, and too late for the label
    (100, "VIEW", "x", "b", "r8", "", ""),
    (101, "CLICK", "x", "b", "r1", "", ""),  # r1 was a's: an orphan
]
ITEMS = [("x", 0, "news", 1), ("x", 50, "sport", ""), ("y", 30, "music", 2)]
USERS = [("a", -100, "free"), ("a", 60, "paid"), ("b", 10, "free")]

EXPECTED = {
    # (user, item, seconds): request, [click, watched, whole], item_ctr, lately, topic, price, plan
    # Rates are clicks over views of the item in the 100 s before; before 0 there was neither.
    # x is news from 0 on, the very time of the view; y is nothing before 30.
    ("a", "x", 0): ("r1", [1, None, None], None, [], "news", 1, "free"),
    ("a", "y", 0): ("r1", [1, None, None], None, [], None, None, "free"),
    # One view of x (at 0), one click (at 5).
    ("b", "x", 10): ("r6", [1, None, None], 1, [], "news", 1, "free"),
    # Views at 0 and 10, clicks at 5 and 12.
    ("a", "x", 20): ("r2", [0, 1, 1], 1, ["x", "y"], "news", 1, "free"),
    ("b", "z", 40): ("r7", [0, 0.75, 0], None, ["x"], None, None, "free"),
    # x is sport from 50 on, and has no price any more.
    ("a", "x", 50): ("r3", [0, None, None], 1, ["x", "y", "x"], "sport", None, "free"),
    # y: one view (at 0), two clicks (28, 29). a pays from 60 on.
    ("a", "y", 60): ("r4", [0, None, None], 2, ["y", "x", "x"], "music", 2, "paid"),
    # x in [0, 100): four views, four clicks. b's view at 10 is longer ago than 60 s.
    ("b", "x", 100): ("r8", [0, None, None], 1, ["z"], "sport", None, "free"),
    # x in [30, 130): views at 50 and 100; clicks at 95, 101 and 110. a's last view was at 60.
    ("a", "x", 130): ("r5", [0, None, None], 1.5, [], "sport", None, "paid"),
}


def write(folder, log, items=ITEMS, users=USERS):
    folder.mkdir()
    rows = [",".join(str(v) for v in (T + at, *rest)) for at, *rest in log]
    (folder / "log.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    rows = [f"{key},{T + since},{topic},{price}" for key, since, topic, price in items]
    (folder / "items.csv").write_text("\n".join(["id,since,topic,price", *rows]) + "\n")
    ids, since, plans = zip(*users, strict=True)
    times = [datetime.fromtimestamp(T + at, UTC) for at in since]
    table = pl.DataFrame({"id": ids, "since": times, "plan": plans})
    table.write_parquet(folder / "users.parquet")
    return folder


def found(examples):
    return {
        (row["user_id"], row["item_id"], round(row["meta/time"].timestamp()) - T): (
            row["meta/request"],
            [row[f"label/{task}"] for task in ("click", "watched", "whole")],
            *(row[name] for name in ("item_ctr", "lately", "topic", "price", "plan")),
        )
        for row in examples.to_dicts()
        if not row["meta/sampled"]
    }


@pytest.fixture(scope="module")
def golden(event_config, tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("as_of") / "log", LOG)
    config = event_config(**CONTRACT, **ONE_BY_ONE)
    return config, folder, run(config, folder, folder / "out")


def test_every_value_is_the_one_worked_out_by_hand(golden, read_examples):
    assert found(read_examples(golden[1] / "out")) == EXPECTED


def test_the_manifest_accounts_for_every_row(golden):
    rows = golden[2]["rows"]
    assert {name: count for name, count in rows.items() if count} == {
        "rows_in": 22,
        "impressions": 9,
        "feedback": 9,
        "orphans": 2,
        "late": 1,
        "duplicates": 1,
    }


def test_the_snapshot_is_as_of_the_cut_off(golden):
    folder = golden[1]
    users = pl.read_parquet(folder / "out/snapshot/users/*.parquet").sort("user_id")
    items = pl.read_parquet(folder / "out/snapshot/items/*.parquet").sort("item_id")
    # The cut-off is just after 130.
    assert users.select("user_id", "plan", "lately").rows() == [
        ("a", "paid", ["x"]),
        ("b", "free", ["x"]),
    ]
    # x: views at 50, 100, 130, clicks at 95, 101, 110; y: a view at 60; z: one at 40.
    assert items.select("item_id", "topic", "price", "item_ctr").rows() == [
        ("x", "sport", None, 1.0),
        ("y", "music", 2.0, 0.0),
        ("z", None, None, 0.0),
    ]


def test_the_audit_looks_tables_and_rates_up_again(golden, tmp_path):
    config, folder, _ = golden
    names = ["lately", "item_ctr", "plan", "topic", "price"]
    assert audit(config, folder, folder / "out")["features"] == names
    for path in sorted((folder / "out").rglob("*.*")):
        target = tmp_path / "out" / path.relative_to(folder / "out")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        if path.parent.name == "train":  # what the table says from 50 on, at all times
            late = pl.when(pl.col("topic") == "news").then(pl.lit("sport")).otherwise("topic")
            pl.read_parquet(path).with_columns(topic=late).write_parquet(target)
    message = r"feature 'topic': expected 'news' from the items table as of 2023-11-14 .*'sport'"
    with pytest.raises(DataError, match=message):
        audit(config, folder, tmp_path / "out")


def random_log(seed, rows=150, things="wxyz", people="abc"):
    rng = random.Random(seed)
    log = []
    for _ in range(rows):
        kind = rng.choice(["VIEW", "VIEW", "CLICK", "WATCH"])
        value, length = ("", "")
        if kind == "WATCH":
            value, length = rng.choice(["", 0, 8, 32]), rng.choice(["", 0, 16, 64])
        at = 5 * rng.randint(0, 60)
        request = rng.choice(["", "r1", "r2", "r3"])
        item, user = rng.choice(things), rng.choice(people)
        log.append((at, kind, item, user, request, value, length))
    log += rng.choices(log, k=10)
    items = {(rng.choice(things[:-1]), 20 * rng.randint(-1, 20)) for _ in range(15)}
    users = {(rng.choice(people[:-1]), 20 * rng.randint(-1, 20)) for _ in range(6)}
    tables = [(key, at, rng.choice(["t1", "t2"]), rng.choice(["", 1, 2])) for key, at in items]
    return log, tables, [(key, at, rng.choice(["free", "paid"])) for key, at in users]


def latest(table, key, at):
    """The row of a dated table that holds at a time."""
    known = [row for row in table if row[0] == key and row[1] <= at]
    return max(known, key=lambda row: row[1])[2:] if known else (None, None)


def slow(log, items, users):
    """The same semantics, one event at a time; only of views that are alone at their time."""
    events = list(dict.fromkeys(log))
    views = [(event, []) for event in events if event[1] == "VIEW"]
    for event in events:
        at, kind, item, user, request, *_ = event
        if kind == "VIEW":
            continue
        own = [v for v in views if v[0][2:4] == (item, user) and v[0][0] <= at]
        if request:
            own = [v for v in own if v[0][4] == request]
        if own:
            last = max(own, key=lambda v: v[0][0])
            if at - last[0][0] <= 100:
                last[1].append(event)
    expected = {}
    for (at, _, item, user, request, *_), feedback in views:
        past = [e for e in events if e[0] < at]
        near = [e for e in past if e[0] >= at - 100 and e[2] == item]
        shown = sum(e[1] == "VIEW" for e in near)
        rate = sum(e[1] == "CLICK" for e in near) / shown if shown else None
        own = sorted((e[0], e[2]) for e in past if e[1] == "VIEW" and e[3] == user)
        ratios = [e[5] / e[6] for e in feedback if e[1] == "WATCH" and e[5] != "" and e[6]]
        total = sum(ratios) if ratios else None
        clicked = any(e[1] == "CLICK" and e[0] - at <= 50 for e in feedback)
        topic, price = latest(items, item, at)
        expected[user, item, at] = (
            request,
            [
                float(clicked),
                None if total is None else min(total, 1),
                None if total is None else float(total >= 0.9),
            ],
            None if rate is None else float(np.float32(rate)),
            [i for when, i in own if when >= at - 60][-3:],
            topic,
            None if price == "" else price,
            latest(users, user, at)[0],
        )
    once = [(v[0][3], v[0][2], v[0][0]) for v in views]
    return {key: value for key, value in expected.items() if once.count(key) == 1}


@pytest.mark.parametrize("seed", range(3))
def test_plain_loops_agree(seed, event_config, read_examples, tmp_path):
    log, items, users = random_log(seed)
    folder = write(tmp_path / "log", log, items, users)
    config = event_config(**CONTRACT, **ONE_BY_ONE)
    run(config, folder, tmp_path / "out")
    made, expected = found(read_examples(tmp_path / "out")), slow(log, items, users)
    for key, values in expected.items():
        request, *rest = made[key]
        assert rest == list(values[1:]), key
        assert request == values[0] or not values[0]
    assert len(expected) > 30
    assert audit(config, folder, tmp_path / "out")["examples"] > 50


@pytest.mark.slow
def test_what_comes_later_changes_no_earlier_example(event_config, read_examples, tmp_path):
    many = {"things": "nopqrstuvwxyz", "people": "abcdefgh"}
    log, items, users = random_log(3, **many)
    config = event_config(**CONTRACT, **{"pipeline.negatives": {"per_positive": 2}})
    run(config, write(tmp_path / "log", log, items, users), tmp_path / "out")
    more, later_items, later_users = random_log(4, **many)
    # 500 s later every label has closed; the tables go on as well.
    folder = write(
        tmp_path / "more",
        log + [(at + 500, *rest) for at, *rest in more],
        items + [(key, at + 500, *rest) for key, at, *rest in later_items],
        users + [(key, at + 500, *rest) for key, at, *rest in later_users],
    )
    run(config, folder, tmp_path / "all")
    before, after = read_examples(tmp_path / "out"), read_examples(tmp_path / "all")
    assert len(after) > len(before) + 100
    assert before["meta/sampled"].sum() > 50
    kept = after.join(before.select("meta/impression"), on="meta/impression", how="semi")
    assert kept.equals(before)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([("x", 0, "a", ""), ("x", 0, "b", "")], "line 2 and .*line 3 differ.*same id and since"),
        ([("x", 0, "a", "dear")], "items.csv: line 2: price: expected a number"),
        ([("x", 0, "a", ""), ("", 0, "b", "")], "items.csv: line 3: id: missing; every row needs"),
        ([("x", -T - 9, "a", "")], "line 2: since: outside the years 1970 to 2100"),
    ],
)
def test_a_bad_table_is_named_by_line(items, message, event_config, tmp_path):
    folder = write(tmp_path / "log", LOG, items)
    with pytest.raises(DataError, match=message):
        run(event_config(**CONTRACT, **ONE_BY_ONE), folder, tmp_path / "out")


def test_a_table_may_have_parts_without_rows(event_config, tmp_path):
    table = pl.DataFrame({"id": ["a"], "since": [datetime.fromtimestamp(T, UTC)], "plan": ["free"]})
    parts = {"files": ["users*"], "format": {"type": "parquet"}, "key": "id", "time": "since"}
    config = event_config(**{**CONTRACT, "pipeline.users": parts})
    table.clear().write_parquet(tmp_path / "users-0.parquet")
    with pytest.raises(DataError, match=r"pipeline\.users: users\*: the table has no rows"):
        read_table(config, tmp_path, "users", None)
    table.write_parquet(tmp_path / "users-1.parquet")
    assert len(read_table(config, tmp_path, "users", None)) == 1


def test_feedback_in_files_of_its_own(golden, event_config, read_examples, tmp_path):
    """The server's log of what it showed, in Parquet, beside a client's feedback in JSON lines."""
    folder = write(tmp_path / "log", LOG)
    (folder / "log.csv").unlink()
    shown = [row for row in LOG if row[1] == "VIEW"]
    pl.DataFrame(
        {
            "at": [datetime.fromtimestamp(T + row[0], UTC) for row in shown],
            "item": [row[2] for row in shown],
            "user": [row[3] for row in shown],
            "call": [row[4] for row in shown],
        }
    ).write_parquet(folder / "shown.parquet")
    lines = [
        f'{{"ms": {(T + at) * 1000}, "kind": "{kind}", "it": "{item}", "who": "{user}", '
        f'"call": {f"{chr(34)}{call}{chr(34)}" if call else "null"}'
        + (f', "seconds": {value}, "length": {length}' if value != "" else "")
        + "}"
        for at, kind, item, user, call, value, length in LOG
        if kind != "VIEW"
    ]
    (folder / "feedback.jsonl").write_text("\n".join(lines) + "\n")
    changes = {
        "pipeline.log.files": ["shown.parquet"],
        "pipeline.log.format": {"type": "parquet"},
        "pipeline.log.columns": {"time": "at", "user": "user", "item": "item", "request": "call"},
        "pipeline.log.feedback": {
            "files": ["*.jsonl"],
            "format": {"type": "jsonl"},
            "time_unit": "ms",
            "columns": {
                "time": "ms",
                "user": "who",
                "item": "it",
                "event": "kind",
                "value": "seconds",
                "request": "call",
            },
        },
    }
    config = event_config(**CONTRACT | changes, **ONE_BY_ONE)
    manifest = run(config, folder, tmp_path / "out")
    assert found(read_examples(tmp_path / "out")) == EXPECTED
    assert manifest["rows"] == golden[2]["rows"]
    assert audit(config, folder, tmp_path / "out")["examples"] == 9
