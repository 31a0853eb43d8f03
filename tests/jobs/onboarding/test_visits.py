"""`multigate init` on logs of events of which no type is an impression, such as `play`, `skip`."""

import random
from pathlib import Path

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.pipeline import job

START = 1_767_225_600


def heard(seed: int = 3) -> pl.DataFrame:
    """Tracks that are played or skipped, for so many seconds; some are then added or bought."""
    draw, rows, at = random.Random(seed), [], START
    kinds = [draw.randrange(3) for _ in range(300)]
    prices = [draw.choice([0.69, 0.99, 1.29, 1.49]) for _ in range(300)]
    for _ in range(1000):
        at += draw.randrange(600, 2400)
        user, now = draw.randrange(150), at
        for track in draw.sample(range(300), 6):
            likes = kinds[track] == user % 3
            skip = draw.random() < (0.15 if likes else 0.5)
            took = round(draw.uniform(1, 25) if skip else draw.uniform(120, 300), 2)
            rows.append((now, f"l{user}", f"t{track}", "skip" if skip else "play", took))
            now += int(took)
            if draw.random() < (0.3 if likes and not skip else 0.03):
                rows.append((now - 1, f"l{user}", f"t{track}", "add", None))
            if draw.random() < (0.3 if likes and not skip else 0.02):
                rows.append((now, f"l{user}", f"t{track}", "buy", prices[track]))
    return pl.DataFrame(rows, schema=["at", "who", "track", "what", "value"], orient="row")


@pytest.fixture(scope="module")
def music(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Path]:
    folder = tmp_path_factory.mktemp("music")
    heard().sort("at", maintain_order=True).write_csv(folder / "log.csv")
    return draft(folder, "music"), folder


def test_types_that_begin_visits_are_found_though_none_is_an_impression(music):
    made, _ = music
    log = made.values["pipeline"]["log"]
    assert log["shape"] == "events"
    assert log["feedback"]["columns"]["event"] == "what"
    assert log["feedback"]["columns"]["value"] == "value"
    assert not {"what", "value"} & set(made.values["contract"]["features"])
    assert "'play', 'skip'" in made.notes["pipeline.log.feedback"]
    assert "event types: opened" in made.notes["pipeline.log.impression"]


def test_of_two_types_one_of_which_each_visit_has_the_welcome_one_is_a_task(music):
    made, _ = music
    tasks = made.values["contract"]["tasks"]
    binary = {name for name, task in tasks.items() if task["type"] == "binary"}
    assert binary == {"play", "add", "buy"}
    assert all(tasks[name]["score_weight"] == 1 for name in binary)
    assert all(tasks[name]["weight"] < 1 for name in tasks.keys() - binary)  # no score reads them
    assert "negatives" not in made.values["pipeline"]  # what was skipped is not drawn


@pytest.mark.parametrize("words", [{"play": "k1", "skip": "k2"}, {"play": "k2", "skip": "k1"}])
def test_the_type_that_more_feedback_follows_is_welcome_whatever_the_words(words, tmp_path):
    frame = heard().with_columns(pl.col("what").replace(words))
    frame.sort("at", maintain_order=True).write_csv(tmp_path / "log.csv")
    tasks = draft(tmp_path, "music").values["contract"]["tasks"]
    assert words["play"] in tasks
    assert words["skip"] not in tasks


def test_of_numbers_that_the_item_decides_one_past_label_tells_nearly_all(music):
    made, _ = music
    features = made.values["contract"]["features"]
    assert features["item_buy_value"]["label_mean"]["task"] == "buy_value"
    assert features["item_buy_value"]["label_mean"]["strength"] < 1
    assert "item_play_value" not in features
    assert "the item decides it" in made.notes["contract.tasks.buy_value"]


def test_how_long_that_tells_the_type_is_no_id_that_has_it(tmp_path):
    draw, middles = random.Random(2), {"skip": 9.0, "play": 11.5}
    took = [
        int(draw.lognormvariate(middles[one], 0.8)) // 10 if one in middles else None
        for one in heard()["what"]
    ]
    price = pl.when(pl.col("what") == "buy").then(pl.col("value"))
    frame = heard().with_columns(took=pl.Series(took), price=price)
    frame.drop("value").sort("at", maintain_order=True).write_csv(tmp_path / "log.csv")
    made = draft(tmp_path, "music")
    assert {"play", "add", "buy", "play_took"} <= set(made.values["contract"]["tasks"])
    assert not {"what", "took", "price"} & set(made.values["contract"]["features"])


def test_each_visit_is_one_example_with_what_came_of_it(music, tmp_path):
    made, folder = music
    assert not check(made.config(), folder).fails
    job.run(made.config(), folder, tmp_path / "examples")
    parts = [pl.read_parquet(one) for one in (tmp_path / "examples").glob("t*/*.parquet")]
    parts += [pl.read_parquet(one) for one in (tmp_path / "examples/validation").glob("*.parquet")]
    rows = pl.concat(parts, how="diagonal_relaxed").select(
        pl.col("who", "track"), pl.col("meta/time").dt.epoch("s").alias("at"), pl.col("^label/.*$")
    )
    log = heard()
    began = log.filter(pl.col("what").is_in(["play", "skip"]))
    both = rows.join(began, on=["who", "track", "at"], how="inner")
    assert len(both) == len(rows) > 0.98 * len(began)
    assert both.select((pl.col("label/play") == (pl.col("what") == "play")).all()).item()
    for kind in ("add", "buy"):
        known = rows.filter(pl.col(f"label/{kind}").is_not_null())
        until = known["at"].max()
        told = log.filter((pl.col("what") == kind) & (pl.col("at") <= until))
        assert abs(known[f"label/{kind}"].sum() - len(told)) < 0.05 * len(told)
