"""`multigate init`: ids that some rows spell in capitals or with blanks around are one id."""

import random
from pathlib import Path

import polars as pl
import pytest
from tests.jobs.onboarding.test_guests import drafted, roles_of, visits

from multigate.configs.storage import place
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.pipeline import job

SPELLINGS = {
    "capitals": [str, str, str.upper, lambda one: f" {one.title()} "],
    "blanks": [str, str, str, lambda one: f"{one} "],
}
RULES = {"capitals": {"lower": "sku"}, "blanks": {"extract": "sku", "pattern": "(.+)"}}


def spelled(log: pl.DataFrame, column: str, how: str) -> pl.DataFrame:
    draw = random.Random(8)
    texts = [None if one is None else draw.choice(SPELLINGS[how])(one) for one in log[column]]
    return log.with_columns(pl.Series(column, texts))


@pytest.mark.parametrize("how", SPELLINGS)
def test_an_item_has_one_spelling_in_the_log_and_its_table(how: str, tmp_path: Path) -> None:
    log = visits(guests=0.0).drop("device", "town", "kind")
    log = log.with_columns(pl.format("item-{}", "sku").alias("sku"))
    ids = log["sku"].unique(maintain_order=True)
    titles = [one.upper() if how == "capitals" else one for one in ids]
    table = pl.DataFrame({"id": titles, "maker": [f"m{at % 7}" for at in range(len(ids))]})
    (tmp_path / "log").mkdir()
    table.write_csv(tmp_path / "log/items.csv")
    made, _ = drafted(spelled(log, "sku", how), tmp_path / "log")
    source = made.values["pipeline"]["log"]
    assert source["columns"]["item"] == "sku"
    assert source["derive"]["sku"] == RULES[how]
    assert f"which are {len(ids)} but for" in made.notes["pipeline.derive"]
    assert made.notes["contract.features.sku"].startswith(f"{len(ids)} values")
    key = made.values["pipeline"]["items"]["key"]
    assert made.values["pipeline"]["items"].get("derive", {}) == (
        {"id": {"lower": "id"}} if how == "capitals" else {"id": {**RULES[how], "extract": "id"}}
    )
    assert key == "id"
    found = check(made.config(), tmp_path / "log")
    assert not found.fails
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows["sku"].n_unique() == len(ids)
    assert rows["maker"].null_count() == 0


@pytest.mark.parametrize("hide", [False, True])
def test_a_login_in_several_spellings_stands_before_the_session(hide, tmp_path):
    log = visits().drop("device", "town")
    log = log.with_columns(pl.format("mem{}", "login").alias("login"))
    made, names = drafted(spelled(log, "login", "capitals"), tmp_path / "log", hide)
    login, visit = names["login"], names["visit"]
    assert roles_of(made) == ("user", visit, {"coalesce": [login, visit]})
    assert made.values["pipeline"]["log"]["derive"][login] == {"lower": login}
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    members = rows["user"].unique().to_frame().filter(pl.col("user").str.starts_with("mem"))
    assert 100 < len(members) <= log["login"].drop_nulls().n_unique()


def test_ids_whose_letters_are_drawn_are_several(tmp_path):
    """`aBc` and `AbC` are two, and so are words that decide different things."""
    draw, log = random.Random(2), visits(guests=0.0).drop("device", "town", "kind")
    # Three letters of four: some ids differ by capitals only.
    letters = "abAB"
    codes = {one: "".join(draw.choices(letters, k=3)) + one[-1] for one in log["sku"].unique()}
    assert len({one.lower() for one in codes.values()}) < 0.9 * len(set(codes.values()))
    log.with_columns(pl.col("sku").replace(codes)).write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    assert "sku" not in made.values["pipeline"]["log"].get("derive", {})

    kinds = {name: draw.choice("xyz") for name in log["sku"].unique()}
    upper = {name: name.upper() for name in list(kinds)[:30]}
    words = pl.col("sku").replace(upper)
    apart = log.with_columns(
        pl.when(pl.int_range(pl.len()) % 2 == 0).then(words).otherwise("sku").alias("sku")
    )
    price = {name: str(draw.randrange(1000)) for name in apart["sku"].unique()}
    apart.with_columns(cost=pl.col("sku").replace(price)).write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    assert "sku" not in made.values["pipeline"]["log"].get("derive", {})
