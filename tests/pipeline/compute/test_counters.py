"""Counters through the whole job: the item's over all users, negatives with those of their item."""

import json
import random

import numpy as np
import polars as pl
import pytest

from multigate.configs import ConfigError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

HEADER = "time,event,item,user,session,value,device"
T = 1_700_000_000
COUNTERS = {
    "contract.features.item_views_100s": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["impression"], "within": "100s"},
    },
    "contract.features.item_feedback": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["LIKE", "BUY"]},
    },
    "contract.features.item_age": {
        "kind": "number",
        "side": "item",
        "since": {"of": "item", "events": ["VIEW"], "which": "first"},
        "missing": "indicator",
    },
    "contract.features.item_likes_per_view": {
        "kind": "number",
        "side": "item",
        "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW"], "within": "100s"},
        "missing": "indicator",
    },
    "contract.features.item_value": {
        "kind": "number",
        "side": "item",
        "mean": {"of": "item", "events": ["RATE", "BUY"], "within": "300s"},
        "missing": "indicator",
    },
    "contract.features.user_value": {
        "kind": "number",
        "side": "user",
        "max": {"of": "user", "events": ["RATE"]},
        "missing": "indicator",
    },
    "contract.features.user_likes": {
        "kind": "number",
        "side": "user",
        "count": {"of": "user", "events": ["LIKE"]},
    },
    "contract.features.user_rest": {
        "kind": "number",
        "side": "user",
        "since": {"of": "user", "events": ["VIEW"]},
        "missing": "indicator",
    },
}
NAMES = [path.rpartition(".")[2] for path in COUNTERS]
SPLIT = {"by": "time", "validation": 0.2, "test": 0.2, "embargo": False}


