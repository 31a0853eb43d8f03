"""`multigate init` on feeds of short videos, where each row says how much of one was watched."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.tables.columns import look, spreads
from multigate.pipeline import job

START = 1_767_225_600_000  # milliseconds
HIDDEN = {
    **{"user": "c4", "video": "c9", "author": "c2", "length_ms": "c7", "place": "c1"},
    **{"visit": "c5", "at": "c8", "watch_time_ms": "c3", "liked": "c6", "shared": "c11"},
    **{"hate": "c10", "comment_count": "c12"},
}


def watched(seed: int = 2) -> pl.DataFrame:
    """Sessions of four to nine videos that are watched in part or to their end."""
    draw, rows, at = random.Random(seed), [], START
    ids = draw.sample(range(10**5, 10**6), 400)
    authors = [draw.randrange(40) for _ in ids]
    lengths = [draw.randrange(4000, 60_000) for _ in ids]
    for visit in range(900):
        at += draw.randrange(60_000, 900_000)
        user, now = draw.randrange(150), at
        for place, video in enumerate(draw.sample(range(400), draw.randrange(4, 10))):
            likes = (authors[video] + user) % 3 == 0
            wish = draw.lognormvariate(9.6 + 0.8 * likes, 1.1)
            took = int(min(wish, lengths[video]))
            whole = took == lengths[video]
            rows.append(
                {
                    "user": user,
                    "video": ids[video],
                    "author": f"a{authors[video]}",
                    "length_ms": lengths[video],
                    "place": place + 1,
                    "visit": f"s{visit}",
                    "at": now,
                    "watch_time_ms": took,
                    "liked": int(draw.random() < 0.05 + 0.3 * likes * whole),
                    "shared": int(draw.random() < 0.02 + 0.1 * likes * whole),
                    "hate": int(draw.random() < (0.002 if whole or likes else 0.06)),
                    "comment_count": draw.randrange(1, 5) * (draw.random() < 0.04),
                }
            )
            now += took + draw.randrange(1000)
    return pl.DataFrame(rows)


def drafted(frame: pl.DataFrame, folder: Path) -> Draft:
    folder.mkdir()
    frame.write_ndjson(folder / "feed.jsonl")
    return draft(folder, "feed")


def reads(made: Draft) -> dict[str, Any]:
    """The columns that features read -> the feature."""
    return {one.get("column", n): one for n, one in made.values["contract"]["features"].items()}


@pytest.fixture(scope="module", params=["named", "hidden"])
def feed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Draft, Path, dict[str, str]]:
    names = HIDDEN if request.param == "hidden" else {name: name for name in HIDDEN}
    folder = tmp_path_factory.mktemp("feed") / "log"
    frame = watched().rename(names)
    return drafted(frame.select(sorted(frame.columns)), folder), folder, names


def test_an_item_is_what_decides_its_author_and_no_measure_of_more_values(feed):
    made, _, names = feed
    columns = made.values["pipeline"]["log"]["columns"]
    assert columns["user"] == names["user"]
    assert columns["item"] == names["video"]
    assert reads(made)[names["author"]]["side"] == "item"


def test_milliseconds_watched_of_its_length_are_a_label_whatever_their_name(feed):
    made, _, names = feed
    name, tasks = names["watch_time_ms"], made.values["contract"]["tasks"]
    assert name not in reads(made)
    assert tasks[name]["type"] == "regression"
    assert tasks[f"{name}_long"]["label"] == {
        "rule": "ratio",
        "column": name,
        "over": names["length_ms"],
    }


def test_places_in_a_session_of_rows_one_by_one_are_the_position_in_its_list(feed):
    made, _, names = feed
    assert reads(made)[names["place"]]["kind"] == "position"
    assert made.values["pipeline"]["log"]["columns"]["request"] == names["visit"]


def test_a_flag_of_what_is_left_early_counts_against_the_item(feed):
    made, _, names = feed
    weights = {n: task.get("score_weight") for n, task in made.values["contract"]["tasks"].items()}
    assert weights[names["hate"]] == -1
    assert weights[names["liked"]] == weights[names["shared"]] == 1


def test_such_a_draft_runs(feed, tmp_path):
    made, folder, names = feed
    assert not check(made.config(), folder).fails
    job.run(made.config(), folder, tmp_path / "examples")
    labels = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert labels[f"label/{names['watch_time_ms']}"].null_count() == 0


def test_a_count_of_what_the_user_then_did_is_a_label_by_its_name(tmp_path):
    made = drafted(watched(), tmp_path / "log")
    task = made.values["contract"]["tasks"]["comment_count_any"]
    assert "comment_count" not in reads(made)
    assert task["label"] == {"rule": "column", "column": "comment_count"}
    assert (task["type"], task["at_least"], task["score_weight"]) == ("binary", 1, 1)


SUSPECT = "if it is not known when the item is shown, leave it out, or make it a label"


def suspects(made: Draft, folder: Path) -> set[str]:
    """Features that `check` suspects; the draft's comments must name the same ones."""
    found = check(made.config(), folder)
    said = {one.where for one in found.findings if SUSPECT in one.message}
    assert said == {key for key, note in made.notes.items() if SUSPECT in note}
    return {where.rpartition(".")[2] for where in said}


