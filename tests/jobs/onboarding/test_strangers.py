"""`multigate init` on logs in which no column names users, nor groups of them."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.configs.contract import VISIT
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.pipeline import job

START = 1_767_225_600


def heard(seed: int = 4, tracks: int = 800) -> pl.DataFrame:
    """Tracks that are played or skipped, for so many seconds, by nobody knows whom."""
    draw, rows, at = random.Random(seed), [], START
    good = [draw.uniform(0.2, 0.95) for _ in range(tracks)]
    for _ in range(7000):
        at += draw.randrange(10, 500)
        track = draw.randrange(tracks)
        plays = draw.random() < good[track]
        took = round(draw.uniform(120, 300) if plays else draw.uniform(1, 25), 2)
        rows.append((at, f"t{track}", f"a{track % 60}", "play" if plays else "skip", took))
        if plays and draw.random() < 0.2:
            rows.append((at + int(took), f"t{track}", f"a{track % 60}", "add", None))
    schema = ["at", "track", "artist", "what", "value"]
    return pl.DataFrame(rows, schema=schema, orient="row").sort("at", maintain_order=True)


def shown(seed: int = 5) -> pl.DataFrame:
    """Rows that stand alone: an offer, its price, whether it was clicked and then bought."""
    draw, rows, at = random.Random(seed), [], START
    good = [draw.uniform(0.05, 0.5) for _ in range(200)]
    for _ in range(8000):
        at += draw.randrange(5, 300)
        offer = draw.randrange(200)
        click = draw.random() < good[offer]
        buy = click and draw.random() < 0.2
        rows.append((at, f"o{offer}", round(9 + offer / 7, 2), int(click), int(buy)))
    return pl.DataFrame(rows, schema=["at", "offer", "price", "clicked", "buys"], orient="row")


def drafted(frame: pl.DataFrame, folder: Path) -> Draft:
    frame.write_csv(folder / "log.csv")
    return draft(folder, "strangers")


def knows_no_user(made: Draft) -> bool:
    contract: dict[str, Any] = made.values["contract"]
    sides = {feature["side"] for feature in contract["features"].values()}
    return "user" not in contract and "user" not in sides


def test_event_types_are_no_users_and_follow_the_last_opening_of_their_item(tmp_path):
    made = drafted(heard().drop("artist"), tmp_path)
    assert knows_no_user(made)
    assert {"play", "add"} <= made.values["contract"]["tasks"].keys()
    assert not {"what", "value"} & made.values["contract"]["features"].keys()
    log = made.values["pipeline"]["log"]
    assert log["columns"] == {"time": "at", "user": "track", "item": "track"}
    assert log["feedback"]["columns"]["event"] == "what"
    assert "no column names users" in made.notes["pipeline.log.columns"]
    found = check(made.config(), tmp_path)
    assert not found.fails
    opened = heard().filter(pl.col("what") != "add")
    plays = float((opened["what"] == "play").mean())
    assert found.facts["tasks"]["play"]["labels"] > 0.9 * len(opened)
    assert found.facts["tasks"]["play"]["mean"] == pytest.approx(plays, abs=0.02)


def test_an_attribute_of_the_item_is_no_user(tmp_path):
    made = drafted(heard(), tmp_path)
    assert knows_no_user(made)
    assert made.values["contract"]["features"]["artist"]["side"] == "item"
    assert {"play", "add"} <= made.values["contract"]["tasks"].keys()


def test_an_impression_type_is_found_by_items_alone(tmp_path):
    """As `heard`, with a row for what was offered before it was played."""
    offered = heard().filter(pl.col("what") != "add").with_columns(at=pl.col("at") - 5)
    offered = offered.with_columns(what=pl.lit("offer"), value=pl.lit(None, pl.Float64))
    log = pl.concat([offered, heard().filter(pl.col("what") != "skip")]).sort("at")
    made = drafted(log.drop("artist"), tmp_path)
    assert knows_no_user(made)
    assert made.values["pipeline"]["log"]["impression"] == "offer"
    tasks = check(made.config(), tmp_path).facts["tasks"]
    plays = float((heard().filter(pl.col("what") != "add")["what"] == "play").mean())
    assert tasks["play"]["mean"] == pytest.approx(plays, abs=0.03)


def test_where_others_do_the_same_meanwhile_no_row_tells_whose_it_follows(tmp_path):
    """With four tracks for all, each play is within minutes of plays by others.

    The types and their seconds are neither users nor features, and the draft says what it left out.
    """
    made = drafted(heard(tracks=4).drop("artist"), tmp_path)
    assert made.values["pipeline"]["log"]["shape"] == "impressions"
    assert knows_no_user(made)
    assert not {"what", "value"} & made.values["contract"]["features"].keys()
    assert made.values["contract"]["tasks"].keys() == {"chosen"}
    assert "event types" in made.left_out["what"]
    assert "it belongs to the words of 'what'" in made.left_out["value"]
    assert not check(made.config(), tmp_path).fails


def test_devices_that_tell_a_flag_s_rows_apart_stay_groups_of_users(tmp_path):
    """Where a flag says what came of a row, words and numbers are what was known before."""
    draw = random.Random(7)
    device = [draw.choice(["tv", "web", "phone"]) for _ in range(len(shown()))]
    width = [draw.uniform(0, 500) + (1000 if one == "tv" else 0) for one in device]
    log = shown().with_columns(device=pl.Series(device), width=pl.Series(width))
    made = drafted(log, tmp_path)
    assert made.values["pipeline"]["log"]["columns"]["user"] == "device"
    assert "width" in made.values["contract"]["features"]


def test_rows_that_stand_alone_need_no_user(tmp_path):
    made = drafted(shown(), tmp_path)
    assert knows_no_user(made)
    assert {"clicked", "buys"} <= made.values["contract"]["tasks"].keys()
    assert "user" not in made.values["pipeline"]["log"]["columns"]
    assert made.values["contract"]["rates"]["of"] == ["item"]
    assert not check(made.config(), tmp_path).fails
    job.run(made.config(), tmp_path, tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows[VISIT].n_unique() == len(rows)


def test_a_column_by_the_name_of_the_visit_is_a_feature_of_another_name(tmp_path):
    draw = random.Random(6)
    kinds = [draw.choice("abc") for _ in range(len(shown()))]
    made = drafted(shown().with_columns(visit=pl.Series(kinds)).drop("buys"), tmp_path)
    assert made.config().contract.user


def test_whose_lists_are_known_is_no_item(tmp_path):
    """Of a log of users and their requests, which items were shown is missing."""
    rows = [
        (START + 400 * number + place, f"q{number}", f"u{(7 * number) % 90}", number % 3 == place)
        for number in range(2000)
        for place in range(3)
    ]
    log = pl.DataFrame(rows, schema=["at", "request", "who", "clicked"], orient="row")
    with pytest.raises(DataError, match="expected a column of users and one of items"):
        drafted(log, tmp_path)
