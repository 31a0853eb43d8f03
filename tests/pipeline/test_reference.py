"""An independent slow implementation, plain loops over events, agrees on random logs."""

import csv
import io
import random
from dataclasses import replace

import polars as pl
import pytest

from multigate.pipeline.compute.computed import of_user, user_events
from multigate.pipeline.compute.examples import make_examples
from multigate.pipeline.read.inputs import wanted_columns
from multigate.pipeline.read.normalise import normalise
from multigate.pipeline.read.sources import expand, read
from multigate.pipeline.shuffle.buckets import gather, spread
from multigate.pipeline.shuffle.parcel import InBeam

HEADER = "time,event,item,user,session,value,device"


def random_log(seed: int, rows: int = 400) -> list[str]:
    """Few users, items and instants, so that ties, repeats and orphans are common."""
    rng = random.Random(seed)
    kinds = ["VIEW"] * 5 + ["LIKE"] * 3 + ["DISLIKE", "BUY", "BUY", "RATE"]
    lines = []
    for _ in range(rows):
        kind = rng.choice(kinds)
        value = rng.choice(["", str(rng.randint(0, 9))]) if kind in {"BUY", "RATE"} else ""
        time = 1_700_000_000 + rng.choice([1, 60, 1800, 50_000]) * rng.randint(0, 12)
        session = rng.choice(["", "s1", "s2"])
        device = rng.choice(["", "phone"])
        item, user = rng.choice("vwxyz"), rng.choice("abc")
        lines.append(f"{time},{kind},{item},{user},{session},{value},{device}")
    return lines + rng.choices(lines, k=20)  # and some duplicates


def slow_examples(lines: list[str], ties: dict[str, int]) -> tuple[list[dict], dict[str, int]]:
    """The semantics of conftest's event log, one event at a time.

    `ties` orders the rows of one instant, about which the documentation says nothing.
    """
    events = []
    for line in dict.fromkeys(lines):  # the same full row counts once
        row = next(csv.DictReader(io.StringIO(f"{HEADER}\n{line}")))
        row["time"], row["tie"] = int(row["time"]), ties[line]
        events.append(row)
    events.sort(key=lambda e: (e["time"], e["tie"]))
    shown = [e for e in events if e["event"] == "VIEW"]
    for view in shown:
        view["feedback"] = []
    counts = {"feedback": 0, "late": 0, "orphans": 0, "impressions": len(shown)}
    counts["duplicates"] = len(lines) - len(events)
    for event in events:
        if event["event"] == "VIEW":
            continue
        views = [
            v
            for v in shown
            if (v["user"], v["item"]) == (event["user"], event["item"])
            and v["time"] <= event["time"]
        ]
        if not views:
            counts["orphans"] += 1
        elif event["time"] - views[-1]["time"] > 86400:
            counts["late"] += 1
        else:
            counts["feedback"] += 1
            views[-1]["feedback"].append((event["time"] - views[-1]["time"], event))
    rows = []
    for view in shown:
        own = [e for e in events if e["user"] == view["user"]]
        before = [e for e in own if e["time"] < view["time"]]
        before.sort(key=lambda e: (e["time"], e["item"]))
        later = [
            e["time"] - view["time"]
            for e in own
            if view["session"]
            and e["session"] == view["session"]
            and e["item"] != view["item"]
            # A day later, nothing ends a dwell.
            and 0 < e["time"] - view["time"] <= 86400
        ]
        feedback = view["feedback"]
        like = any(e["event"] == "LIKE" and delay <= 3600 for delay, e in feedback)
        dislike = any(e["event"] == "DISLIKE" for _, e in feedback)
        good = any(e["event"] == "LIKE" for _, e in feedback) and not dislike
        dwell = min(*later, 600) if later else None
        bought = [float(e["value"]) for _, e in feedback if e["event"] == "BUY" and e["value"]]
        stars = [float(e["value"]) for _, e in feedback if e["event"] == "RATE" and e["value"]]
        rows.append(
            {
                "user_id": view["user"],
                "item_id": view["item"],
                "device": view["device"] or None,
                "recent": [e["item"] for e in before if e["event"] == "VIEW"][-3:],
                "liked": [e["item"] for e in before if e["event"] == "LIKE"][-2:],
                "label/view": 1.0,
                "label/like": float(like),
                "label/dislike": float(dislike),
                "label/good": float(good),
                "label/dwell": dwell,
                "label/long": None if dwell is None else float(dwell >= 30),
                "label/bought": sum(bought) if bought else None,
                "label/rated": min(max(*stars, 1.0), 5.0) if stars and like else None,
                "time": view["time"],
            }
        )
    return rows, counts


def bucket_of(lines, config, folder):
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]))
    (shard,) = expand(folder, config.pipeline.log.files)
    parcels = []
    ties: dict[str, int] = {}
    for at, chunk in enumerate(read(shard, config.pipeline.log.format, wanted_columns(config))):
        events, rejects = normalise(chunk, config, shard.name)
        assert len(rejects) == 0
        ties |= zip(chunk.text, events["fingerprint"], strict=True)
        parcels += [one for _, one in spread(InBeam(), events, 1, "events", 0, at)]
    made = make_examples(gather(parcels), config, {})
    queries = made.impressions.select(user="user_id", time="meta/time")
    computed = of_user(user_events(made.events, config), queries, config)
    return replace(made, impressions=made.impressions.with_columns(**computed)), ties


def as_rows(examples):
    time = pl.col("meta/time").dt.epoch("s").alias("time")
    rows = examples.with_columns(time).drop(
        "meta/time", "meta/request", "meta/sampled", "meta/impression"
    )
    return sorted(rows.to_dicts(), key=str)


@pytest.mark.parametrize("seed", range(6))
def test_plain_loops_agree(seed, event_config, tmp_path):
    lines = random_log(seed)
    made, ties = bucket_of(lines, event_config(), tmp_path / "log")
    expected, counts = slow_examples(lines, ties)
    columns = as_rows(made.impressions)[0].keys()
    assert {"recent", "liked"} <= columns
    ordered = [{name: row[name] for name in columns} for row in expected]
    assert as_rows(made.impressions) == sorted(ordered, key=str)
    assert counts == {name: getattr(made.counts, name) for name in counts}


@pytest.mark.parametrize("seed", range(3))
def test_later_events_change_no_earlier_example(seed, event_config, tmp_path):
    lines = random_log(seed, rows=200)
    times = sorted(int(line.split(",")[0]) for line in lines)
    # The cut leaves out what an earlier example's labels may still wait for: a day.
    cut = times[len(times) // 3]
    known = [line for line in lines if int(line.split(",")[0]) <= cut + 86400]
    assert 0 < len(known) < len(lines)
    config = event_config()
    less, more = (
        bucket_of(some, config, tmp_path / name)[0]
        for name, some in (("less", known), ("more", lines))
    )
    features = ["meta/impression", "user_id", "item_id", "device", "recent", "liked", "meta/time"]
    # Features of everything that is there in both; labels of what has had its day.
    both = more.impressions.filter(
        pl.col("meta/impression").is_in(less.impressions["meta/impression"].implode())
    )
    assert both.select(features).equals(less.impressions.select(features))
    done = pl.col("meta/time").dt.epoch("s") <= cut
    settled = ["label/like", "label/bought"]
    assert both.filter(done).select(settled).equals(less.impressions.filter(done).select(settled))
