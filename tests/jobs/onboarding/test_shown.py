"""What `multigate init` makes of columns and events that tell what was shown or seen."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs.storage import place
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01
USERS, ITEMS = 250, 150


def people(draw: random.Random) -> tuple[list[str], list[str]]:
    """Kinds of the items, and tastes of the users."""
    return [draw.choice("ABCD") for _ in range(ITEMS)], [draw.choice("ABCD") for _ in range(USERS)]


def tiles(least: int, most: int, chosen: bool = False, day: int = 1) -> pl.DataFrame:
    """Events of a radio app: one tile after another is seen, some stations are played."""
    draw, rows, at = random.Random(3), [], START
    kinds, tastes = people(draw)
    for _ in range(1500):
        at += draw.randrange(100, 600)
        user, now = draw.randrange(USERS), at
        for item in draw.sample(range(ITEMS), 8):
            likes = kinds[item] == tastes[user]
            if chosen and not likes and draw.random() < 0.6:
                continue
            now += draw.randint(least, most)
            kinds_of = [("tile", 0)]
            if draw.random() < (0.5 if likes else 0.08):
                kinds_of.append(("played", draw.randint(1, 4)))
                if draw.random() < 0.3:
                    kinds_of.append(("heart", draw.randint(20, 90)))
            for kind, wait in kinds_of:
                now += wait
                rows.append((now // day * day, kind, f"u{user}", f"s{item}", kinds[item]))
    names = ["at", "what", "who", "station", "genre"]
    return pl.DataFrame(rows, schema=names, orient="row").sort("at", maintain_order=True)


def lists(seen: float, by_taste: bool = False) -> pl.DataFrame:
    """Impressions of which some were seen, and some of these played; hearts come of playing."""
    draw, rows, at = random.Random(3), [], START
    kinds, tastes = people(draw)
    for request in range(1500):
        at += draw.randrange(100, 600)
        user = draw.randrange(USERS)
        for item in draw.sample(range(ITEMS), 8):
            likes = kinds[item] == tastes[user]
            saw = draw.random() < (seen + 0.3 * (likes - 0.25) if by_taste else seen)
            played = saw and draw.random() < (0.5 if likes else 0.08)
            flags = (int(saw), int(played), int(played and draw.random() < 0.3))
            rows.append((at, f"r{request}", f"u{user}", f"s{item}", kinds[item], *flags))
    names = ["at", "list", "who", "station", "genre", "seen", "played", "heart"]
    return pl.DataFrame(rows, schema=names, orient="row")


def drafted(frame: pl.DataFrame, folder: Path, hide: bool) -> tuple[Draft, dict[str, str]]:
    """The draft of a log, under names that say nothing where `hide`; its columns' names."""
    names = {name: f"x{at}" if hide else name for at, name in enumerate(frame.columns)}
    frame.rename(names).write_csv(folder / "log.csv")
    return draft(place(str(folder)), "my"), names


def weights(made: Draft) -> dict[str, Any]:
    """Of each task that is no number's: what its label reads -> its weight in the score."""
    found = {}
    for task in made.values["contract"]["tasks"].values():
        label = task["label"]
        if "score_weight" in task:
            [of] = label.get("events", [label.get("column", label["rule"])])
            found[of] = task["score_weight"]
    return found


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (tiles(1, 5), {"played": 1, "heart": 1}),  # so quickly nobody opens things
        (tiles(20, 200), {"impression": 0, "played": 1, "heart": 1}),  # drawn at random
        (tiles(20, 200, chosen=True), {"impression": 1, "played": 1, "heart": 1}),
        # Times of whole days do not tell that a day's tiles were one list.
        (tiles(20, 200, chosen=True, day=86_400), {"impression": 1, "played": 1, "heart": 1}),
    ],
    ids=["quick", "drawn", "chosen", "days"],
)
@pytest.mark.parametrize("hide", [False, True])
def test_seeing_is_scored_only_where_it_tells_a_choice(log, expected, hide, tmp_path):
    made, _ = drafted(log, tmp_path, hide)

    assert weights(made) == expected
    assert ("negatives" in made.values["pipeline"]) == ("impression" in expected)


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize(
    ("log", "weight"),
    [(lists(0.9), 0), (lists(0.6), 0), (lists(0.6, by_taste=True), 1)],
    ids=["nearly all", "by chance", "by taste"],
)
def test_a_flag_of_what_was_seen_is_no_term_of_the_score(log, weight, hide, tmp_path):
    made, names = drafted(log, tmp_path, hide)

    assert weights(made) == {names["seen"]: weight, names["played"]: 1, names["heart"]: 1}


