"""`multigate init` on logs of events of which no type is an impression, such as `play`, `skip`."""

import random
from datetime import date
from pathlib import Path

import polars as pl
import pytest

from multigate.configs.config import Config
from multigate.configs.files import LABEL, SPLITS
from multigate.configs.sections.base import parse
from multigate.jobs.night.night import Night
from multigate.jobs.night.stages import pipeline
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.publication.base_folder import Base
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


def test_rows_that_are_read_as_impressions_and_as_feedback_count_once(music):
    made, folder = music
    found = check(made.config(), folder)
    rows = len(heard())
    assert found.facts["rows"] == {"sample": rows, "log": rows, "whole": True, "rejected": 0}


def test_of_many_files_those_of_the_same_days_are_impressions_and_feedback(music, tmp_path):
    """34 files on each side are more than a sample reads of both."""
    made, _ = music
    log = heard().sort("at", maintain_order=True)
    days = made.config()
    for part in range(34):
        rows = log.slice(part * len(log) // 34, (part + 1) * len(log) // 34 - part * len(log) // 34)
        rows.write_csv(tmp_path / f"log-{part:02d}.csv")
    pattern = {"files": ("*.csv",)}
    feedback = days.pipeline.log.feedback.model_copy(update=pattern)
    read = days.pipeline.log.model_copy(update={**pattern, "feedback": feedback})
    pipeline = days.pipeline.model_copy(update={"log": read})
    found = check(days.model_copy(update={"pipeline": pipeline}), tmp_path)
    share = (log["what"] == "play").sum() / log["what"].is_in(["play", "skip"]).sum()
    assert found.facts["tasks"]["play"]["mean"] == pytest.approx(share, abs=0.05)


def test_an_empty_cell_is_called_one(music, tmp_path):
    made, _ = music
    log = heard().sort("at", maintain_order=True)
    log.with_columns(at=pl.when(pl.int_range(len(log)) % 50 > 0).then("at")).write_csv(
        tmp_path / "log.csv"
    )
    found = check(made.config(), tmp_path)
    empty = -(-len(log) // 50)
    assert found.facts["rows"]["rejected"] == empty
    [line] = [one.message for one in found.findings if one.where == "log.csv"]
    assert line == (
        f"line 2: time: missing; received an empty cell in column 'at'; {empty} of {len(log)} rows "
        f"({empty / len(log):.1%})"
    )


@pytest.mark.slow
def test_nights_that_make_their_day_alone_have_the_labels_of_one_run(music, tmp_path):
    """A visit that goes on after midnight is a row of both days, each with what closed by then."""
    made, log = music

    def rows(name: str, **run: object) -> pl.DataFrame:
        config = parse(Config, made.values | {"run": {"days": 4, **run}}, name)
        runs = tmp_path / name
        night = Night(config, date(2026, 1, 12), log, runs, Base(runs / "models/music"))
        night.folder.set_state("running", stage="pipeline")
        pipeline(night)
        parts = [night.folder.examples / part / "*.parquet" for part in SPLITS]
        found = pl.concat([pl.read_parquet(one) for one in parts], how="diagonal_relaxed")
        labels = pl.col(f"^{LABEL}.*$").max()
        return found.group_by("who", "track", "meta/time").agg(labels)

    keys = ["who", "track", "meta/time"]
    both = rows("daily", daily=True).join(rows("whole"), on=keys, suffix=" of one run")
    assert len(both) > 1000
    for task in made.values["contract"]["tasks"]:
        one, other = both[LABEL + task], both[f"{LABEL}{task} of one run"]
        assert (one.is_not_null() & other.is_not_null()).sum() > 20
        assert (one == other).all()