def make(event_config, folder, *files, **changes):
    folder.mkdir()
    for at, lines in enumerate(files):
        (folder / f"log-{at}.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    config = event_config(**COUNTERS, **{"pipeline.split": SPLIT}, **changes)
    return run(config, folder, folder / "out")


def test_a_log_worked_out_by_hand(event_config, values, tmp_path):
    lines = [
        (0, "VIEW", "x", "a"),
        (10, "LIKE", "x", "a"),
        (50, "VIEW", "x", "b"),
        (50, "LIKE", "x", "b"),
        (60, "VIEW", "y", "c"),
        (100, "VIEW", "x", "c"),
        (101, "VIEW", "z", "a"),
        (102, "BUY", "x", "d"),  # d never saw x: an orphan, and an event of x all the same
        (103, "VIEW", "x", "a"),
        (103, "VIEW", "x", "a"),  # a duplicate: counts once
        (104, "DISLIKE", "z", "a"),
        (105, "RATE", "z", "a"),
        (106, "VIEW", "y", "a"),
    ]
    rows = [f"{T + t},{event},{item},{user},,{t / 2}," for t, event, item, user in lines]
    policy = {"per_positive": 3, "unmatched": "keep"}
    make(event_config, tmp_path / "log", rows, **{"pipeline.negatives": policy})
    found = values(tmp_path / "log", NAMES)
    # item_views_100s, item_feedback, item_age, item_likes_per_view, item_value (d paid 51 for x),
    # user_value (a's rating of z was 52.5), user_likes, user_rest
    assert found == {
        # Nobody had viewed x, and a nothing.
        ("a", "x", 0, False): [0, 0, None, None, None, None, 0, None],
        # a's view at 0 and like at 10; b's own like at 50 is at the very time.
        ("b", "x", 50, False): [1, 1, 50, 1, None, None, 0, None],
        ("c", "y", 60, False): [0, 0, None, None, None, None, 0, None],
        ("c", "x", 60, True): [
            2,
            2,
            60,
            1,
            None,
            None,
            0,
            None,
        ],  # the negative of it, with x's own
        # Views at 0 and 50 ([0, 100) holds 0); likes at 10 and 50; c's last view was at 60.
        ("c", "x", 100, False): [2, 2, 100, 1, None, None, 0, 40],
        ("a", "z", 101, False): [0, 0, None, None, None, None, 1, 101],
        ("a", "y", 101, True): [1, 0, 41, 0, None, None, 1, 101],
        # From 3: views at 50 and 100; two likes and the orphan's BUY; a's last view was z at 101.
        # a had liked x: nothing else was, so that this view has no negative.
        ("a", "x", 103, False): [2, 3, 103, 1, 51, None, 1, 2],
        ("a", "y", 106, False): [1, 0, 46, 0, None, 52.5, 1, 3],
    }


def random_lines(seed, rows=300):
    rng = random.Random(seed)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    lines = []
    for _ in range(rows):
        kind, time = rng.choice(kinds), T + 10 * rng.randint(0, 90)
        user, item = f"u{rng.randint(0, 9)}", f"i{rng.randint(0, 19)}"
        value = rng.choice(["", "1", "2.5", "4"]) if kind in ("BUY", "RATE") else ""
        lines.append(f"{time},{kind},{item},{user},s{rng.randint(0, 3)},{value},")
    return lines + rng.choices(lines, k=10)


def slow_counters(lines, user, item, time):
    """One example's counters, by plain loops over all events."""
    split = [line.split(",") for line in dict.fromkeys(lines)]
    events = [tuple(columns[:4]) for columns in split]
    past = [(int(t) - T, e, i, u) for t, e, i, u in events if int(t) - T < time]
    valued = [
        (int(t) - T, e, i, u, float(value))
        for t, e, i, u, _, value, _ in split
        if value and int(t) - T < time
    ]
    paid = [
        value
        for t, e, i, _, value in valued
        if e in ("RATE", "BUY") and i == item and t >= time - 300
    ]
    rated = [value for _, e, _, u, value in valued if e == "RATE" and u == user]
    views = [t for t, e, i, _ in past if e == "VIEW" and i == item]
    likes = [t for t, e, i, _ in past if e == "LIKE" and i == item and t >= time - 100]
    lately = [t for t in views if t >= time - 100]
    own = [t for t, e, _, u in past if e == "VIEW" and u == user]
    return [
        sum(t >= time - 100 for t in views),
        sum(e in {"LIKE", "BUY"} and i == item for _, e, i, _ in past),
        time - min(views) if views else None,
        float(np.float32(len(likes) / len(lately))) if lately else None,
        float(np.float32(sum(paid) / len(paid))) if paid else None,
        max(rated, default=None),
        sum(e == "LIKE" and u == user for _, e, _, u in past),
        time - max(own) if own else None,
    ]


RECENT = {"pipeline.negatives": {"per_positive": 2, "recent": "300s"}}


@pytest.fixture(scope="module")
def baseline(event_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("counters") / "log"
    return folder, make(event_config, folder, random_lines(0), **RECENT)


def test_plain_loops_agree(baseline, values):
    found, lines = values(baseline[0], NAMES), random_lines(0)
    listed = values(baseline[0], ["recent", "liked"])
    listed = {key: set(recent) | set(liked) for key, (recent, liked) in listed.items()}
    assert sum(sampled for *_, sampled in found) > 200
    for (user, item, time, sampled), counters in found.items():
        assert counters == slow_counters(lines, user, item, time)
        # A negative was in circulation, and the user had not touched it, or views it again as the
        # positive is viewed again: it stands in the lists as often (`test_negatives.py`).
        if sampled:
            events = [line.split(",")[:4] for line in lines]
            shown = [int(t) - T for t, e, i, _ in events if e == "VIEW" and i == item]
            assert any(time - 300 <= t < time for t in shown)
            touched = [int(t) - T for t, _, i, u in events if (i, u) == (item, user)]
            assert all(t > time for t in touched) or item in listed[user, item, time, sampled]


def test_the_audit_finds_the_same(baseline, event_config):
    folder, _ = baseline
    config = event_config(**COUNTERS, **{"pipeline.split": SPLIT}, **RECENT)
    found = audit(config, folder, folder / "out", sample=10_000)
    assert set(found["features"]) >= set(NAMES)


def test_statistics_cover_counters(baseline, read_examples):
    folder, manifest = baseline
    statistics = json.loads((folder / "out/statistics.json").read_text())["features"]
    training = read_examples(folder / "out").filter(pl.col("split") == "train")
    assert set(statistics) == set(NAMES)
    for name in NAMES:
        assert statistics[name]["mean"] == pytest.approx(training[name].mean())
        assert statistics[name]["missing"] == training[name].null_count()
    assert manifest["examples"]["splits"]["train"] == len(training)


@pytest.mark.slow
def test_neither_buckets_nor_files_nor_order_matter(
    baseline, event_config, read_examples, tmp_path
):
    lines = random_lines(0)
    random.Random(1).shuffle(lines)
    make(event_config, tmp_path / "log", lines[:9], lines[9:], **RECENT, **{"pipeline.buckets": 8})
    folder = tmp_path / "log/out"
    assert read_examples(folder).equals(read_examples(baseline[0] / "out"))
    for name in ("statistics.json", "contract.json"):
        assert (folder / name).read_bytes() == (baseline[0] / "out" / name).read_bytes()


def test_later_events_change_no_earlier_example(baseline, event_config, values, tmp_path):
    later = [f"{int(x[:10]) + 901},{x[11:]}" for x in random_lines(7)]
    make(event_config, tmp_path / "log", random_lines(0), later, **RECENT)
    more, before = values(tmp_path / "log", NAMES), values(baseline[0], NAMES)
    assert len(more) > len(before) + 200
    assert {key: more[key] for key in before} == before


def test_an_impression_log_counts_columns_above_zero(impression_config, read_examples, tmp_path):
    changes = {
        f"contract.features.{name}": {
            "kind": "number",
            "side": "item",
            "count": {"of": "item", "events": events},
        }
        for name, events in {"shown": ["impression"], "clicks": ["click", "buy"]}.items()
    }
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars,buy\n"
        f"{T},1,10,r1,1,,0,1,4,\n"
        f"{T + 1},2,10,r2,1,,0,0,4,3\n"
        f"{T + 2},3,10,r3,1,,0,0,4,0\n"
        f"{T + 3},4,10,r4,1,,0,1,4,\n"
    )
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time")
    assert rows["shown"].to_list() == [0, 1, 2, 3]
    assert rows["clicks"].to_list() == [0, 1, 2, 2]  # the click at 0, the purchase at 1


def test_an_impression_log_takes_the_values_of_one_column(
    impression_config, read_examples, tmp_path
):
    changes = {
        f"contract.features.{kind}_stars": {
            "kind": "number",
            "side": "item",
            kind: {"of": "item", "events": ["stars"]},
            "missing": "indicator",
        }
        for kind in ("mean", "max")
    }
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars,buy\n"
        f"{T},1,10,r1,1,,0,1,4,\n"
        f"{T + 1},2,10,r2,1,,0,0,,\n"
        f"{T + 2},3,10,r3,1,,0,0,-1,0\n"
        f"{T + 3},4,10,r4,1,,0,0,0,0\n"
        f"{T + 4},5,10,r5,1,,0,1,4,\n"
    )
    changes["contract.features.any"] = {  # beside the values, in an order that names no column
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["impression", "click"]},
    }
    config = impression_config(**changes)
    run(config, tmp_path, tmp_path / "out")
    rows = read_examples(tmp_path / "out").sort("meta/time")
    assert rows["mean_stars"].to_list() == [None, 4, 4, 1.5, 1]  # zeros and less count too
    assert rows["max_stars"].to_list() == [None, 4, 4, 4, 4]
    assert rows["any"].to_list() == [0, 1, 2, 3, 4]
    audit(config, tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"expected one feedback column, .*received stars, buy"):
        impression_config(**changes | {"contract.features.max_stars.max.events": ["stars", "buy"]})


