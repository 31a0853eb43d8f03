"""`multigate init`: a weight of rows is never a feature, nor is what the outcome set."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.pipeline import job

START = 1_700_000_000


def shown(seed: int = 0) -> pl.DataFrame:
    """Items shown to users one by one, drawn by a policy; some are clicked."""
    draw, rows = random.Random(seed), []
    for at in range(6000):
        user = draw.randrange(90)
        chances = [1 + ((user + item) % 5) ** 2 for item in range(15)]
        [item] = draw.choices(range(15), chances)
        clicked = int(draw.random() < 0.2)
        rows.append(
            {
                "when": START + 60 * at,
                "user": f"u{user}",
                "item": f"i{item}",
                "clicked": clicked,
                "sampled": round(draw.choice([0.5, 0.8, 1.0, 1.25, 2.0]), 2),
                "by_outcome": 1.0 if clicked else 7.5,
                "said": "yes, gladly" if clicked else "no, thanks",
                "why": draw.choice("abcdefghijklmnopq") if clicked else None,
                "inverse": sum(chances) / chances[item],
                "of_user": (0.25 + 0.5 * (user % 4)),
                "kilograms": 50.0 + 7 * (user % 5),
                "price": round(draw.uniform(1, 9), 2),
            }
        )
    return pl.DataFrame(rows)


def drafted(frame: pl.DataFrame, folder: Path) -> Draft:
    folder.mkdir()
    frame.write_csv(folder / "log.csv")
    return draft(folder, "x")


def reads(made: Draft) -> set[str]:
    """Columns that features and labels read."""
    contract: dict[str, Any] = made.values["contract"]
    labels = {task["label"].get("column", "") for task in contract["tasks"].values()}
    return {one.get("column", name) for name, one in contract["features"].items()} | labels


@pytest.mark.parametrize("name", ["sample_weight", "Gewicht", "peso", "poids", "rowWeight", "IPW"])
def test_a_column_of_that_name_is_the_weight(name, tmp_path):
    frame = shown().select(
        "when", "user", "item", "clicked", "price", pl.col("sampled").alias(name)
    )
    made = drafted(frame, tmp_path / "log")
    assert made.values["pipeline"]["log"]["columns"]["weight"] == name
    assert name not in reads(made)
    assert "price" in reads(made)
    assert "and its name" in made.notes["pipeline.log.columns"]
    assert not check(made.config(), tmp_path / "log").fails
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    weights = pl.read_parquet(tmp_path / "examples/train/*.parquet")["meta/weight"]
    assert sorted(weights.unique()) == pytest.approx([0.5, 0.8, 1.0, 1.25, 2.0])


def test_a_weight_of_users_is_about_one_and_kilograms_are_a_feature(tmp_path):
    frame = shown().select("when", "user", "item", "clicked", weight="of_user")
    made = drafted(frame, tmp_path / "survey")
    assert made.values["pipeline"]["log"]["columns"]["weight"] == "weight"
    frame = shown().select("when", "user", "item", "clicked", weight="kilograms")
    made = drafted(frame, tmp_path / "bodies")
    assert "weight" not in made.values["pipeline"]["log"]["columns"]
    assert made.values["contract"]["features"]["weight"]["side"] == "user"


def test_what_the_outcome_or_the_policy_set_is_no_feature(tmp_path):
    """Whatever the columns are called."""
    names = {"by_outcome": "x1", "said": "x2", "why": "x3", "inverse": "x4", "sampled": "x5"}
    made = drafted(shown().drop("of_user").rename(names), tmp_path / "log")
    assert not {"x1", "x2", "x3", "x4"} & reads(made)
    assert {"x5", "price"} <= reads(made)
    for name in ("x1", "x2", "x3"):
        assert "its values tell whether 'clicked' is 1" in made.left_out[name]
    assert "columns.weight takes it" in made.left_out["x1"]
    assert "1 over the probability" in made.left_out["x4"]
    found = check(made.config(), tmp_path / "log")
    assert not [one for one in found.findings if "leak suspect" in one.message]
