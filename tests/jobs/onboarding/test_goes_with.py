"""What a column says by its name, and whether its values go with the item's."""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.tables.columns import goes_with, look, names_code

START = 1_767_225_600  # 2026-01-01


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def features(made: Draft) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = made.values["contract"]["features"]
    return found


def views(seconds: str = "seconds_read", rows: int = 4000) -> list[dict[str, Any]]:
    """Views of offers whose price is now and then lower, some shared."""
    rng = random.Random(5)
    prices = [round(rng.lognormvariate(2, 0.8), 2) for _ in range(150)]
    made = []
    for at in range(rows):
        item = rng.randrange(150)
        row = {
            "time": START + 300 * at,
            "user": f"u{rng.randrange(200)}",
            "item": f"i{item}",
            "event": "view",
            "price": round(prices[item] * (0.8 if rng.random() < 0.2 else 1), 2),
            seconds: round(rng.expovariate(1 / 30), 1),
            "coupon": int(rng.random() < 0.2),
        }
        made.append(row)
        if rng.random() < 0.1:
            made.append(row | {"time": row["time"] + 20, "event": "share", seconds: ""})
    return made


@pytest.mark.parametrize("name", ["seconds_read", "secondsRead", "read_ms", "reading_time"])
def test_how_long_was_read_is_no_feature(name: str, tmp_path: Path) -> None:
    """It is known after the view: a request cannot send it."""
    write(tmp_path, views(name))
    made = draft(tmp_path, "news")
    assert not {"seconds_read", "read_ms", "reading_time"} & features(made).keys()
    assert "measured afterwards" in made.left_out[name]


def test_a_price_that_changes_at_times_is_the_item_s(tmp_path: Path) -> None:
    """A sampled negative would else have the price of the positive, which tells it apart."""
    write(tmp_path, views())
    found = features(draft(tmp_path, "shop"))
    assert found["price"]["side"] == "item"
    assert found["coupon"]["side"] == "context"


def test_bursts_of_news_are_no_visits(tmp_path: Path) -> None:
    """Most readers of an article come within an hour, and each for one article."""
    rng, rows = random.Random(7), []
    for article in range(400):
        for reader in rng.sample(range(900), 12):
            late = rng.randrange(1500) if rng.random() < 0.7 else rng.randrange(150_000)
            row = {"time": START + 3000 * article + late, "reader": f"r{reader}"}
            row |= {"article": f"a{article}", "event": "view", "team": f"t{article % 30}"}
            rows.append(row)
            if rng.random() < 0.1:
                rows.append(row | {"time": row["time"] + 30, "event": "share"})
    write(tmp_path, sorted(rows, key=lambda row: row["time"]))
    made = draft(tmp_path, "news")
    contract = made.values["contract"]
    assert (contract["user"], contract["item"]) == ("reader", "article")
    assert "rows of one 'article' stand closer together" in str(made.notes)


def searches() -> list[dict[str, Any]]:
    """Lists of offers with numbers of sellers, and ways that have nothing to do with these."""
    rng, made = random.Random(6), []
    sellers = [rng.randrange(900) for _ in range(800)]
    for request in range(900):
        user = rng.randrange(150)
        for place, item in enumerate(rng.sample(range(800), 6)):
            row = {"time": START + 1000 * request, "search": f"s{request}", "user": f"u{user}"}
            row |= {"item": f"i{item}", "rank": place, "seller_id": sellers[item]}
            way = round(rng.lognormvariate(2.5, 0.9), 1)
            clicked = rng.random() < (0.3 if sellers[item] % 3 == user % 3 else 0.1)
            made.append(row | {"distance_km": way, "clicked": int(clicked)})
    return made


def test_a_number_below_an_id_is_no_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, searches())
    made = draft(tmp_path, "market")
    assert list(made.values["contract"]["tasks"]) == ["clicked"]
    assert features(made)["distance_km"] == {
        "kind": "number",
        "side": "item",
        "missing": "indicator",
        "transform": "log1p",
    }
    assert features(made)["seller_id"]["kind"] == "id"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("seller_id", "id", "sellerId", "brandID", "zip", "area_code")),
        *((name, False) for name in ("paid", "grid", "android", "price", "decode", "idle")),
    ],
)
def test_names_of_codes(name: str, is_one: bool) -> None:
    assert names_code(name) == is_one


@pytest.mark.parametrize("words", [False, True])
def test_what_goes_with_its_group(words: bool) -> None:
    """1 where groups decide, about 0 where chance does, even in groups of two rows."""
    rng = np.random.default_rng(3)
    by = rng.integers(0, 1000, 2000)

    def share(values: np.ndarray) -> float:
        raw = pl.Series("x", [f"w{one}" for one in values] if words else values)
        return goes_with(pl.DataFrame({"by": by, "x": raw}), "by", look("x", raw))

    assert share(by % 7 + 20) == pytest.approx(1.0)
    assert share(rng.integers(20, 27, 2000)) == pytest.approx(0.0, abs=0.1)
    mixed = np.where(rng.random(2000) < 0.9, by % 7, rng.integers(0, 7, 2000)) + 20
    assert 0.6 < share(mixed) < 0.95
    assert share(np.full(2000, 20)) == 0.0