@pytest.mark.parametrize("hide", [False, True])
def test_a_flag_of_nearly_all_rows_without_which_nothing_happens_is_no_feature(hide, tmp_path):
    made, names = drafted(lists(0.98), tmp_path, hide)

    assert weights(made) == {names["played"]: 1, names["heart"]: 1}
    assert "is never 1" in made.left_out[names["seen"]]
    read = {one.get("column", name) for name, one in made.values["contract"]["features"].items()}
    assert names["seen"] not in read


def test_clicks_of_which_orders_come_are_a_choice_though_often(tmp_path):
    # Kinds and tastes alone decide: neither users nor items differ in how often they play.
    made, _ = drafted(lists(1.0).drop("seen"), tmp_path, hide=False)

    assert weights(made) == {"played": 1, "heart": 1}


WORDS = {(0, 0): "ignored", (1, 0): "opened", (1, 1): "loved"}


def told_in_words(frame: pl.DataFrame) -> pl.DataFrame:
    """A log whose flags are one column of words."""
    pairs = zip(frame["played"], frame["heart"], strict=True)
    words = pl.Series("outcome", [WORDS[pair] for pair in pairs])
    return frame.with_columns(words).drop("seen", "played", "heart")


@pytest.mark.parametrize("hide", [False, True])
def test_words_for_what_came_of_a_row_are_labels(hide, tmp_path):
    made, names = drafted(told_in_words(lists(1.0)), tmp_path, hide)

    word = names["outcome"]
    derive = made.values["pipeline"]["log"]["derive"]
    assert derive[f"{word}_any"] == {"flag": word, "ones": ["opened", "loved"]}
    assert derive[f"{word}_loved"] == {"flag": word, "ones": ["loved"]}
    assert weights(made) == {f"{word}_any": 1, f"{word}_loved": 1}
    assert "are labels" in made.left_out[word]
    read = {one.get("column", name) for name, one in made.values["contract"]["features"].items()}
    assert word not in read


def strangers() -> pl.DataFrame:
    """Impressions without user ids: what is known of them, a click, and a word that tells it."""
    draw, rows, at = random.Random(5), [], START
    kinds = [draw.choice("ABC") for _ in range(80)]
    for _ in range(5000):
        at += draw.randrange(10, 200)
        who = [draw.choice(("f", "m", "x")), draw.choice(("young", "middle", "old"))]
        who.append(draw.choice(("north", "south", "east")))
        item = draw.randrange(80)
        click = draw.random() < (0.4 if (kinds[item] == "A") == (who[0] == "f") else 0.1)
        word = draw.choice(("opened", "kept")) if click else "ignored"
        rows.append((at, *who, f"j{item}", kinds[item], int(click), word))
    names = ["at", "sex", "age", "region", "job", "field", "clicked", "outcome"]
    return pl.DataFrame(rows, schema=names, orient="row")


@pytest.mark.parametrize("hide", [False, True])
def test_users_without_ids_are_not_told_apart_by_the_outcome(hide, tmp_path):
    made, names = drafted(strangers(), tmp_path, hide)

    log = made.values["pipeline"]["log"]
    joined = log["derive"][log["columns"]["user"]]["join"]
    assert set(joined) == {names[one] for one in ("sex", "age", "region")}
    assert weights(made) == {names["clicked"]: 1}
    assert "can be known only afterwards" in made.left_out[names["outcome"]]


@pytest.mark.parametrize("hide", [False, True])
def test_words_are_labels_beside_a_flag_of_what_was_seen(hide, tmp_path):
    log = lists(0.8).join(
        told_in_words(lists(0.8)).select("at", "station", "outcome"), on=["at", "station"]
    )
    made, names = drafted(log.drop("played", "heart"), tmp_path, hide)

    word = names["outcome"]
    assert weights(made) == {names["seen"]: 0, f"{word}_any": 1, f"{word}_loved": 1}
    assert word in made.left_out
    recent = made.values["contract"]["features"]["recent_items"]
    assert recent["history"]["events"] == [f"{word}_any"]
    assert made.values["contract"]["tasks"][f"{word}_any".lower()]["group"] == "engagement"


