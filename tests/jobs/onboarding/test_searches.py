"""`multigate init` on results of searches: visits beside requests, prices, makers by number."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft

START = 1_767_225_600


def searched(seed: int = 12) -> pl.DataFrame:
    """Lists of six articles, each with an id and a visit; some clicked, some of these bought."""
    draw, rows, at = random.Random(seed), [], START
    makers = [1000 + draw.randrange(10**6) for _ in range(60)]
    lands = [draw.choice(["FR", "PL", "JP"]) for _ in makers]
    made_by = [draw.randrange(60) for _ in range(300)]
    prices = [round(draw.lognormvariate(3, 0.8), 2) for _ in range(300)]
    for number in range(1500):
        at += draw.randrange(300, 2500)
        user = draw.randrange(150)
        for place, item in enumerate(draw.sample(range(300), 6)):
            click = draw.random() < (0.5 if made_by[item] % 3 == user % 3 else 0.1)
            buys = click and draw.random() < 0.4
            price = round(prices[item] * draw.choice([1, 1, 1, 0.9]), 2)
            rows.append(
                {
                    **{"at": at, "list": f"q{number}", "visit_no": 7 * number + 3, "who": user},
                    **{"item": f"i{item}", "place": place + 1, "price": price},
                    **{"maker": makers[made_by[item]], "land": lands[made_by[item]]},
                    **{"click": int(click), "buys": int(buys)},
                    "stay": int(draw.lognormvariate(10, 0.7)) if click else None,
                    "paid": round(price * draw.choice([1, 1.05]), 2) if buys else None,
                }
            )
    return pl.DataFrame(rows, infer_schema_length=None)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Path]:
    folder = tmp_path_factory.mktemp("shop")
    searched().write_parquet(folder / "log.parquet")
    return draft(folder, "shop"), folder


def features(made: Draft) -> dict[str, Any]:
    found: dict[str, Any] = made.values["contract"]["features"]
    return found


def test_what_names_visits_beside_the_request_is_no_feature(shop):
    made, folder = shop
    named = made.values["pipeline"]["log"]["columns"]["request"]
    [other] = {"list", "visit_no"} - {named}
    assert other not in features(made)
    assert "one visit" in made.left_out[other]
    assert not check(made.config(), folder).fails


def test_what_was_paid_is_no_task_of_high_values(shop):
    """It says which article was bought, as its price does, and not how it was liked."""
    made, _ = shop
    tasks = made.values["contract"]["tasks"]
    assert tasks["paid"]["when"] == "buys"
    assert "paid_long" not in tasks
    assert "stay_long" in tasks
    assert "it goes with 'price'" in made.notes["contract.tasks.paid"]


def test_numbers_of_makers_are_ids_because_they_decide_words(shop):
    made, _ = shop
    assert features(made)["maker"]["kind"] == "id"
    assert features(made)["price"]["kind"] == "number"


def test_numbers_whose_words_are_classes_of_them_stay_numbers(tmp_path):
    """Of 40 prices, each of several articles, `cheap` and `dear` tell which half one is of."""
    price = pl.col("item").str.slice(1).cast(pl.Int64) % 40 + 21
    log = searched().with_columns(price=price, maker=pl.lit(None), land=pl.lit(None))
    log = log.with_columns(level=pl.when(price > 40).then(pl.lit("dear")).otherwise(pl.lit("low")))
    log = log.with_columns(price=pl.col("price") * 3)  # with gaps, as prices have
    log.drop("maker", "land").write_parquet(tmp_path / "log.parquet")
    assert features(draft(tmp_path, "shop"))["price"]["kind"] == "number"


@pytest.mark.parametrize(("factor", "wait"), [(1, "10m"), (1 / 1000, "10m"), (1 / 20, "6h")])
def test_labels_wait_for_the_longest_stay_whatever_its_unit(factor, wait, tmp_path):
    """Half of the stays take 22,000: of seconds that is 6 hours, which nobody stays.

    A twentieth of it, 18 minutes, may be seconds. What was paid is no time.
    """
    log = searched().with_columns(stay=(pl.col("stay") * factor).round().cast(pl.Int64))
    log.write_parquet(tmp_path / "log.parquet")
    read = draft(tmp_path, "shop").values["pipeline"]["log"]
    assert read["known_after"] == wait
