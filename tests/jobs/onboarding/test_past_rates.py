"""`multigate init` gives users a rate of their own in the categories that they have tastes in."""

import math
import random
from pathlib import Path

import polars as pl
import pytest

from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.past_rates import tastes
from multigate.jobs.onboarding.sample import label_sample

START = 1_700_000_000
TOPICS = ("war", "love", "fun", "crime", "home", "pets")
ITEMS = 300


def clicks(seed: int = 0, taste: float = 0.4, habit: float = 0.2) -> pl.DataFrame:
    """Lists of four items; a user clicks more often on two topics, and some users on all.

    Topics differ in how often all users click on them, and so do colours, which nobody has a taste
    in.  The second of an item's tags is drawn.
    """
    draw, rows = random.Random(seed), []
    topics = [draw.choice(TOPICS) for _ in range(ITEMS)]
    colours = [draw.choice(("red", "blue", "green")) for _ in range(ITEMS)]
    others = [draw.choice(TOPICS) for _ in range(ITEMS)]
    habits = [draw.random() * habit for _ in range(120)]
    tastes = [set(draw.sample(TOPICS, 2)) for _ in range(120)]
    for request in range(2500):
        user, at = draw.randrange(120), START + draw.randrange(40 * 86_400)
        for item in draw.sample(range(ITEMS), 4):
            chance = 0.05 + habits[user] + taste * (topics[item] in tastes[user])
            chance += 0.1 * (topics[item] == "war") + 0.1 * (colours[item] == "red")
            rows.append(
                {
                    "at": at,
                    "request": f"r{request}",
                    "user": f"u{user}",
                    "item": f"i{item}",
                    "colour": colours[item],
                    "topic": topics[item],
                    "tags": f"{topics[item]}|{others[item]}",
                    "click": int(draw.random() < chance),
                }
            )
    return pl.DataFrame(rows).sort("at", maintain_order=True)


def drafted(log: pl.DataFrame, folder: Path) -> Draft:
    folder.mkdir()
    log.write_csv(folder / "log.csv")
    return draft(folder, "x")


def rated(made: Draft) -> list[str]:
    """The categories that a draft gives users a rate in."""
    return [of[1] for of in made.values["contract"]["rates"]["of"] if isinstance(of, list)]


def test_a_taste_is_found_and_what_all_users_like_is_none(tmp_path):
    made = drafted(clicks().drop("tags"), tmp_path / "log")
    assert rated(made) == ["topic"]
    assert "t values: topic" in made.notes["contract.rates"]
    assert not check(made.config(), tmp_path / "log").fails


@pytest.mark.parametrize("seed", range(6))
def test_without_tastes_there_is_no_such_rate(seed, tmp_path):
    """Users differ in how often they click, categories in how often they are clicked on."""
    made = drafted(clicks(seed, taste=0).drop("tags"), tmp_path / "log")
    assert rated(made) == []
    assert made.values["contract"]["rates"]["of"] == ["user", "item"]


def test_a_taste_of_other_users_is_none(tmp_path):
    """The same log, in which each click is of a user drawn anew."""
    log = clicks().drop("tags")
    users = log.select("request", "user").unique(maintain_order=True)
    users = users.with_columns(pl.col("user").shuffle(seed=1).alias("other"))
    log = log.join(users, on=["request", "user"]).drop("user").rename({"other": "user"})
    assert rated(drafted(log, tmp_path / "log")) == []


def test_the_mood_of_one_list_is_no_taste(tmp_path):
    """What is clicked beside a row, some seconds before it, is not its past."""
    draw, rows = random.Random(4), []
    for request in range(1200):
        user, at = draw.randrange(120), START + draw.randrange(40 * 86_400)
        mood = draw.choice(TOPICS)
        for place, item in enumerate(draw.sample(range(ITEMS), 12)):
            shown = {"at": at + 3 * place, "request": f"r{request}", "user": f"u{user}"}
            topic = TOPICS[item % 6]
            click = draw.random() < (0.8 if topic == mood else 0.1)
            rows.append(shown | {"item": f"i{item}", "topic": topic, "click": int(click)})
    made = drafted(pl.DataFrame(rows).sort("at", maintain_order=True), tmp_path / "log")
    assert made.values["contract"]["features"]["topic"]["side"] == "item"
    assert rated(made) == []


