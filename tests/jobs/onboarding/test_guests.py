"""`multigate init`: rows without a login are a guest's, where another column tells guests apart."""

import random
from pathlib import Path

import polars as pl
import pytest

from multigate.configs.storage import place
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01


def visits(guests: float = 0.3, prefix: str = "s", lost: float = 0.0) -> pl.DataFrame:
    """Visits of four items, some saved, some of these ordered; guests have no login.

    Args:
        guests: the share of visits without a login.
        prefix: of sessions; logins are `u17`, or `17` where it is empty.
        lost: the share of a member's rows without a login.
    """
    draw, rows = random.Random(3), []
    kinds = [draw.choice("abc") for _ in range(90)]
    tastes = [draw.choice("abc") for _ in range(150)]
    for visit in range(1200):
        person, at = draw.randrange(150), START + 900 * visit
        is_guest, town = draw.random() < guests, f"town {person % 40}"
        device = f"d{person + 150 * draw.randrange(2)}"
        for item in draw.sample(range(90), 4):
            at += draw.randrange(20, 90)
            login = f"{'u' if prefix else ''}{person}"
            login = None if is_guest or draw.random() < lost else login
            who = {"login": login, "visit": f"{prefix}{visit}", "town": town}
            who |= {"device": device}
            hit, order = kinds[item] == tastes[person], None
            lines = [(at, "view")]
            if draw.random() < (0.5 if hit else 0.1):
                lines.append((at + 5, "save"))
                if draw.random() < 0.4:
                    lines.append((at + 9, "order"))
                    order = f"o{visit}"
            for time, kind in lines:
                row = {"at": time, "what": kind, "sku": f"p{item}", "kind": kinds[item], **who}
                rows.append(row | {"number": order if kind == "order" else None})
    return pl.DataFrame(rows, infer_schema_length=None).sort("at", maintain_order=True)


def drafted(frame: pl.DataFrame, folder: Path, hide: bool = False) -> tuple[Draft, dict[str, str]]:
    """The draft of a log, under names that say nothing where `hide`; its columns' names."""
    names = {name: f"x{at}" if hide else name for at, name in enumerate(frame.columns)}
    folder.mkdir(exist_ok=True)
    frame.rename(names).write_csv(folder / "log.csv")
    return draft(place(str(folder)), "my"), names


def roles_of(made: Draft) -> tuple[str, str | None, object]:
    log = made.values["pipeline"]["log"]
    columns = log["columns"]
    return columns["user"], columns.get("session"), log["derive"].get(columns["user"])


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize(("guests", "lost"), [(0.3, 0.0), (0.1, 0.0), (0.2, 0.15)])
def test_a_guests_session_stands_for_the_login(guests, lost, hide, tmp_path):
    log = visits(guests, lost=lost).drop("device", "town")
    made, names = drafted(log, tmp_path / "log", hide)
    rule = {"coalesce": [names["login"], names["visit"]]}
    assert roles_of(made) == ("user", names["visit"], rule)
    contract = made.values["contract"]
    assert contract["user"] == "user"
    assert contract["features"]["user"]["side"] == "user"
    read = {feature.get("column", name) for name, feature in contract["features"].items()}
    assert not read & {names["login"], names["visit"], names["number"]}
    share = float(log["login"].is_null().mean())
    assert f"({share:.1%} of the rows)" in made.notes["pipeline.log.columns"]
    assert "max_reject_rate" not in made.values["pipeline"]
    found = check(made.config(), tmp_path / "log")
    assert not found.fails
    assert found.facts["rows"]["rejected"] == 0


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize(("word", "suffix"), [("guest", "csv"), ("0", "csv"), (0, "parquet")])
def test_a_word_for_all_guests_is_no_user(word, suffix, hide, tmp_path):
    """Also where another column holds the word, and in typed files."""
    log = visits().drop("device", "town")
    log = log.with_columns(kind_of_user=pl.when(pl.col("login").is_null()).then(pl.lit(str(word))))
    if word != "guest":
        log = log.with_columns(pl.col("login").str.strip_prefix("u"))
    if word == 0:
        log = log.with_columns(pl.col("login").cast(pl.Int64))
    log = log.with_columns(pl.col("login").fill_null(pl.lit(word)))
    names = {name: f"x{at}" if hide else name for at, name in enumerate(log.columns)}
    (tmp_path / "log").mkdir()
    given = log.rename(names)
    if suffix == "csv":
        given.write_csv(tmp_path / "log/log.csv")
    else:
        given.write_parquet(tmp_path / "log/log.parquet")
    made = draft(place(str(tmp_path / "log")), "my")
    parts = [names["login"], names["visit"]]
    rule = {"coalesce": parts, "empty": [str(word)]}
    assert roles_of(made) == ("user", names["visit"], rule)
    share = float((log["login"].cast(pl.String) == str(word)).mean())
    said = f"none or {str(word)!r} ({share:.1%} of the rows)"
    assert said in made.notes["pipeline.log.columns"]
    found = check(made.config(), tmp_path / "log")
    assert found.facts["rows"]["rejected"] == 0
    assert not [one for one in found.findings if "stands for all" in one.message]
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    users = pl.read_parquet(tmp_path / "examples/train/*.parquet")["user"]
    assert users.value_counts(sort=True)["count"][0] < 0.05 * len(users)


