"""`multigate init`: which column of a log holds event types, and what a log of events tells."""

import random
from pathlib import Path

import polars as pl
import pytest

from multigate.configs.storage import place
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.feedback.labels import Labels
from multigate.jobs.onboarding.feedback.ratings import add_rating
from multigate.jobs.onboarding.tables.columns import look
from multigate.jobs.onboarding.tables.event_types import event_types
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01


def listening(seed: int = 4) -> pl.DataFrame:
    """Lists of three episodes, of which some are heard to a share, rated or hidden.

    Rows come in the order in which they arrived, some of them hours late, and some twice.
    """
    draw, rows = random.Random(seed), []
    out = [draw.randrange(20 * 86_400) for _ in range(100)]
    for at in range(1500):
        user, first = draw.randrange(120), START + 21 * 86_400 + 900 * at
        for tile, episode in enumerate(draw.sample(range(100), 3)):
            lines = [(first + 0.4 * tile, "offered", None)]
            if draw.random() < 0.4:
                share = 100.0 if draw.random() < 0.5 else round(draw.uniform(1, 99), 1)
                lines.append((first + 9.0, "heard", share))
                if draw.random() < 0.1:
                    lines.append((first + 40.0, "hidden", None))
            mood = draw.choice(["calm", "glad", "odd"])
            listed = START + out[episode] + 0.0
            for time, kind, share in lines:
                late = draw.expovariate(1) + (draw.random() < 0.02) * draw.randrange(3 * 3600)
                row = (time, f"u{user}", episode + 500, tile + 1, mood, listed, kind, share)
                arrivals = [time + late + again for again in range(1 + (draw.random() < 0.03))]
                rows += [(round(arrival, 3), *row) for arrival in arrivals]
    names = ["recv", "at", "who", "episode", "tile", "mood", "listed", "what", "share"]
    return pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None).sort("recv")


@pytest.fixture(scope="module")
def podcast(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Path]:
    folder = tmp_path_factory.mktemp("podcast")
    listening().write_csv(folder / "log.tsv", separator="\t")
    return draft(place(str(folder)), "my"), folder


def test_a_row_happened_at_the_earlier_of_two_times(podcast):
    made, _ = podcast
    assert made.values["pipeline"]["log"]["columns"]["time"] == "at"
    assert made.left_out["recv"] == "it holds times"
    assert made.values["contract"]["features"]["listed"]["age"] == "s"