@pytest.mark.parametrize("hide", [False, True])
def test_a_word_that_no_outcome_comes_with_is_a_feature(hide, tmp_path):
    draw = random.Random(9)
    reasons = draw.choices(["similar", "new", "popular"], [6, 2, 2], k=12_000)
    log = lists(0.9).with_columns(pl.Series("reason", reasons))
    made, names = drafted(log, tmp_path, hide)

    read = {one.get("column", name) for name, one in made.values["contract"]["features"].items()}
    assert names["reason"] in read
    assert set(weights(made)) == {names[one] for one in ("seen", "played", "heart")}


@pytest.mark.parametrize("nothing", [None, "0", "0:00"])
@pytest.mark.parametrize("hide", [False, True])
def test_numbers_of_two_event_types_in_two_columns_are_one_column_of_values(
    hide, nothing, tmp_path
):
    """Rows without a number have none, or 0; seconds may be written as `3:05`."""
    draw, log = random.Random(9), tiles(1, 5)
    seconds = [draw.randint(5, 900) if what == "played" else None for what in log["what"]]
    stars = [draw.randint(1, 5) if what == "heart" else None for what in log["what"]]
    spell = str if nothing != "0:00" else lambda one: f"{one // 60}:{one % 60:02}"
    texts = [nothing if one is None else spell(one) for one in seconds]
    none = None if nothing is None else "0"
    log = log.with_columns(
        pl.Series("seconds", texts),
        pl.Series("stars", [none if one is None else str(one) for one in stars]),
    )
    made, names = drafted(log, tmp_path, hide)

    source = made.values["pipeline"]["log"]
    value = source["columns"]["value"]
    numbers = [names["seconds"], names["stars"]]
    zeros = {} if nothing is None else {"empty": ["0"]}
    assert source["derive"][value] == {"coalesce": numbers} | zeros
    if nothing == "0:00":
        assert source["derive"][numbers[0]] == {"number": numbers[0]}
    tasks = made.values["contract"]["tasks"]
    assert [tasks[one]["label"]["events"] for one in numbers] == [["played"], ["heart"]]
    assert [tasks[one]["label"]["aggregate"] for one in numbers] == ["sum", "max"]
    job.run(made.config(), tmp_path, tmp_path / "examples")
    examples = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    found = examples[f"label/{numbers[1]}"].drop_nulls()
    assert set(found.unique()) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    assert found.max() == 5.0
    assert examples[f"label/{numbers[0]}"].max() == max(one for one in seconds if one is not None)


def test_of_two_numbers_in_one_row_one_is_a_label_and_the_other_no_feature(tmp_path):
    draw, log = random.Random(9), tiles(1, 5)
    is_played = pl.Series([what == "played" for what in log["what"]])
    for name, most in (("seconds", 900), ("kilobytes", 9000)):
        numbers = pl.Series(name, [draw.randint(5, most) for _ in range(len(log))])
        log = log.with_columns(pl.when(is_played).then(numbers).alias(name))
    made, _ = drafted(log, tmp_path, False)
    assert made.values["pipeline"]["log"]["columns"]["value"] == "seconds"
    assert "a number in 'seconds' too" in made.left_out["kilobytes"]
    assert "kilobytes" not in made.values["contract"]["features"]


def test_dwell_lasts_from_the_start_and_not_from_the_last_event(tmp_path):
    draw, rows, now = random.Random(4), [], START
    for visit in range(700):
        now += draw.randrange(3600, 9000)
        user = draw.randrange(120)
        for item in draw.sample(range(100), 3):
            for what, lasts in (("start", draw.randint(600, 1500)), ("stop", draw.randint(5, 40))):
                rows.append((now, what, f"u{user}", f"e{item}", f"v{visit}"))
                now += lasts
                if what == "stop" and draw.random() < 0.2:
                    rows.append((now, "subscribe", f"u{user}", f"e{item}", f"v{visit}"))
                    now += 5
    names = ["at", "what", "who", "episode", "visit"]
    made, _ = drafted(pl.DataFrame(rows, schema=names, orient="row"), tmp_path, hide=False)

    assert made.values["contract"]["tasks"]["dwell"]["label"]["cap"] == "30m"
