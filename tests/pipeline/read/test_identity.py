"""What an event is known by: its identity decides splits and draws, its fingerprint duplicates."""

import json
import random

import polars as pl
import pytest

from multigate.pipeline.job import run

HEADER = ("time", "event", "item", "user", "session", "value", "device")
T = 1_700_000_000
RANDOM = {"pipeline.split": {"by": "random", "validation": 0.3, "test": 0.3}}


def random_log(rows=80):
    rng = random.Random(3)
    kinds = ("VIEW", "VIEW", "LIKE", "BUY", "RATE", "DISLIKE")
    return [
        {
            "time": T + 30 * at,
            "event": kinds[at % 6],
            "item": f"i{rng.randrange(9)}",
            "user": f"u{rng.randrange(5)}",
            "session": f"s{at // 20}",
            "value": rng.choice([None, 0.1, 2.0]),
            "device": rng.choice([None, "phone", "desk"]),
        }
        for at in range(rows)
    ]


def write(folder, rows, form="csv"):
    folder.mkdir()
    frame = pl.DataFrame(rows)
    if form == "parquet":
        frame.write_parquet(folder / "log.csv")
    elif form == "jsonl":
        (folder / "log.csv").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame.write_csv(folder / "log.csv")
    return folder


@pytest.mark.sweep(1)
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_column_that_nobody_reads_changes_nothing(form, event_config, read_examples, tmp_path):
    config = event_config(**RANDOM, **{"pipeline.log.format": {"type": form}})
    rows = random_log()
    plain = run(config, write(tmp_path / "plain", rows, form), tmp_path / "a")
    # A number of its own for every row, before and behind the others.
    more = [{"at": at} | row | {"note": f"n{at}"} for at, row in enumerate(rows)]
    # Sent again, with another number: the same event.
    more += [more[0] | {"at": -1}, more[5] | {"note": "again"}]
    wide = run(config, write(tmp_path / "wide", more, form), tmp_path / "b")
    assert wide["rows"].pop("duplicates") == plain["rows"].pop("duplicates") + 2
    assert wide["rows"].pop("rows_in") == plain["rows"].pop("rows_in") + 2
    assert wide["rows"] == plain["rows"]
    assert read_examples(tmp_path / "b").equals(read_examples(tmp_path / "a"))


def test_the_same_log_in_any_format_gives_the_same_examples(event_config, read_examples, tmp_path):
    found = []
    for form in ("csv", "jsonl", "parquet"):
        config = event_config(**RANDOM, **{"pipeline.log.format": {"type": form}})
        run(config, write(tmp_path / form, random_log(), form), tmp_path / f"{form}.out")
        found.append(read_examples(tmp_path / f"{form}.out"))
    assert found[1].equals(found[0])
    assert found[2].equals(found[0])


def test_a_features_value_moves_no_impression(event_config, read_examples, tmp_path):
    rows = random_log()
    other = [row | {"device": "watch"} for row in rows]
    run(event_config(**RANDOM), write(tmp_path / "log", rows), tmp_path / "a")
    run(event_config(**RANDOM), write(tmp_path / "other", other), tmp_path / "b")
    before, after = (read_examples(tmp_path / name) for name in "ab")
    assert set(after["device"]) == {"watch"}
    assert after.drop("device").equals(before.drop("device"))


def test_different_impressions_of_one_identity_have_numbers_of_their_own(
    event_config, read_examples, tmp_path
):
    rows = random_log()
    twin = rows[0] | {"device": "watch"}
    config = event_config(**RANDOM, **{"pipeline.negatives": None})
    run(config, write(tmp_path / "log", rows), tmp_path / "a")
    manifest = run(config, write(tmp_path / "twins", [*rows, twin, twin]), tmp_path / "b")
    assert manifest["rows"]["duplicates"] == 1
    one, two = (read_examples(tmp_path / name) for name in "ab")
    assert two["meta/impression"].is_unique().all()
    assert len(two) == len(one) + 1
    # One of the two has the number that the impression has alone.
    assert set(one["meta/impression"]) < set(two["meta/impression"])


def test_event_ids_of_impressions_and_of_feedback_are_separate_spaces(
    event_config, separate_files, tmp_path
):
    # Both files count their rows from 1: the 40 likes were lost as duplicates of the views.
    common = [
        {"id": str(at), "time": T + at, "user": f"u{at % 4}", "item": f"i{at}", "session": "s"}
        for at in range(1, 41)
    ]
    shown = [row | {"device": "phone"} for row in common]
    kinds = ("LIKE", "DISLIKE", "BUY", "RATE")
    feedback = [
        row | {"time": row["time"] + 1, "event": kinds[at % 4], "value": 1}
        for at, row in enumerate(common)
    ]
    again = [*feedback, feedback[7] | {"time": T + 100}]  # the id says that it is the same event
    changes = separate_files(tmp_path, shown, again)
    rows = run(event_config(**changes), tmp_path, tmp_path / "out")["rows"]
    assert (rows["impressions"], rows["feedback"], rows["duplicates"]) == (40, 40, 1)