def test_a_count_by_a_name_that_says_nothing_is_a_suspect(tmp_path):
    frame = watched().rename(HIDDEN)
    made = drafted(frame, tmp_path / "log")
    assert suspects(made, tmp_path / "log") == {HIDDEN["comment_count"]}


def test_a_percent_by_a_name_that_says_nothing_is_a_suspect(tmp_path):
    """Nothing beside it says how much of the item was taken, and no flag needs it."""
    percent = (100 * pl.col("watch_time_ms") / pl.col("length_ms")).round()
    frame = watched().with_columns(c13=percent).drop("watch_time_ms", "comment_count", "length_ms")
    made = drafted(frame, tmp_path / "log")
    assert suspects(made, tmp_path / "log") == {"c13"}


def test_a_percent_beside_the_time_that_it_is_made_of_is_no_feature(tmp_path):
    percent = (100 * pl.col("watch_time_ms") / pl.col("length_ms")).round()
    made = drafted(watched().with_columns(c13=percent), tmp_path / "log")
    assert "c13" not in reads(made)
    assert "'watch_time_ms' over 'length_ms'" in made.left_out["c13"]


def test_a_percent_of_those_that_have_one_is_a_task_of_its_own_scale(tmp_path):
    """Whether it is a rating or a share, its name does not say: no logarithm, and it asks."""
    draw = random.Random(9)
    taken = [min(draw.randrange(1, 160), 100) for _ in range(len(watched()))]
    given = pl.when(pl.col("liked") == 1).then(pl.Series(taken))
    made = drafted(watched().with_columns(c13=given), tmp_path / "log")
    task = made.values["contract"]["tasks"]["c13"]
    assert (task["type"], task["when"], task.get("transform")) == ("regression", "liked", None)
    assert "if it is a rating" in made.notes["contract.tasks.c13"]


def test_a_count_so_far_of_an_item_stays_a_feature(tmp_path):
    frame = watched().with_columns(comment_count=pl.col("comment_count").cum_sum().over("video"))
    made = drafted(frame, tmp_path / "log")
    assert reads(made)["comment_count"]["kind"] in ("number", "id")


def test_a_price_up_to_the_list_price_stays_a_feature(tmp_path):
    draw = random.Random(5)
    cut = [1.0 if draw.random() < 0.4 else draw.uniform(0.5, 1) for _ in range(len(watched()))]
    frame = watched().with_columns(price=(pl.col("length_ms") * pl.Series(cut) / 1e3).round(2))
    frame = frame.with_columns(list_price=pl.col("length_ms") / 1000)
    made = drafted(frame.drop("watch_time_ms"), tmp_path / "log")
    assert reads(made)["price"]["kind"] == "number"


def test_measures_that_hardly_repeat_lie_sparser_the_higher_they_are():
    draw = random.Random(0)
    took = [int(draw.lognormvariate(9, 1)) for _ in range(9000)]
    ids = [draw.randrange(10**6) for _ in range(9000)]
    by_time = [int(10**6 * (1 - draw.random() ** 3)) for _ in range(9000)]  # ever more a day
    assert spreads(look("x", pl.Series(took)))
    assert not spreads(look("x", pl.Series(ids)))
    assert not spreads(look("x", pl.Series(by_time)))
    assert not spreads(look("x", pl.Series(list(range(9000)))))


def test_without_users_those_of_a_device_are_one_and_places_are_none(tmp_path):
    draw = random.Random(1)
    devices = [draw.choice(["web", "phone", "tv"]) for _ in range(len(watched()))]
    frame = watched().with_columns(device=pl.Series(devices)).drop("user", "visit", "author")
    made = drafted(frame, tmp_path / "log")
    columns = made.values["pipeline"]["log"]["columns"]
    assert (columns["user"], columns["item"]) == ("device", "video")
    assert "no column names single users" in made.notes["pipeline.log.columns"]
    assert {"liked", "shared", "hate"} <= set(made.values["contract"]["tasks"])


def test_numbers_that_the_model_would_clip_are_read_as_logarithms(tmp_path):
    draw = random.Random(8)
    sizes = {video: draw.lognormvariate(5, 0.6) for video in sorted(set(watched()["video"]))}
    even = {video: 100 + draw.random() for video in sizes}
    frame = watched().with_columns(
        size=pl.col("video").replace_strict(sizes), even=pl.col("video").replace_strict(even)
    )
    features = reads(drafted(frame, tmp_path / "log"))
    assert features["size"]["transform"] == "log1p"
    assert "transform" not in features["even"]