@pytest.mark.parametrize("taste", [0.5, 0.0])
def test_a_taste_is_found_among_users_who_differ_much(taste, tmp_path):
    """Most users hardly click, and some on nearly all; each half as often again on two topics."""
    draw, rows = random.Random(6), []
    habits = [draw.random() ** 4 for _ in range(400)]
    tastes = [set(draw.sample(TOPICS, 2)) for _ in range(400)]
    for at in range(12_000):
        user, item = draw.randrange(400), draw.randrange(ITEMS)
        topic = TOPICS[item % 6]
        click = draw.random() < habits[user] * (1 + taste * (topic in tastes[user]))
        shown = {"at": START + 300 * at, "user": f"u{user}", "item": f"i{item}", "topic": topic}
        rows.append(shown | {"click": int(click)})
    assert rated(drafted(pl.DataFrame(rows), tmp_path / "log")) == (["topic"] if taste else [])


@pytest.mark.parametrize("taste", [0.8, 0.0])
def test_who_likes_much_likes_most_what_all_like(taste, tmp_path):
    """Users and topics each have an effect on the logit, as in most worlds; that is no taste."""
    draw, rows = random.Random(8), []
    habits = [draw.gauss(-3, 1.2) for _ in range(300)]
    liked = {topic: 0.9 * place for place, topic in enumerate(TOPICS, start=-2)}
    tastes = [{topic: draw.gauss(0, taste) for topic in TOPICS} for _ in range(300)]
    for at in range(12_000):
        user, item = draw.randrange(300), draw.randrange(ITEMS)
        topic = TOPICS[item % 6]
        logit = habits[user] + liked[topic] + tastes[user][topic]
        shown = {"at": START + 300 * at, "user": f"u{user}", "item": f"i{item}", "topic": topic}
        rows.append(shown | {"click": int(draw.random() < 1 / (1 + math.exp(-logit)))})
    assert rated(drafted(pl.DataFrame(rows), tmp_path / "log")) == (["topic"] if taste else [])


def test_a_category_of_which_each_user_sees_one_is_no_taste(tmp_path):
    """The user's rate in it is the user's rate."""
    log = clicks(taste=0, habit=0.8).drop("tags", "topic", "colour")
    country = pl.col("user").str.slice(1).cast(pl.Int64) % 4
    item = 4 * pl.col("item").str.slice(1).cast(pl.Int64) + country
    log = log.with_columns(country=pl.format("c{}", country), item=pl.format("i{}", item))
    folder = tmp_path / "log"
    folder.mkdir()
    log.drop("country").write_csv(folder / "log.csv")
    log.select("item", "country").unique(maintain_order=True).write_csv(folder / "items.csv")
    made = draft(folder, "x")
    assert made.values["contract"]["features"]["country"]["kind"] == "id"
    assert rated(made) == []


def test_the_mood_of_a_visit_is_no_taste_before_labels_have_closed(tmp_path):
    """A rate reads closed labels, and so clicks of some minutes ago tell it nothing."""
    draw, rows = random.Random(5), []
    for _ in range(700):
        user, at = draw.randrange(60), START + draw.randrange(40 * 86_400)
        mood = draw.choice(TOPICS)
        for place in range(20):
            item = draw.randrange(ITEMS)
            one = {"user": f"u{user}", "item": f"i{item}", "topic": TOPICS[item % 6]}
            rows.append({"at": at + 20 * place, "what": "view", **one})
            if draw.random() < (0.8 if one["topic"] == mood else 0.1):
                rows.append({"at": at + 20 * place + 5, "what": "click", **one})
    made = drafted(pl.DataFrame(rows).sort("at", maintain_order=True), tmp_path / "log")
    assert made.values["contract"]["tasks"]["click"]["label"]["within"]
    assert rated(made) == []


def test_a_task_of_one_class_has_no_say(tmp_path):
    """Nobody buys in the training split."""
    log = clicks().drop("tags").with_row_index("row")
    buys = (pl.col("row") > 9500) & (pl.col("click") == 1) & (pl.col("row") % 3 == 0)
    log = log.with_columns(buy=buys.cast(pl.Int64)).drop("row")
    made = drafted(log, tmp_path / "log")
    made.values["contract"]["rates"]["of"] = ["user", "item"]  # as before the choice
    config = made.config()
    assert set(config.contract.tasks) == {"click", "buy"}
    labelled = label_sample(config, tmp_path / "log", 100_000)
    assert labelled is not None
    rows = labelled.impressions.filter(labelled.splits == "train")
    assert rows["label/buy"].sum() == 0
    unknown = rows.with_columns(pl.lit(None, rows["label/buy"].dtype).alias("label/buy"))
    assert tastes(config, rows) == tastes(config, unknown) != {}


