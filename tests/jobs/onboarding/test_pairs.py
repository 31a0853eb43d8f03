"""`multigate init` gives weights to pairs of values that tell more than each of the two."""

import math
import random

import polars as pl
import pytest
from tests.jobs.onboarding.test_past_rates import drafted

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.drafted import as_yaml

START = 1_700_000_000
COUNTRIES, TOPICS = ("at", "be", "cz", "dk"), ("war", "love", "fun", "crime", "home")
ITEMS, USERS = 300, 400


def clicks(seed: int = 0, together: float = 0.3, apart: float = 0.15) -> pl.DataFrame:
    """Rows whose clicks depend on the user's country and the item's topic together, and on each.

    Nothing depends on the device and the colour together.
    """
    draw, rows = random.Random(seed), []
    topics = [draw.choice(TOPICS) for _ in range(ITEMS)]
    colours = [draw.choice(("red", "blue", "green")) for _ in range(ITEMS)]
    countries = [draw.choice(COUNTRIES) for _ in range(USERS)]
    liked = {country: set(draw.sample(TOPICS, 2)) for country in COUNTRIES}
    for _ in range(9000):
        user, item = draw.randrange(USERS), draw.randrange(ITEMS)
        device = draw.choice(("phone", "desktop"))
        chance = 0.1 + together * (topics[item] in liked[countries[user]])
        chance += apart * (countries[user] == "at") + apart * (topics[item] == "war")
        chance += apart * (device == "phone") + apart * (colours[item] == "red")
        rows.append(
            {
                "at": START + draw.randrange(40 * 86_400),
                "user": f"u{user}",
                "item": f"i{item}",
                "country": countries[user],
                "device": device,
                "topic": topics[item],
                "colour": colours[item],
                "click": int(draw.random() < chance),
            }
        )
    return pl.DataFrame(rows).sort("at", maintain_order=True)


def test_two_values_that_tell_more_together_have_weights(tmp_path):
    made = drafted(clicks(), tmp_path / "log")
    wide = made.values["model"]["wide"]
    pairs = {"crosses": 16_384, "crosses_rate": 4.0, "pairs": [["country", "topic"]]}
    assert wide == {"embeddings": 10.0} | pairs
    assert "country and topic" in made.notes["model.wide"]
    assert "t values: country and topic" in as_yaml(made, tmp_path / "log")
    assert not check(made.config(), tmp_path / "log").fails


@pytest.mark.parametrize("seed", range(5))
def test_what_each_tells_alone_is_no_pair(seed, tmp_path):
    made = drafted(clicks(seed, together=0), tmp_path / "log")
    assert made.values["model"]["wide"] == {"embeddings": 10.0}


@pytest.mark.parametrize("seed", range(5))
def test_effects_that_add_up_in_logits_are_no_pair(seed, tmp_path):
    """Their chances do not add up: what raises a high chance raises a low one less."""
    draw, log = random.Random(seed), clicks(seed)
    effects = {
        name: {value: draw.gauss(0, 1.5) for value in log[name].unique().sort().to_list()}
        for name in ("country", "device", "topic", "colour")
    }
    logit = [
        -1 + sum(effects[name][row[name]] for name in effects) for row in log.iter_rows(named=True)
    ]
    chosen = [int(draw.random() < 1 / (1 + math.exp(-one))) for one in logit]
    made = drafted(log.with_columns(click=pl.Series(chosen)), tmp_path / "log")
    assert made.values["model"]["wide"] == {"embeddings": 10.0}


def test_rare_labels_that_say_nothing_take_no_pair_away(tmp_path):
    """Of eight tasks seven are noise: their mean hides what the eighth says beyond all chance."""
    draw, log = random.Random(4), clicks(together=0.5)
    rare = {
        name: pl.Series([int(draw.random() < 0.02) for _ in range(len(log))])
        for name in ("like", "share", "follow", "save", "comment", "report", "hide")
    }
    made = drafted(log.with_columns(**rare), tmp_path / "log")
    assert len([one for one in made.values["contract"]["tasks"] if one in rare]) == len(rare)
    assert made.values["model"]["wide"]["pairs"] == [["country", "topic"]]


def test_which_way_a_pair_goes_does_not_matter(tmp_path):
    """What users of a country avoid counts as what they like."""
    log = clicks().with_columns(click=1 - pl.col("click"))
    assert drafted(log, tmp_path / "log").values["model"]["wide"]["pairs"] == [["country", "topic"]]


def test_a_pair_whose_effect_ends_is_none(tmp_path):
    """In the later half, other countries like other topics: what the first half says is wrong."""
    early, late = clicks(), clicks(seed=5)
    log = pl.concat([early.head(3600), late.slice(3600)])
    pairs = drafted(log, tmp_path / "log").values["model"]["wide"].get("pairs", [])
    assert ["country", "topic"] not in pairs


def test_a_pair_that_another_has_said_is_none(tmp_path):
    """A copy of the topic in which a quarter of the items has another one, and the region."""
    draw, log = random.Random(3), clicks()
    other = {f"i{i}": draw.choice(TOPICS) if draw.random() < 0.25 else None for i in range(ITEMS)}
    region = {"at": "north", "be": "north", "cz": "south", "dk": "south"}
    log = log.with_columns(
        pl.coalesce(pl.col("item").replace_strict(other), "topic").alias("like_topic"),
        pl.col("country").replace_strict(region).alias("region"),
    )
    made = drafted(log, tmp_path / "log")
    assert {"like_topic", "region"} <= made.values["contract"]["features"].keys()
    assert made.values["model"]["wide"]["pairs"] == [["country", "topic"]]


def test_pairs_that_have_room_together_are_drafted(monkeypatch, tmp_path):
    """The most telling one first; another one, which tells as surely, has no room beside it."""
    log = clicks()
    draw = random.Random(9)
    chance = {
        (device, colour): draw.random() for device in ("phone", "desktop") for colour in "rbg"
    }
    more = [
        draw.random() < chance[device, colour[0]]
        for device, colour in log[["device", "colour"]].iter_rows()
    ]
    log = log.with_columns(
        click=pl.when(pl.Series([draw.random() < 0.5 for _ in more]))
        .then(pl.Series(more).cast(pl.Int64))
        .otherwise("click")
    )
    both = drafted(log, tmp_path / "log").values["model"]["wide"]["pairs"]
    assert sorted(both) == [["country", "topic"], ["device", "colour"]]
    monkeypatch.setattr("multigate.jobs.onboarding.pairs._ROOM", 21)
    one = drafted(log, tmp_path / "again").values["model"]["wide"]["pairs"]
    assert one == both[:1]
