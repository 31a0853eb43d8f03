"""`multigate init` gives tasks of few labels a bound of their own in the nightly verdict."""

import random
from pathlib import Path

import polars as pl
import pytest

from multigate.configs.sections.evaluation import Rules
from multigate.jobs.onboarding.bounds import bound
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import as_yaml
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01


def log(requests: int) -> pl.DataFrame:
    """Lists of five items; a third is clicked, an eighth of these is bought, some have stars."""
    draw, rows, at = random.Random(1), [], START
    for request in range(requests):
        at += draw.randrange(100, 900)
        user = draw.randrange(200)
        for item in draw.sample(range(120), 5):
            click = draw.random() < (0.55 if item % 3 == user % 3 else 0.2)
            buy = click and draw.random() < 0.125
            stars = draw.randint(1, 5) if click and draw.random() < 0.3 else None
            rows.append((at, request, f"u{user}", f"i{item}", int(click), int(buy), stars))
    names = ["at", "request", "user", "item", "click", "buy", "stars"]
    return pl.DataFrame(rows, schema=names, orient="row")


def test_a_task_of_few_labels_has_a_bound_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log(3500).write_csv(tmp_path / "log/log.csv")
    made = draft(tmp_path / "log", "my")
    config = made.config()
    job.run(config, tmp_path / "log", tmp_path / "examples")
    test = pl.read_parquet(tmp_path / "examples/test/*.parquet")
    expected = {}
    for name, task in config.contract.tasks.items():
        labels = test[f"label/{name}"].drop_nulls()
        ones = int((labels == 1).sum())
        few = min(ones, len(labels) - ones) if task.type == "binary" else len(labels)
        if few < (400 if task.type == "binary" else 1000):
            expected[name] = pytest.approx(bound(task.type, few), abs=0.011)
    rules = config.evaluation.rules
    assert {name: one.largest_loss for name, one in rules.tasks.items()} == expected
    assert "click" not in expected
    assert {"buy", "stars", "stars_high"} <= set(expected)
    text = as_yaml(made, tmp_path)
    assert "labels of the rarer class: by chance, a version as good as" in text


def test_a_bound_is_the_default_where_labels_are_enough_and_wider_where_they_are_few() -> None:
    assert bound("binary", 400) == bound("regression", 1000) == Rules().largest_loss
    assert bound("binary", 200) == pytest.approx(0.04)
    assert bound("regression", 250) == pytest.approx(0.04)
    assert bound("binary", 60) == pytest.approx(0.14)
    assert bound("binary", 3) == 1.0  # leaves an AUC to what is shown


def test_enough_labels_need_no_bound(tmp_path: Path) -> None:
    log(9000).drop("buy", "stars").write_csv(tmp_path / "log.csv")
    assert "evaluation" not in draft(tmp_path, "my").values
