"""Downsampled negatives: which impressions stay, and what is recorded of it."""

import random
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from multigate.configs import ConfigError, Statistics
from multigate.pipeline.job import run

HEADER = "time,user_id,item_id,request,price,tags,place,click,stars"
SOME = {"keep": 0.25, "tasks": ["click"]}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    rng = random.Random(2)
    folder = tmp_path_factory.mktemp("downsample")
    lines = [
        f"{1_700_000_000 + at},{rng.randrange(50)},{rng.randrange(30)},r{at},,,1,"
        f"{int(rng.random() < 0.2)},3"
        for at in range(2000)
    ]
    (folder / "log.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def both(log, impression_config, read_examples):
    """Examples, manifests and statistics: as they are, and with a quarter of the negatives."""
    found = []
    for name, downsample in (("all", None), ("some", SOME)):
        config = impression_config(**{"pipeline.downsample": downsample})
        manifest = run(config, log, log / name)
        statistics = Statistics.read(log / name / "statistics.json")
        found.append((read_examples(log / name), manifest, statistics))
    return found


def test_a_share_of_the_training_splits_negatives_stays(both):
    (every, _, whole), (some, manifest, statistics) = both
    negative = (pl.col("label/click") == 0) & (pl.col("split") == "train")
    left_out = every.join(some, on="meta/impression", how="anti")
    assert left_out.equals(left_out.filter(negative))
    assert some.equals(
        every.join(left_out, on="meta/impression", how="anti", maintain_order="left")
    )
    kept = len(some.filter(negative)) / len(every.filter(negative))
    # About 960 coins: four standard deviations are 4 * (0.25 * 0.75 / 960)**0.5 = 0.056.
    assert kept == pytest.approx(0.25, abs=0.056)
    assert manifest["examples"]["negatives_not_kept"] == len(left_out)
    assert manifest["examples"]["total"] == len(some) == len(every) - len(left_out)
    assert (whole.negatives_kept, statistics.negatives_kept) == (1.0, 0.25)


def test_the_recorded_share_puts_the_rate_right(both):
    (every, _, _), (_, _, statistics) = both
    p = statistics.tasks["click"].mean
    right = p / (p + (1 - p) / statistics.negatives_kept)
    rate = every.filter(pl.col("split") == "train")["label/click"].mean()
    assert p > 2 * rate
    assert right == pytest.approx(rate, abs=0.03)


def test_another_seed_keeps_others(both, log, impression_config, read_examples):
    (_, _, _), (some, _, _) = both
    config = impression_config(**{"pipeline.downsample": SOME, "pipeline.seed": 1})
    run(config, log, log / "other")
    some = some.filter((pl.col("label/click") == 0) & (pl.col("split") == "train"))
    shared = some.join(read_examples(log / "other"), on="meta/impression", how="semi")
    # Another quarter of them: of 250, 62, give or take four times 7.
    assert len(shared) == pytest.approx(0.25 * len(some), abs=28)


def test_sampled_negatives_are_not_affected(both, log, impression_config, read_examples):
    sampled = []
    for name, downsample in (("drawn", None), ("drawn-some", SOME)):
        config = impression_config(
            **{"pipeline.downsample": downsample, "pipeline.negatives": {"per_positive": 1}}
        )
        run(config, log, log / name)
        sampled.append(read_examples(log / name).filter(pl.col("meta/sampled")))
    assert len(sampled[0])
    assert sampled[0].equals(sampled[1])


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["view"], "every logged impression is positive for 'view'"),
        ([], "every logged impression is positive for 'view'"),
        (["dwell"], "expected one of view, like, dislike, good, long, received 'dwell'"),
    ],
)
def test_tasks_that_tell_nothing_apart_are_refused(tasks, message, event_config):
    with pytest.raises(ConfigError, match=message):
        event_config(**{"pipeline.downsample": {"keep": 0.5, "tasks": tasks}})
    assert event_config(**{"pipeline.downsample": {"keep": 0.5, "tasks": ["like"]}})


def test_downsampling_without_a_binary_task_is_refused(impression_config):
    changes = {"contract.tasks.click": None, "contract.tasks.stars.when": None}
    for tasks in ([], ["stars"]):
        with pytest.raises(ConfigError, match=r"pipeline.downsample: expected a binary task"):
            impression_config(**changes, **{"pipeline.downsample": {"keep": 0.5, "tasks": tasks}})
    assert impression_config(**changes)


def test_a_click_of_yesterday_keeps_the_like_that_closes_today(
    event_config, read_examples, tmp_path
):
    """Every like follows a click, so that none is left out, in one run or in a run for each day."""
    rng, start = random.Random(1), datetime(2026, 1, 5, tzinfo=UTC)
    days = [start + timedelta(days=day) for day in range(7)]
    for day in days:
        lines = ["time,event,item,user"]
        for _ in range(150):
            at = int(day.timestamp()) + rng.randrange(80_000)
            rest = f"i{rng.randrange(20)},u{rng.randrange(40)}"
            events = ["VIEW", *(["CLICK"] if rng.random() < 0.3 else [])]
            events += ["LIKE"] if "CLICK" in events and rng.random() < 0.4 else []
            lines += [f"{at + 60 * place},{event},{rest}" for place, event in enumerate(events)]
        folder = tmp_path / f"date={day.date()}"
        folder.mkdir()
        (folder / "part.csv").write_text("\n".join(lines) + "\n")

    def task(event, within):
        label = {"rule": "event", "events": [event], "within": within}
        return {"group": "engagement", "type": "binary", "label": label}

    changes = {
        "contract.tasks": {"click": task("CLICK", "30m"), "like": task("LIKE", "36h")},
        "contract.features.device": None,
        "contract.features.recent.history": {"events": ["VIEW"], "last": 3, "within": "1d"},
        "contract.features.liked.history": {"events": ["LIKE"], "last": 3, "within": "1d"},
        "pipeline.log.columns": {"time": "time", "user": "user", "item": "item", "event": "event"},
        "pipeline.log.files": ["date=*/part.csv"],
        "pipeline.hold_back": True,
        "pipeline.attribution": "2d",
        "pipeline.negatives": None,
        "pipeline.split": {"by": "user", "validation": 0.2, "test": 0.2},
    }
    likes = {}
    for name, downsample in (("all", None), ("some", SOME)):
        config = event_config(**changes, **{"pipeline.downsample": downsample})
        parts = []
        for day in days[3:6]:
            out = tmp_path / f"{name}-{day.date()}"
            run(config, tmp_path, out, span=(day, day + timedelta(days=1)))
            parts.append(read_examples(out).filter(pl.col("label/like") == 1))
        likes[name] = sorted(pl.concat(parts)["meta/impression"].to_list())
    assert len(likes["all"]) > 30
    assert likes["some"] == likes["all"]