def test_a_word_for_guests_is_one_word_in_capitals_too(tmp_path):
    """The pipeline's `empty` ignores capitals, so that init counts all of its spellings."""
    log = visits().drop("device", "town")
    guest = pl.col("login").is_null()
    word = pl.when(pl.int_range(pl.len()) % 9 == 0).then(pl.lit("Guest")).otherwise(pl.lit("guest"))
    given = log.with_columns(login=pl.when(guest).then(word).otherwise("login"))
    made, _ = drafted(given, tmp_path / "log")
    rule = {"coalesce": ["login", "visit"], "empty": ["guest"]}
    assert roles_of(made) == ("user", "visit", rule)
    share = float(log["login"].is_null().mean())
    assert f"none or 'guest' ({share:.1%} of the rows)" in made.notes["pipeline.log.columns"]
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    users = pl.read_parquet(tmp_path / "examples/train/*.parquet")["user"]
    assert not users.str.to_lowercase().eq("guest").any()


def test_one_user_of_many_rows_is_told_where_no_column_tells_guests_apart(tmp_path):
    log = visits().drop("device", "town", "visit")
    word = pl.when(pl.int_range(pl.len()) % 9 == 0).then(pl.lit("Anonym"))
    log = log.with_columns(pl.col("login").fill_null(word.otherwise(pl.lit("anonym"))))
    made, _ = drafted(log, tmp_path / "log")
    assert roles_of(made) == ("login", None, None)
    rows = float((log["login"].str.to_lowercase() == "anonym").mean())
    said = f"'anonym' has {rows:.1%} of the rows: if it stands for all who are not known"
    assert said in made.notes["pipeline.log.columns"]
    found = check(made.config(), tmp_path / "log")
    assert not found.fails
    [line] = [one.message for one in found.findings if "stands for all" in one.message]
    assert "derive the user: {coalesce: [login, THAT], empty: [anonym]}" in line


def test_examples_of_guests_and_users(tmp_path):
    """Users keep their own table and their past over visits; guests have one of their own."""
    log = visits().drop("device", "town")
    users = pl.DataFrame({"id": [f"u{one}" for one in range(150)], "age": range(150)})
    (tmp_path / "log").mkdir()
    users.with_columns(age=pl.col("age") % 61 + 18).write_csv(tmp_path / "log/users.csv")
    made, _ = drafted(log, tmp_path / "log")
    assert made.values["pipeline"]["users"]["key"] == "id"
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    rows = rows.filter(~pl.col("meta/sampled"))
    guests = rows.filter(pl.col("user").str.starts_with("s"))
    assert 0.2 < len(guests) / len(rows) < 0.4
    assert guests["age"].null_count() == len(guests)
    assert rows.filter(pl.col("user").str.starts_with("u"))["age"].null_count() == 0
    assert guests.filter(pl.col("label/save") == 1).height > 50
    longest = rows.group_by(pl.col("user").str.head(1)).agg(pl.col("recent_items").list.len().max())
    assert dict(longest.iter_rows())["u"] > 4 > dict(longest.iter_rows())["s"] - 1


def test_a_name_says_that_a_device_is_not_the_user(tmp_path):
    log = visits().drop("visit", "town")
    made, _ = drafted(log, tmp_path / "named")
    assert roles_of(made) == ("user", None, {"coalesce": ["login", "device"]})
    made, names = drafted(log, tmp_path / "hidden", hide=True)
    assert roles_of(made) == (names["device"], None, None)  # always present


def test_what_would_be_taken_for_a_user_is_no_stand_in(tmp_path):
    """Numbers of sessions that are those of users, too."""
    made, _ = drafted(visits(prefix="").drop("device", "town"), tmp_path / "log")
    assert roles_of(made)[0] == "visit"


def test_a_town_is_no_user(tmp_path):
    """Users are there in all rows, their towns in some: users remain."""
    log = visits(guests=0.0).drop("device").rename({"login": "id"})
    town = pl.when(pl.col("id").str.tail(1).is_in(["1", "2", "3"])).then(None).otherwise("town")
    made, _ = drafted(log.with_columns(town=town), tmp_path / "log")
    assert roles_of(made) == ("id", "visit", None)


def test_check_says_how_many_rows_have_no_user(tmp_path):
    log = visits().drop("device", "town")
    made, _ = drafted(log, tmp_path / "log")
    made.values["pipeline"]["log"]["columns"]["user"] = "login"
    made.values["contract"]["features"]["user"]["column"] = "login"
    found = check(made.config(), tmp_path / "log")
    [line] = [one.message for one in found.findings if "user: missing" in one.message]
    assert found.fails
    share = float(log["login"].is_null().mean())
    assert f"of {len(log)} rows ({share:.1%})" in line
    assert line.endswith("derive the user: {coalesce: [login, THAT]}")