def test_rows_that_came_twice_count_once(podcast, tmp_path):
    """They agree in all but the time of their arrival, which nothing reads."""
    made, folder = podcast
    job.run(made.config(), folder, tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows.select("who", "episode", "meta/time").is_unique().all()
    shares = rows["label/share"].drop_nulls()
    assert shares.max() == 100  # the highest of several, not their sum


def test_places_of_an_event_log_are_no_context(podcast):
    made, _ = podcast
    tile = made.values["contract"]["features"]["tile"]
    assert tile["kind"] == "position"
    assert made.values["contract"]["features"]["mood"]["side"] == "context"


def test_what_is_hidden_is_unwelcome(podcast):
    tasks = podcast[0].values["contract"]["tasks"]
    assert {name: tasks[name]["score_weight"] for name in ("heard", "hidden")} == {
        "heard": 1,
        "hidden": -1,
    }
    assert "transform" not in tasks["share"]


def test_an_event_that_comes_with_another_one_is_no_task_of_its_own(tmp_path):
    """As a score that comes with every test that was completed; the score itself is a task."""
    heard = pl.col("what") == "heard"
    score = pl.when("ended").then(pl.col("share")).alias("share")
    log = listening().with_columns(ended=pl.lit(False))
    ended = log.filter(heard).with_columns(pl.col("at") + 1, what=pl.lit("ended"), ended=True)
    log = pl.concat([log, ended]).with_columns(score).drop("ended", "recv").sort("at")
    log.write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    tasks = made.values["contract"]["tasks"]
    assert "ended" not in tasks
    assert tasks["heard"]["label"]["events"] == ["heard"]
    assert tasks["share"]["label"]["events"] == ["ended"]
    assert "'ended' comes with 'heard'" in made.notes["pipeline.log.impression"]


def test_a_hidden_flag_is_unwelcome(tmp_path):
    draw = random.Random(2)
    rows = [
        (START + 50 * at, f"u{draw.randrange(90)}", f"i{draw.randrange(60)}", draw.random())
        for at in range(5000)
    ]
    frame = pl.DataFrame(rows, schema=["when", "who", "what", "x"], orient="row").select(
        "when",
        "who",
        "what",
        opened=(pl.col("x") < 0.2).cast(pl.Int64),
        hidden=(pl.col("x") > 0.95).cast(pl.Int64),
    )
    frame.write_csv(tmp_path / "log.csv")
    tasks = draft(place(str(tmp_path)), "my").values["contract"]["tasks"]
    assert tasks["hidden"]["score_weight"] == -1
    assert tasks["opened"]["score_weight"] == 1


def seen(kinds: list[str]) -> pl.DataFrame:
    """Visits of few users to a few rooms, which each of them has soon entered many times."""
    draw, rows, at = random.Random(1), [], START
    for visit in range(600):
        user = f"u{draw.randrange(40)}"
        for room in draw.sample(range(30), 6):
            at += 60
            row = (user, f"room{room}", f"v{visit}")
            rows.append((at, *row, kinds[0]))
            if draw.random() < 0.4:
                rows.append((at + 5, *row, draw.choice(kinds[1:])))
    frame = pl.DataFrame(rows, schema=["at", "who", "what", "visit", "kind"], orient="row")
    return frame.with_columns(mood=pl.Series([draw.choice("abc") for _ in range(len(frame))]))


def types_of(frame: pl.DataFrame) -> tuple[str | None, str | None]:
    made = frame.with_columns(__time=pl.from_epoch("at").cast(pl.Datetime("us", "UTC")))
    columns = {name: look(name, frame[name]) for name in frame.columns}
    return event_types(made.sort("__time"), columns, ["who", "what", "visit"])[:2]


def test_types_are_told_from_words_that_follow_by_chance():
    """By the user alone, every mood and every room follows each other one."""
    frame = seen(["seen", "played", "heart"])
    assert types_of(frame) == ("kind", "seen")
    assert types_of(frame.drop("kind")) == (None, None)


def reading(words: dict[str, str], seed: int = 6) -> pl.DataFrame:
    """Articles opened from the front page; some saved, shared, rated or put away.

    Args:
        words: the event types' names.
    """
    draw, rows, at = random.Random(seed), [], START
    kinds = [draw.choice("abc") for _ in range(80)]
    tastes = [draw.choice("abc") for _ in range(150)]
    for visit in range(1800):
        user = draw.randrange(150)
        at += 700
        for article in draw.sample(range(80), 3):
            at += draw.randrange(60, 200)
            likes = kinds[article] == tastes[user]
            lines = [(at, "view", None)]
            if draw.random() < (0.4 if likes else 0.1):
                lines.append((at + 20, "save", None))
            if draw.random() < (0.15 if likes else 0.03):
                lines.append((at + 30, "share", None))
            away = draw.random() < (0.03 if likes else 0.2)
            if away:
                lines.append((at + 35, "away", None))
            if draw.random() < 0.3:
                stars = draw.choice([4, 5, 5] if likes and not away else [1, 2, 2, 3, 4])
                lines.append((at + 40, "rate", stars))
            for time, kind, value in lines:
                rows.append((time, f"u{user}", f"v{visit}", article + 300, words[kind], value))
    names = ["at", "who", "visit", "article", "what", "value"]
    return pl.DataFrame(rows, schema=names, orient="row").sort("at", maintain_order=True)


def worded(*words: str) -> dict[str, str]:
    return dict(zip(("view", "save", "share", "away", "rate"), words, strict=True))


@pytest.mark.parametrize(
    "words",
    [
        worded("Seite geöffnet", "gemerkt", "weitergeleitet", "weggewischt", "Sterne"),
        worded("página vista", "guardado", "enviado", "quitado", "valoración"),
        worded("просмотр", "сохранено", "отправлено", "убрано", "оценка"),
    ],
)
def test_types_need_no_words_that_are_known(words, tmp_path):
    """What follows the most frequent type is a task, and what goes with few stars counts against
    an item; the rarer half is satisfaction.
    """
    reading(words).write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    log = made.values["pipeline"]["log"]
    assert (log["impression"], log["columns"]["event"]) == (words["view"], "what")
    tasks = made.values["contract"]["tasks"]
    of = {
        task["label"]["events"][0]: (task["group"], task["score_weight"])
        for task in tasks.values()
        if task["label"].get("aggregate") is None and task["label"]["rule"] == "event"
    }
    assert of == {
        words["rate"]: ("engagement", 1),
        words["save"]: ("engagement", 1),
        words["away"]: ("satisfaction", -1),
        words["share"]: ("satisfaction", 1),
    }


def test_stars_of_events_are_high_by_the_rule_of_ratings(tmp_path):
    log = reading(worded("view", "save", "share", "away", "rate"))
    log.write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    tasks = made.values["contract"]["tasks"]
    stars = log["value"].drop_nulls()
    good = min(range(2, 6), key=lambda step: abs(float((stars >= step).mean()) - 0.5))
    assert tasks["value_high"] == {
        "group": "satisfaction",
        "type": "binary",
        "label": {"rule": "event", "events": ["rate"], "within": "10m", "aggregate": "max"},
        "at_least": good,
        "score_weight": 0,
    }
    assert "of those rated" in made.notes["contract.tasks.value_high"]
    job.run(made.config(), tmp_path, tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    rated = rows.filter(pl.col("label/rate") == 1)
    assert rated["label/value_high"].drop_nulls().to_list() == [
        float(value >= good) for value in rated["label/value"].drop_nulls()
    ]
    assert rows.filter(pl.col("label/rate") == 0)["label/value_high"].null_count() == len(
        rows.filter(pl.col("label/rate") == 0)
    )
    assert 0.3 < rated["label/value_high"].mean() < 0.7


def in_steps(stars: pl.Expr, top: float) -> pl.Expr:
    """Stars as a scale of many steps, from 0 to 10 or 100."""
    part = (pl.int_range(pl.len()) * 7 % 20).truediv(19.0)
    return ((stars - 1 + part) / 5 * top).round(0 if top == 100 else 1)


@pytest.mark.parametrize("top", [10, 100])
def test_a_scale_up_to_ten_or_a_hundred_is_high_as_stars_are(top, tmp_path):
    log = reading(worded("view", "save", "share", "away", "rate"))
    log = log.with_columns(value=in_steps(pl.col("value"), top))
    assert (log["value"].min(), log["value"].max()) == (0, top)
    log.write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    tasks = made.values["contract"]["tasks"]
    assert tasks["value"]["group"] == "satisfaction"
    assert tasks["value"]["label"]["aggregate"] == "max"
    assert "transform" not in tasks["value"]
    high = float((log["value"].drop_nulls() >= tasks["value_high"]["at_least"]).mean())
    assert 0.4 < high < 0.6
    assert f"by name a scale up to {top}" in made.notes["contract.tasks.value"]
    assert "about half of the rows" in made.notes["contract.tasks.value_high"]


def test_a_number_up_to_a_hundred_without_such_a_name_is_no_scale(tmp_path):
    """It may be the share of an article that was read; the draft says what else it may be."""
    log = reading(worded("view", "save", "share", "away", "read"))
    log = log.with_columns(value=(1.1 * in_steps(pl.col("value"), 100)).clip(0, 100))
    log.write_csv(tmp_path / "log.csv")
    made = draft(place(str(tmp_path)), "my")
    tasks = made.values["contract"]["tasks"]
    assert tasks["value"]["group"] == "engagement"
    assert "transform" not in tasks["value"]
    assert "value_high" not in tasks
    assert "if it is a rating" in made.notes["contract.tasks.value"]


def test_a_column_of_satisfaction_in_a_log_of_impressions_is_a_rating(tmp_path):
    """Some are asked afterwards; a column of another name stays a feature."""
    log = reading(worded("view", "save", "share", "away", "rate"))
    keys = ["who", "visit", "article"]
    done = {
        "saved": pl.col("what").eq("save").any().cast(pl.Int64),
        "satisfaction": pl.col("value").max(),
    }
    rows = log.group_by(keys, maintain_order=True).agg(pl.col("at").min(), **done)
    rows = rows.with_columns(satisfaction=in_steps(pl.col("satisfaction"), 100)).sort("at")
    for name in ("satisfaction", "charge"):
        (tmp_path / name).mkdir()
        rows.rename({"satisfaction": name}).write_csv(tmp_path / name / "log.csv")
        made = draft(place(str(tmp_path / name)), "my")
        tasks = made.values["contract"]["tasks"]
        is_task = name == "satisfaction"
        assert ("saved" in tasks, f"{name}_high" in tasks) == (True, is_task)
        assert (name in made.values["contract"]["features"]) != is_task
    assert tasks.keys() == {"saved"}


@pytest.mark.parametrize(
    ("steps", "weights", "good", "share"),
    [
        ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], 4, "about half"),
        ([1, 2, 3, 4, 5], [2, 3, 5, 20, 70], 5, "70%"),
        (list(range(1, 11)), [1, 1, 2, 3, 5, 8, 10, 9, 6, 3], 7, "about half"),
        ([at / 2 for at in range(1, 11)], [1] * 10, 3, "about half"),
        ([1, 2, 3], [1, 1, 1], 3, "33%"),
    ],
)
def test_high_ratings_are_those_nearest_to_half_and_their_share_is_told(
    steps, weights, good, share
):
    values = [step for step, n in zip(steps, weights, strict=True) for _ in range(30 * n)]
    rating, found = look("x", pl.Series("x", [f"{one:g}" for one in values])), Labels()
    add_rating(found, rating)
    assert found.tasks["x_high"]["at_least"] == good
    assert f"is at least {good:g}: {share} of the rows" in found.reasons["x_high"]
