"""The simulated feed: its truth is the truth, and there is something to learn."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from multigate.configs import DataError, load
from multigate.configs.files import SPLITS
from multigate.jobs.simulate import SLOTS, simulate
from multigate.pipeline.job import run

BINARY = ["click", "deep_click", "share", "like", "dislike", "follow"]


@pytest.fixture(scope="module")
def feed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feed") / "log"
    simulate(folder, seed=1, users=600, items=300, exposures=40_000)
    return folder


@pytest.fixture(scope="module")
def joined(feed):
    log = pl.read_ndjson(sorted(feed.glob("*.jsonl")))
    log = log.with_columns(deep_click=(pl.col("dwell") >= 30).cast(pl.Int64))
    truth = pl.read_parquet(feed / "truth.parquet")
    both = log.join(truth, on=["request_id", "item_id"], suffix="_true")
    assert len(both) == len(log) == len(truth) == 40_000
    return both


@pytest.mark.parametrize("task", BINARY)
def test_rates_are_the_truth_within_chance(task, joined):
    p, y = joined[f"{task}_true"].to_numpy(), joined[task].to_numpy()
    # Overall, and where the truth is low, middling and high.
    for part in np.array_split(np.argsort(p), 4):
        error = np.sqrt((p[part] * (1 - p[part])).sum())
        assert abs(y[part].sum() - p[part].sum()) < 4 * error
    assert 0.75 < roc_auc_score(y, p) < 0.9
    assert 0.02 < y.mean() < 0.4


def test_dwell_and_rating_are_the_truth_within_chance(joined):
    clicked = joined.filter(pl.col("click") == 1)
    rated = joined.filter(pl.col("rating").is_not_null())
    for rows, name in ((clicked, "dwell"), (rated, "rating")):
        residual = rows[name] - rows[f"{name}_true"]
        assert abs(residual.mean()) < 4 * residual.std() / len(rows) ** 0.5
        assert residual.std() < 0.85 * rows[name].std()
    assert (joined.filter(pl.col("click") == 0)["dwell"] == 0).all()
    assert rated["click"].min() == 1
    assert 0.25 < len(rated) / len(clicked) < 0.35
    assert sorted(rated["rating"].unique()) == [1, 2, 3, 4, 5]


def test_position_matters_and_is_independent_of_the_item(joined):
    by_place = joined.group_by("position").agg(
        pl.col("click").mean(), pl.col("click_true").mean(), pl.len()
    )
    by_place = by_place.sort("position")
    assert by_place["len"].to_list() == [4000] * SLOTS
    assert by_place["click"][0] > 1.5 * by_place["click"][9]
    # Of 4,000 rows each, whose truths spread by less than 0.2: standard error 0.003.
    assert by_place["click_true"].to_numpy() == pytest.approx(
        joined["click_true"].mean(), abs=0.012
    )
    shown_once = joined.group_by("request_id").agg(pl.col("item_id").n_unique())
    assert shown_once["item_id"].unique().to_list() == [SLOTS]


def test_tasks_conflict(joined):
    # Among items: clicks and dislikes are drawn together by bait, satisfaction is driven apart.
    items = (
        joined.filter(pl.col("click") == 1)
        .group_by("item_id")
        .agg(pl.col("dislike_true", "rating_true", "click_true").mean())
    )
    assert items.select(pl.corr("click_true", "rating_true")).item() < 0
    assert items.select(pl.corr("rating_true", "dislike_true")).item() < -0.5


def test_a_user_is_in_one_place_at_a_time(joined):
    times = joined.group_by("request_id").agg(pl.col("user_id").first(), pl.col("time").unique())
    assert times["time"].list.len().max() == 1
    gaps = times.explode("time").sort("user_id", "time")
    gaps = gaps.select(gap=pl.col("time").diff().over("user_id")).drop_nulls()
    assert gaps["gap"].min() >= 60


def test_the_seed_makes_the_log(feed, tmp_path):
    simulate(tmp_path / "same", seed=1, users=600, items=300, exposures=40_000)
    simulate(tmp_path / "other", seed=2, users=600, items=300, exposures=40_000)
    for path in feed.iterdir():
        assert (tmp_path / "same" / path.name).read_bytes() == path.read_bytes()
        assert (tmp_path / "other" / path.name).read_bytes() != path.read_bytes()
    with pytest.raises(DataError, match="already exists"):
        simulate(feed)


@pytest.mark.slow
def test_the_demo_preset_reads_it(feed, tmp_path):
    manifest = run(load("demo"), feed, tmp_path / "out")
    assert manifest["rows"]["rejects"] == 0
    # What is shown in the last ten minutes before a split, or before the end, closes after it.
    rest = manifest["rows"]["held_back"] + manifest["examples"]["embargoed"]
    assert manifest["examples"]["total"] + rest == 40_000
    assert 0 < rest < 200
    examples = pl.read_parquet([tmp_path / "out" / name for name in SPLITS])
    # Dwell is masked without a click, deep_click is not.
    clicks = int(examples["label/click"].sum())
    assert examples["label/dwell"].count() == clicks
    assert examples["label/deep_click"].null_count() == 0
    assert examples["age"].null_count() > 0
    assert examples["recent_clicks"].list.len().max() > 5