@pytest.mark.parametrize("name", ["at", "closed", "user", "category", "label"])
def test_a_category_of_any_name(name, tmp_path):
    log = clicks().drop("tags").rename({"at": "time", "user": "member", "topic": name})
    assert rated(drafted(log, tmp_path / "log")) == [name]


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("item_click_count", ["user", ["user", "topic"]]),
        ("user_click_rate", ["item"]),
        ("user_topic_click_rate", ["user", "item"]),
    ],
)
def test_a_column_that_is_named_as_a_rate_would_be(name, of, tmp_path):
    log = clicks().drop("tags").with_row_index("row")
    log = log.with_columns((pl.col("row") * 7919 % 1000).alias(name)).drop("row")
    made = drafted(log, tmp_path / "log")
    assert name in {**made.values["contract"]["features"], **made.values["contract"]["tasks"]}
    assert made.values["contract"]["rates"]["of"] == of
    assert not check(made.config(), tmp_path / "log").fails


@pytest.mark.parametrize("taste", [0.4, 0.0])
def test_the_first_of_a_list_is_a_category_where_users_have_tastes(taste, tmp_path):
    made = drafted(clicks(taste=taste).drop("topic"), tmp_path / "log")
    derive = made.values["pipeline"]["log"].get("derive", {})
    features = made.values["contract"]["features"]
    if taste:
        assert rated(made) == ["main_tags"]
        assert derive["main_tags"] == {"first": "tags"}
        assert features["main_tags"]["kind"] == "id"
    else:
        assert rated(made) == []
        assert "main_tags" not in {**derive, **features}
        assert "contract.features.main_tags" not in made.notes
    assert not check(made.config(), tmp_path / "log").fails


def test_what_another_category_has_said_is_not_said_again(tmp_path):
    """Copies of the topic, in which a share of the items has another one."""
    draw, log = random.Random(2), clicks().drop("tags")
    for share in (0.1, 0.2, 0.3, 0.4):
        other = {
            f"i{item}": draw.choice(TOPICS) if draw.random() < share else None
            for item in range(ITEMS)
        }
        log = log.with_columns(
            pl.coalesce(pl.col("item").replace_strict(other), "topic").alias(
                f"like{10 * share:.0f}"
            )
        )
    assert rated(drafted(log, tmp_path / "log")) == ["topic"]


def test_at_most_three_categories_the_strongest_first(tmp_path):
    """Users have tastes in four; the first tells most, and each tells what the others do not."""
    draw, rows = random.Random(3), []
    weights = {"kind0": 0.8, "kind1": 1.6, "kind2": 1.3, "kind3": 1.1}
    kinds = [{name: draw.choice(TOPICS) for name in weights} for _ in range(ITEMS)]
    tastes = [
        {name: {topic: draw.gauss(0, weights[name]) for topic in TOPICS} for name in weights}
        for _ in range(120)
    ]
    for at in range(16_000):
        user, item = draw.randrange(120), draw.randrange(ITEMS)
        logit = -1 + sum(tastes[user][name][kind] for name, kind in kinds[item].items())
        shown = {"at": START + 200 * at, "user": f"u{user}", "item": f"i{item}", **kinds[item]}
        rows.append(shown | {"click": int(draw.random() < 1 / (1 + math.exp(-logit)))})
    found = rated(drafted(pl.DataFrame(rows), tmp_path / "log"))
    assert found == ["kind1", "kind2", "kind3"]


@pytest.mark.parametrize("taste", [True, False])
def test_users_who_come_back_to_a_category(taste, tmp_path):
    """Of views alone, whose negatives are drawn, and of likes, which come by chance."""
    draw, rows = random.Random(7), []
    topics = [TOPICS[item % 6] for item in range(ITEMS)]
    for _ in range(2500):
        user, at = draw.randrange(120), START + draw.randrange(40 * 86_400)
        item = draw.randrange(ITEMS)
        if taste and draw.random() < 0.6:
            item = 6 * draw.randrange(ITEMS // 6) + user % 6
        seen = {"user": f"u{user}", "item": f"i{item}", "topic": topics[item]}
        rows.append({"at": at, "what": "view", **seen})
        if draw.random() < 0.2:
            rows.append({"at": at + 20, "what": "like", **seen})
    made = drafted(pl.DataFrame(rows).sort("at", maintain_order=True), tmp_path / "log")
    assert made.values["pipeline"]["negatives"]["per_positive"] == 4
    assert rated(made) == (["topic"] if taste else [])


def test_items_without_a_category_have_one_in_common(tmp_path):
    empty = pl.col("topic").is_in(["war", "love"])
    log = clicks().drop("tags").with_columns(topic=pl.when(empty).then(None).otherwise("topic"))
    made = drafted(log, tmp_path / "log")
    assert rated(made) == ["topic"]
    assert not check(made.config(), tmp_path / "log").fails
