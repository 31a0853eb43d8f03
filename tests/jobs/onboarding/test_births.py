"""`multigate init`: a date of birth is an age, however it is spelled."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft

START = 1_700_000_000
SPELLED = {
    "iso": lambda day: day.strftime("%Y-%m-%d"),
    "slashes": lambda day: day.strftime("%d/%m/%Y"),
    "dots": lambda day: day.strftime("%d.%m.%Y"),
    "digits": lambda day: day.strftime("%Y%m%d"),
    "seconds": lambda day: int(day.timestamp()),
    "milliseconds": lambda day: int(day.timestamp() * 1000),
}


def people(spelled: str) -> pl.DataFrame:
    draw = random.Random(4)
    days = [
        datetime(1935, 1, 1, tzinfo=UTC) + timedelta(days=draw.randrange(25_000)) for _ in range(90)
    ]
    births = [SPELLED[spelled](day) for day in days]
    births[7] = None
    return pl.DataFrame({"user": [f"u{at}" for at in range(90)], "x": births})


def clicks() -> pl.DataFrame:
    draw = random.Random(5)
    rows = [
        (START + 60 * at, f"u{draw.randrange(90)}", f"i{draw.randrange(40)}", draw.random() < 0.2)
        for at in range(5000)
    ]
    frame = pl.DataFrame(rows, ["when", "user", "item", "clicked"], orient="row")
    return frame.with_columns(pl.col("clicked").cast(pl.Int64))


@pytest.mark.parametrize("where", ["users", "log"])
@pytest.mark.parametrize("spelled", SPELLED)
def test_a_date_of_birth_is_an_age(spelled: str, where: str, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    log, users = clicks(), people(spelled)
    if where == "users":
        users.write_csv(folder / "users.csv")
    else:
        log = log.join(users, on="user", how="left", maintain_order="left")
    log.write_csv(folder / "log.csv")
    made = draft(folder, "x")
    unit = {"seconds": "s", "milliseconds": "ms"}.get(spelled, "iso")
    assert made.values["contract"]["features"]["x"] == {
        "kind": "number",
        "side": "user",
        **({"source": "users"} if where == "users" else {}),
        "age": unit,
        "missing": "indicator",
    }
    assert made.values["pipeline"]["log"]["columns"]["time"] == "when"
    found = check(made.config(), folder)
    assert not found.fails
    assert found.facts["rows"]["rejected"] == 0


def test_numbers_below_zero_are_no_dates(tmp_path: Path) -> None:
    """Whole hours before 1970 are births; temperatures, balances and codes are none."""
    draw = random.Random(6)
    folder = tmp_path / "log"
    folder.mkdir()
    clicks().with_columns(
        balance=pl.Series([draw.randrange(-(10**9), 10**9) for _ in range(5000)]),
        degrees=pl.Series([draw.randrange(-20, 40) for _ in range(5000)]),
    ).write_csv(folder / "log.csv")
    features = draft(folder, "x").values["contract"]["features"]
    assert not [name for name, one in features.items() if "age" in one]
    assert {"degrees"} <= set(features)