def test_an_event_type_that_never_occurs_is_named_where_it_stands(event_config, tmp_path):
    with pytest.raises(Exception, match=r"user_likes\.count\.events: event type 'LUKE' never"):
        make(
            event_config,
            tmp_path / "log",
            random_lines(0, rows=60),
            **{"contract.features.user_likes.count.events": ["LUKE"]},
        )


@pytest.mark.slow
def test_a_missing_age_tells_nothing_where_unmatched_views_are_masked(
    event_config, tmp_path, read_examples
):
    rng = random.Random(5)
    lines = [f"{T + 7 * n},VIEW,i{n // 5 - rng.randrange(5)},u{n % 9},s,,web" for n in range(200)]
    lines += [f"{T + 60},{event},i0,u1,s,2,web" for event in ("LIKE", "BUY", "RATE", "DISLIKE")]
    policy = {"per_positive": 2, "recent": "200s"}
    make(event_config, tmp_path / "mask", lines, **{"pipeline.negatives": policy})
    policy |= {"unmatched": "keep"}
    make(event_config, tmp_path / "keep", lines, **{"pipeline.negatives": policy})
    examples, kept = (read_examples(tmp_path / name / "out") for name in ("mask", "keep"))
    logged = ~pl.col("meta/sampled")
    assert examples.filter(logged).drop("label/view").equals(kept.filter(logged).drop("label/view"))
    told = examples.filter(pl.col("label/view").is_not_null())
    assert kept.join(told, on="meta/impression", how="semi", maintain_order="left").equals(told)
    first = pl.col("item_age").is_null()
    assert set(kept.filter(first)["label/view"]) == {1.0}
    assert set(examples.filter(first)["label/view"]) == {None}
    assert examples.filter(first)["label/like"].null_count() == 0
    assert set(told["label/view"]) == {0.0, 1.0}
    assert told.filter(~pl.col("meta/sampled")).height > 100
