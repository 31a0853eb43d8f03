"""`multigate init`: the draft fits the log, whatever its columns are called, and runs unedited."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from multigate.configs import DataError, load
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import _model, draft
from multigate.jobs.onboarding.drafted import Draft, as_yaml
from multigate.jobs.onboarding.feedback.labels import snake
from multigate.jobs.simulate import simulate
from multigate.pipeline import job
from multigate.verbs.command import main

DESKDROP = Path(__file__).parents[4] / "shared/data/deskdrop"
START = 1_700_000_000


@pytest.fixture(scope="module")
def impressions(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    folder = tmp_path_factory.mktemp("init") / "log"
    simulate(folder, seed=3, users=200, items=100, exposures=20_000)
    return pl.read_ndjson(folder / "log-*.jsonl", infer_schema_length=None)


def events(seed: int = 0) -> pl.DataFrame:
    """Sessions of users who open items, and like or save some of those that they opened."""
    draw, rows = random.Random(seed), []
    for session in range(1500):
        user, at = draw.randrange(120), START + draw.randrange(90 * 86_400)
        for _ in range(draw.randrange(1, 6)):
            item = draw.randrange(200)
            visit = {"who": user, "visit": f"s{session}", "place": "ABC"[user % 3]}
            rows.append({"when": at, "what": "open", "thing": item, **visit})
            for kind, chance in (("like", 0.2), ("save", 0.1)):
                if draw.random() < chance:
                    rows.append({"when": at + 20, "what": kind, "thing": item, **visit})
            at += draw.randrange(30, 600)
    return pl.DataFrame(rows).sort("when", maintain_order=True)


def ratings(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Ratings of users who rate several films in one sitting; and the films."""
    draw, rows = random.Random(seed), []
    for user in range(200):
        at = START + draw.randrange(200 * 86_400)
        for film in draw.sample(range(120), draw.randrange(10, 40)):
            rows.append((user + 1, film + 1, min(max(round(draw.gauss(3.5, 1)), 1), 5), at))
            at += draw.randrange(5, 60)
    draw.shuffle(rows)
    films = [
        (film + 1, f"The Film of Number {film}", "|".join(draw.sample(["war", "love", "fun"], 2)))
        for film in range(120)
    ]
    schema = ["a", "b", "c", "d"]
    return pl.DataFrame(rows, schema, orient="row"), pl.DataFrame(films, schema[:3], orient="row")


def plays(seed: int = 0) -> pl.DataFrame:
    """Songs that listeners hear to their end, or skip after some seconds."""
    draw, rows = random.Random(seed), []
    songs = [(f"s{at}", f"band {at // 8}", draw.choice(["rock", "jazz"])) for at in range(300)]
    lengths = [draw.randrange(120, 400) for _ in songs]
    for _ in range(1500):
        listener, at = f"l{draw.randrange(150)}", 1000 * (START + draw.randrange(60 * 86_400))
        for _ in range(draw.randrange(2, 12)):
            song = draw.randrange(300)
            played = lengths[song] if draw.random() < 0.6 else draw.randrange(3, lengths[song])
            device = draw.choice(["ios", "web"])
            row = (at, listener, *songs[song], lengths[song], played, int(played < 30), device)
            rows.append(row)
            at += played * 1000
    names = ["ts", "listener", "song", "band", "genre", "length", "played", "skipped", "device"]
    return pl.DataFrame(rows, names, orient="row").sort("ts", maintain_order=True)


def write(frame: pl.DataFrame, folder: Path, name: str = "log.csv") -> Path:
    folder.mkdir(exist_ok=True)
    if name.endswith(".parquet"):
        frame.write_parquet(folder / name)
        return folder
    separator = "\t" if ".tsv" in name else ","
    text = frame.write_ndjson() if "jsonl" in name else frame.write_csv(separator=separator)
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (folder / name).write_bytes(data)
    return folder


def disguised(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """The same rows with columns in another order and under names that say nothing."""
    names = list(frame.columns)
    random.Random(7).shuffle(names)
    new = {name: f"x{at}" for at, name in enumerate(names)}
    return frame.select(names).rename(new), new


def columns_of(made: Draft) -> dict[str, Any]:
    return made.values["pipeline"]["log"]["columns"]


def read_by(made: Draft) -> dict[str, dict[str, Any]]:
    """Column -> its feature, without the names that the draft chose."""
    features = made.values["contract"]["features"]
    return {
        str(feature.get("column", name)): {k: v for k, v in feature.items() if k != "column"}
        for name, feature in features.items()
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("geöffnet", "geoffnet"),
        ("Straße", "strasse"),
        ("qualité vue", "qualite_vue"),
        ("日", "column"),
    ],
)
def test_names_of_features_and_tasks_keep_letters_with_marks(text, name):
    assert snake(text) == name


def test_an_impression_log(impressions, tmp_path):
    made = draft(write(impressions, tmp_path / "log", "log.jsonl"), "feed")
    roles = {"time": "time", "user": "user_id", "item": "item_id", "request": "request_id"}
    assert columns_of(made) == roles
    tasks = made.values["contract"]["tasks"]
    kinds = {name: (task["type"], task["label"]["column"]) for name, task in tasks.items()}
    assert kinds["click"] == ("binary", "click")
    assert kinds["rating"] == ("regression", "rating")
    assert tasks["dwell"]["when"] == "click"
    assert tasks["dislike"]["score_weight"] < 0
    assert tasks["like"]["group"] == "satisfaction"
    features = read_by(made)
    sides = {name: (one["kind"], one["side"]) for name, one in features.items()}
    expected = {
        "country": ("id", "user"),
        "topic": ("id", "item"),
        "tags": ("id_list", "item"),
        "length": ("number", "item"),
        "hour": ("id", "context"),
        "position": ("position", "context"),
    }
    assert expected.items() <= sides.items()
    assert not features.keys() & {"click", "like", "dwell", "rating", "share", "request_id", "time"}
    # The first tag says little about users that the topic has not said.
    assert made.values["contract"]["rates"]["of"] == ["user", "item", ["user", "topic"]]
    assert "negatives" not in made.values["pipeline"]


def test_an_event_log(tmp_path):
    made = draft(write(events(), tmp_path / "log"), "shop")
    assert columns_of(made) == {
        "time": "when",
        "user": "who",
        "item": "thing",
        "event": "what",
        "session": "visit",
    }
    log = made.values["pipeline"]["log"]
    assert (log["shape"], log["impression"], log["time_unit"]) == ("events", "open", "s")
    tasks = made.values["contract"]["tasks"]
    assert {name: task["label"]["rule"] for name, task in tasks.items()} == {
        "open": "impression",
        "like": "event",
        "save": "event",
        "dwell": "dwell",
    }
    assert read_by(made)["place"] == {"kind": "id", "side": "user", "missing": "indicator"}
    assert made.values["pipeline"]["negatives"]["per_positive"] == 4
    counts = made.notes["pipeline.log.impression"].removeprefix("event types: ")
    frame = events()
    assert counts == ", ".join(
        f"{kind} ({len(frame.filter(what=kind))})" for kind in ("open", "like", "save")
    )


def test_what_a_draft_reads_of_the_past(tmp_path):
    """Histories and counters, of what was seen and of what was said of it, and label rates."""
    made = draft(write(events(), tmp_path / "log"), "shop")
    features = made.values["contract"]["features"]
    histories = {n: f["history"]["events"] for n, f in features.items() if "history" in f}
    assert histories == {"recent_items": ["open"], "recent_feedback": ["like", "save"]}
    assert all(features[name]["share"] == "thing" for name in histories)
    counted = {n: f["count"] for n, f in features.items() if "count" in f}
    windows = {name: (one["of"], one.get("within")) for name, one in counted.items()}
    assert windows == {
        "item_shown_1d": ("item", "1d"),
        "item_shown_7d": ("item", "7d"),
        "item_shown": ("item", None),
        "user_shown_7d": ("user", "7d"),
        "item_feedback_7d": ("item", "7d"),
    }
    assert counted["item_feedback_7d"]["events"] == ["like", "save"]
    assert features["item_age"]["since"] == {"of": "item", "events": ["open"], "which": "first"}
    assert made.values["contract"]["rates"] == {"of": ["user", "item"], "tasks": "all"}


@pytest.mark.parametrize("rare", [False, True])
def test_ids_that_occur_once_share_an_embedding(rare, tmp_path):
    frame = events()
    if rare:  # one user in three comes once
        once = [
            {**row, "when": row["when"] + 7, "who": 1000 + at, "visit": f"once{at}"}
            for at, row in enumerate(frame.filter(what="open").head(60).iter_rows(named=True))
        ]
        frame = pl.concat([frame, pl.DataFrame(once, frame.schema)]).sort("when")
    made = draft(write(frame, tmp_path / "log"), "shop")
    features = made.values["contract"]["features"]
    assert features["who"].get("min_count") == (3 if rare else None)
    assert "min_count" not in features["thing"]
    assert ("33% of them seen once" in made.notes["contract.features.who"]) == rare


@pytest.mark.parametrize(
    ("rows", "dim", "experts", "units", "batch"),
    [
        (49_999, 16, 4, 64, 512),
        (50_000, 32, 8, 128, 2048),
        (999_999, 32, 8, 128, 2048),
        (1_000_000, 32, 8, 128, 4096),
    ],
)
def test_the_model_is_sized_by_the_rows(rows, dim, experts, units, batch):
    values = _model(rows, False, Draft({}))
    assert values["model"]["embedding_dim"] == dim
    assert values["model"]["experts"] == {"count": experts, "units": [units], "dropout": 0.3}
    assert (values["train"]["batch_size"], values["train"]["epochs"]) == (batch, 8)


def test_drafts_of_drawn_negatives_train_longer():
    """Of their first task every row has a label; embeddings that pay keep it from overfitting."""
    drawn, shown = (_model(9_000, drawn, Draft({})) for drawn in (True, False))
    assert drawn["model"] == shown["model"]
    assert drawn["model"]["wide"] == {"embeddings": 10.0}
    assert drawn["train"]["epochs"] == 2 * shown["train"]["epochs"]
    assert drawn["train"]["weight_decay"] == shown["train"]["weight_decay"]


@pytest.mark.parametrize("rows", [3_000, 42_000, 400_000, 30_000_000])
def test_weights_that_no_label_moves_fall_to_a_third(rows):
    """By the steps of the optimiser: AdamW takes decay times learning rate of a weight."""
    train = _model(rows, False, Draft({}))["train"]
    steps = train["epochs"] * -(-rows * 8 // (10 * train["batch_size"]))
    rates = train["learning_rate"] * (1 + np.cos(np.pi * np.arange(steps) / steps)) / 2
    assert np.prod(1 - train["weight_decay"] * rates) == pytest.approx(0.36, abs=0.04)


@pytest.mark.parametrize(
    ("rows", "installed", "drafted"),
    [(999_999, True, True), (1_000_000, True, False), (999_999, False, False)],
)
def test_trees_teach_where_they_are_installed_and_the_log_fits(
    rows, installed, drafted, monkeypatch
):
    monkeypatch.setattr("multigate.jobs.onboarding.draft.is_installed", lambda name: installed)
    made = Draft({})
    teacher = _model(rows, False, made)["train"].get("teacher")
    assert teacher == ({"share": 0.5} if drafted else None)
    assert ("train.teacher" in made.notes) == drafted


def shown_by_a_policy(uniform: bool, seed: int = 0) -> pl.DataFrame:
    """One item at each of three places, drawn by a policy that knows the user."""
    draw, rows = random.Random(seed), []
    for visit in range(2500):
        user = draw.randrange(60)
        for place in range(3):
            weights = [1.0 if uniform else 1 + ((user + item) % 7) ** 2 for item in range(15)]
            [item] = draw.choices(range(15), weights)
            clicked = int(draw.random() < 0.1)
            chance = round(weights[item] / sum(weights), 5)
            score = round(draw.uniform(0.01, 0.4), 5)
            rows.append((START + 60 * visit, user, item, place, clicked, chance, score))
    names = ["when", "who", "what", "place", "clicked", "chance", "score"]
    return pl.DataFrame(rows, names, orient="row")


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("name", ["chance", "pscore", "x"])
def test_the_probability_of_having_been_chosen_is_no_feature(name, uniform, tmp_path):
    """Its values tell, whatever its name is; another number of that size is a feature."""
    both = shown_by_a_policy(False).rename({"chance": name})
    if uniform:  # constant, unless both policies' rows stand in one log
        both = pl.concat([both, shown_by_a_policy(True, 1).rename({"chance": name})])
    made = draft(write(both.sort("when"), tmp_path / "log"), "x")
    assert "it is the probability with which the item was chosen" in made.left_out[name]
    assert "score" in read_by(made)


def test_a_column_that_has_such_a_name_only_is_a_feature(tmp_path):
    frame = shown_by_a_policy(False).rename({"score": "propensity", "chance": "x"})
    made = draft(write(frame, tmp_path / "log"), "x")
    assert "propensity" in read_by(made)


def test_probabilities_within_a_request_and_copies_of_the_place_are_no_features(tmp_path):
    frame = (
        shown_by_a_policy(False)
        .drop("chance")
        .with_columns(list=pl.format("r{}", pl.int_range(pl.len()) // 3))
    )
    share = pl.col("score") / pl.col("score").sum().over("list")
    frame = frame.with_columns(share=share, examined=1 / (1 + pl.col("place")))
    made = draft(write(frame, tmp_path / "log"), "x")
    assert made.values["pipeline"]["log"]["columns"]["request"] == "list"
    assert "add up to 1 in a request" in made.left_out["share"]
    assert "another name of the place 'place'" in made.left_out["examined"]


def feed(seed: int = 0) -> pl.DataFrame:
    """Lists of five, of which some are clicked, some of these read for seconds, some starred."""
    draw, rows, at = random.Random(seed), [], START
    for _ in range(1500):
        user, at = draw.randrange(150), at + draw.randrange(5, 60)
        for item in draw.sample(range(80), 5):
            rows.append((at, user, item, "shown", None))
            if draw.random() < 0.2:
                rows.append((at + 5, user, item, "click", None))
                if draw.random() < 0.6:
                    rows.append((at + 60, user, item, "read", draw.randrange(5, 300)))
    names = ["ts", "reader", "article", "what", "seconds"]
    return pl.DataFrame(rows, names, orient="row").sort("ts", maintain_order=True)


@pytest.mark.parametrize("hide", [False, True])
def test_an_event_log_of_whole_lists_has_its_own_negatives(hide, tmp_path):
    log, names = disguised(feed()) if hide else (feed(), {})
    name = {column: names.get(column, column) for column in feed().columns}
    made = draft(write(log, tmp_path / "log"), "feed")
    columns = columns_of(made)
    roles = ("time", "user", "item", "event", "value")
    assert [columns[role] for role in roles] == list(name.values())
    tasks = made.values["contract"]["tasks"]
    assert list(tasks) == ["click", "read", name["seconds"]]
    duration = tasks[name["seconds"]]
    assert (duration["type"], duration["label"]["events"]) == ("regression", ["read"])
    assert duration["label"]["aggregate"] == "sum"
    assert "negatives" not in made.values["pipeline"]
    assert name["seconds"] not in read_by(made)
    made.config()


def test_zeros_for_no_number_and_stars_are_told_apart(tmp_path):
    stars = pl.when(pl.col("what") == "read").then(1 + pl.col("seconds") % 5).otherwise(0)
    made = draft(write(feed().with_columns(seconds=stars), tmp_path / "log"), "feed")
    task = made.values["contract"]["tasks"]["seconds"]
    assert (task["group"], task["label"]["aggregate"]) == ("satisfaction", "max")
    assert "transform" not in task


@pytest.mark.parametrize("hide", [False, True])
def test_a_log_of_plays(hide, tmp_path):
    """Users come in bursts, items decide other columns, and seconds played tell who skipped."""
    frame = plays()
    other, new = disguised(frame) if hide else (frame, {name: name for name in frame.columns})
    made = draft(write(other, tmp_path / "log", "plays.tsv"), "x")
    log = made.values["pipeline"]["log"]
    assert log["columns"] == {"time": new["ts"], "user": new["listener"], "item": new["song"]}
    assert log["time_unit"] == "ms"
    tasks = made.values["contract"]["tasks"]
    labels = {task["label"]["column"]: task["type"] for task in tasks.values()}
    assert labels == {new["skipped"]: "binary", new["played"]: "regression"}
    features = read_by(made)
    assert {features[new[name]]["side"] for name in ("band", "genre", "length")} == {"item"}
    assert features[new["device"]]["side"] == "context"
    assert not features.keys() & {new["played"], new["skipped"]}


def test_a_user_with_several_sessions_is_no_session(tmp_path):
    frame = events().with_columns(who=pl.col("who") ** 2 % 1013 + 5_000_000)
    made = draft(write(frame, tmp_path / "log"), "x")
    assert (columns_of(made)["user"], columns_of(made)["session"]) == ("who", "visit")


@pytest.mark.slow
def test_ratings_without_a_header_and_with_a_side_table(tmp_path):
    rated, films = ratings()
    folder = tmp_path / "log"
    folder.mkdir()
    lines = ["::".join(map(str, row)) for row in rated.iter_rows()]
    (folder / "ratings.dat").write_text("\n".join(lines) + "\n")
    lines = ["::".join(map(str, row)) for row in films.iter_rows()]
    (folder / "films.dat").write_text("\n".join(lines) + "\n")
    (folder / "README").write_text("Ratings of films.\nPlease cite us.\nThank you.\n")
    made = draft(folder, "films")
    assert columns_of(made) == {"time": "column_4", "user": "column_1", "item": "column_2"}
    log, items = made.values["pipeline"]["log"], made.values["pipeline"]["items"]
    assert log["files"] == ["ratings.dat"]
    assert log["format"] == {
        "type": "csv",
        "delimiter": "::",
        "quoted": False,
        "header": ["column_1", "column_2", "column_3", "column_4"],
    }
    assert (items["files"], items["key"]) == (["films.dat"], "column_1")
    kinds = {
        (one.get("source", "log"), column): one["kind"]
        for column, one in read_by(made).items()
        if "history" not in one
    }
    assert kinds["items", "column_3"] == "id_list"
    tasks = made.values["contract"]["tasks"]
    assert tasks["chosen"]["label"] == {"rule": "impression"}
    assert tasks["column_3"]["type"] == "regression"
    assert tasks["column_3_high"]["at_least"] == 4
    job.run(made.config(), folder, tmp_path / "examples")


def meaning(task: dict[str, Any]) -> tuple[object, ...]:
    """What a task says of its column: what it is, and whether more of it is welcome."""
    weight = task.get("score_weight", 1)
    return task["group"], task["type"], task["label"]["rule"], (weight > 0) - (weight < 0)


@pytest.mark.parametrize("shape", ["impressions", "events"])
def test_names_decide_nothing(shape, impressions, tmp_path):
    frame = impressions if shape == "impressions" else events()
    name = "log.jsonl" if shape == "impressions" else "log.csv"
    known = draft(write(frame, tmp_path / "known", name), "x")
    other, new = disguised(frame)
    hidden = draft(write(other, tmp_path / "hidden", name), "x")
    assert columns_of(hidden) == {role: new[one] for role, one in columns_of(known).items()}
    expected = {new.get(name, name): one for name, one in read_by(known).items()}
    found = read_by(hidden)
    mapped = {column for column in expected if column in new.values()}
    assert {c: (found[c]["kind"], found[c]["side"]) for c in mapped} == {
        c: (expected[c]["kind"], expected[c]["side"]) for c in mapped
    }
    labels = [
        {str(task["label"].get("column", task["label"].get("events"))) for task in tasks.values()}
        for tasks in (known.values["contract"]["tasks"], hidden.values["contract"]["tasks"])
    ]
    assert {new.get(one, one) for one in labels[0]} == labels[1]
    for task, hidden_task in zip(
        known.values["contract"]["tasks"].values(),
        hidden.values["contract"]["tasks"].values(),
        strict=True,
    ):
        assert meaning(hidden_task) == meaning(task)
    assert not check(hidden.config(), tmp_path / "hidden").fails


@pytest.mark.parametrize("name", ["log.tsv", "log.csv.gz", "log.parquet", "log.jsonl.gz"])
def test_formats_give_the_same_guesses(name, tmp_path):
    plain = draft(write(events(), tmp_path / "plain"), "x")
    other = draft(write(events(), tmp_path / "other", name), "x")
    assert columns_of(other) == columns_of(plain)
    assert other.values["contract"]["tasks"] == plain.values["contract"]["tasks"]
    assert read_by(other) == read_by(plain)
    assert not check(other.config(), tmp_path / "other").fails


def test_times_in_text_and_milliseconds(tmp_path):
    frame = events()
    milli = frame.with_columns(pl.col("when") * 1000)
    assert draft(write(milli, tmp_path / "a"), "x").values["pipeline"]["log"]["time_unit"] == "ms"
    text = frame.with_columns(pl.from_epoch("when").dt.strftime("%Y-%m-%d %H:%M:%S"))
    assert draft(write(text, tmp_path / "b"), "x").values["pipeline"]["log"]["time_unit"] == "iso"


def test_unknown_times_are_told_apart(tmp_path):
    rated, _ = ratings()
    some = rated.with_columns(pl.when(pl.col("a") > 150).then(0).otherwise(pl.col("d")).alias("d"))
    made = draft(write(some, tmp_path / "log"), "x")
    assert made.values["pipeline"]["log"]["unknown_time"] == 0
    assert made.values["pipeline"]["split"]["by"] == "random"
    assert not check(made.config(), tmp_path / "log").fails


def test_the_yaml_is_the_draft_with_comments(impressions, tmp_path):
    folder = write(impressions, tmp_path / "log", "log.jsonl")
    made = draft(folder, "feed")
    text = as_yaml(made, folder)
    (tmp_path / "feed.yaml").write_text(text)
    assert load(tmp_path / "feed.yaml") == made.config()
    assert yaml.safe_load(text) == made.values
    assert "# column 'click' is 1 in " in text
    assert max(len(line) for line in text.splitlines()) < 200


def test_columns_that_tell_nothing_are_left_out(tmp_path):
    frame = events().with_columns(
        always=pl.lit("web"), serial=pl.format("r{}", pl.int_range(pl.len()))
    )
    made = draft(write(frame, tmp_path / "log"), "x")
    assert made.left_out["always"] == "it is constant"
    assert "hardly repeat" in made.left_out["serial"]


def test_row_numbers_are_no_ids(tmp_path):
    """Each file numbers its rows from 0, so that every number stands in both."""
    frame = plays()
    half = len(frame) // 2
    for at, part in enumerate((frame[:half], frame[half:])):
        write(part.with_row_index(""), tmp_path / "log", f"plays-{at}.csv")
        write(part.with_row_index("n"), tmp_path / "named", f"plays-{at}.csv")
    for name in ("log", "named"):
        made = draft(tmp_path / name, "x")
        assert columns_of(made) == {"time": "ts", "user": "listener", "item": "song"}
        assert "n" not in read_by(made)
    assert made.left_out["n"] == "it numbers the rows"


@pytest.mark.slow
def test_the_draft_makes_examples(impressions, tmp_path):
    for name, frame in (("a", impressions), ("b", events())):
        folder = write(frame, tmp_path / name, "log.parquet")
        out = tmp_path / f"{name}.yaml"
        assert main(["init", "--data", str(folder), "--out", str(out)]) == 0
        manifest = job.run(load(out), folder, tmp_path / f"{name}-examples")
        assert all(manifest["examples"]["splits"][split] > 50 for split in ("train", "test"))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("impressions", marks=pytest.mark.long),
        pytest.param("events", marks=pytest.mark.slow),
        pytest.param("plays", marks=pytest.mark.long),
    ],
)
def test_the_draft_trains_unedited(shape, impressions, tmp_path):
    frame = {"impressions": impressions, "events": events(), "plays": plays()}[shape]
    folder = write(disguised(frame)[0], tmp_path / "log", "log.parquet")
    out, examples, checkpoint = (str(tmp_path / one) for one in ("my.yaml", "examples", "model"))
    assert main(["init", "--data", str(folder), "--out", out]) == 0
    given = ["--config", out, "--examples", examples]
    assert main(["examples", "--config", out, "--data", str(folder), "--out", examples]) == 0
    assert main(["train", *given, "--out", checkpoint]) == 0
    history = json.loads((tmp_path / "model/history.json").read_text())
    assert history


@pytest.mark.slow
@pytest.mark.skipif(not DESKDROP.is_dir(), reason="needs ../shared/data/deskdrop")
def test_deskdrop_under_other_names(tmp_path):
    made = draft(DESKDROP, "deskdrop")
    preset = load("deskdrop")
    assert columns_of(made) == preset.pipeline.log.columns.model_dump(exclude_none=True)
    import zipfile

    with zipfile.ZipFile(DESKDROP / "users_interactions.csv.zip") as archive:
        frame = pl.read_csv(archive.read(archive.namelist()[0]), infer_schema=False)
    other, new = disguised(frame)
    hidden = draft(write(other, tmp_path / "log"), "x")
    assert columns_of(hidden) == {role: new[one] for role, one in columns_of(made).items()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file matches"),
        ({"README": "Hello.\n"}, "no table here; expected CSV, TSV, JSON lines or Parquet files"),
        (
            {"a.csv": "user,item,rating\n" + "1,2,3\n2,3,4\n" * 9},
            "expected a column of items, and one of users where",
        ),
        (
            {"a.csv": "time,x\n" + "".join(f"{START + at},{at % 4}\n" for at in range(50))},
            "expected a column of items, and one of users where",
        ),
        ({"a.jsonl": '{"a": 1}\n{"a": \n' * 5}, "no table here"),
    ],
)
def test_folders_without_a_log_are_one_line(files, message, tmp_path, capfd):
    folder = tmp_path / "log"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    out = tmp_path / "my.yaml"
    assert main(["init", "--data", str(folder), "--out", str(out)]) == 2
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1
    assert message in err
    assert not out.exists()


def test_other_mistakes_are_one_line(tmp_path, capfd):
    (tmp_path / "there.yaml").write_text("mine")
    folder = write(events(), tmp_path / "log")
    for data, out, message in (
        (tmp_path / "no", tmp_path / "a.yaml", "no: no such folder"),
        (folder, tmp_path / "there.yaml", "there.yaml: already exists"),
        (folder, tmp_path / "no/a.yaml", "no: no such folder; make it"),
    ):
        assert main(["init", "--data", str(data), "--out", str(out)]) == 2
        err = capfd.readouterr().err
        assert len(err.splitlines()) == 1
        assert message in err
    assert (tmp_path / "there.yaml").read_text() == "mine"


def test_guesses_go_to_standard_error_and_json_to_standard_output(tmp_path, capfd):
    folder = write(events(), tmp_path / "log")
    assert main(["init", "--data", str(folder), "--out", str(tmp_path / "a.yaml"), "--json"]) == 0
    printed = capfd.readouterr()
    told = json.loads(printed.out)
    assert "each value of 'visit' has one of them" in told["guesses"]["pipeline.log.columns"]
    assert "contract.tasks.like: " in printed.err


def test_a_folder_with_one_kind_of_rows_only_is_refused(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/a.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match="expected a column of items, and one of users where"):
        draft(tmp_path / "log", "x")


def app(seed: int = 0) -> pl.DataFrame:
    """Lists of songs of which some are played and few shared; rows of a list differ in a rank."""
    draw, rows = random.Random(seed), []
    for request in range(1500):
        user, at = draw.randrange(150), 1000 * (START + draw.randrange(60 * 86_400))
        for place, song in enumerate(draw.sample(range(200), 6)):
            played = draw.random() < 0.25
            seconds = draw.uniform(5, 300) if played else None
            paid = 0.3 if played and seconds > 30 else 0.0
            shared = played and draw.random() < 0.06
            row = (f"r{request}", user, song, place, draw.random(), played, seconds, paid, shared)
            rows += [(*row, at)] * (2 if draw.random() < 0.01 else 1)  # some rows come twice
    names = ["list", "who", "song", "slot", "rank", "played", "seconds", "paid", "shared", "ms"]
    frame = pl.DataFrame(rows, names, orient="row").sort("ms", maintain_order=True)
    return frame.with_columns(plays=pl.col("played").sum().over("list"))


@pytest.mark.parametrize("hide", [False, True])
def test_what_users_did_is_no_feature(hide, tmp_path):
    """Booleans, rare ones too, numbers that follow them, and places of a log with rows twice."""
    frame, new = disguised(app()) if hide else (app(), {name: name for name in app().columns})
    made = draft(write(frame, tmp_path / "log", "log.parquet"), "x")
    tasks = {
        task["label"]["column"]: task["type"] for task in made.values["contract"]["tasks"].values()
    }
    assert set(tasks) == {new["played"], new["shared"], new["seconds"]}
    features = read_by(made)
    assert not features.keys() & {
        new[name] for name in ("played", "shared", "seconds", "paid", "plays")
    }
    assert "known only afterwards" in made.left_out[new["paid"]]
    assert f"how many {new['played']!r} its own" in made.left_out[new["plays"]]
    assert features[new["slot"]]["kind"] == "position"
    assert features[new["rank"]]["side"] == "item"
    assert not check(made.config(), tmp_path / "log").findings


def shop(seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Events with an amount that is stars or a price, some without a user; and a catalogue whose
    column `sold` was counted at the log's end.
    """
    draw, rows, sold = random.Random(seed), [], [0] * 80
    for _ in range(2000):
        user = None if draw.random() < 0.02 else draw.randrange(200)
        at = START + draw.randrange(40 * 86_400)
        for _ in range(3):
            item, at = min(draw.randrange(80), draw.randrange(80)), at + draw.randrange(30, 300)
            rows.append((at, user, "seen", item, None))
            if draw.random() < 0.25:
                sold[item] += 1
                rows.append((at + 20, user, "order", item, 5.0 + 3 * item))
                if draw.random() < 0.4:
                    late, stars = draw.randrange(8 * 86_400), float(draw.randrange(1, 6))
                    rows.append((at + late, user, "star", item, stars))
    names = ["ts", "who", "what", "thing", "amount"]
    log = pl.DataFrame(rows, names, orient="row").sort("ts", maintain_order=True)
    things = [(item, count, draw.choice(["a", "b", "c"])) for item, count in enumerate(sold)]
    return log, pl.DataFrame(things, ["thing", "sold", "kind"], orient="row")


def test_a_shop(tmp_path):
    log, things = shop()
    folder = write(log, tmp_path / "log", "events.csv")
    write(things, folder, "things.csv")
    made = draft(folder, "shop")
    assert columns_of(made)["value"] == "amount"
    tasks = made.values["contract"]["tasks"]
    assert tasks["star_amount"]["label"]["aggregate"] == "max"
    assert tasks["order_amount"]["label"]["aggregate"] == "sum"
    assert tasks["star"]["label"]["within"] == "3d"
    told = made.notes["contract.tasks.star"]
    assert 0.3 < float(re.search(r"(\d+)% of them within 3d", told)[1]) / 100 < 0.45
    assert "the others count as 0" in told
    assert made.values["pipeline"]["max_reject_rate"] == pytest.approx(0.05, abs=0.02)
    assert not check(made.config(), folder).fails
    assert "sold" in made.left_out
    assert "knows the log's future" in made.left_out["sold"]
    assert made.values["pipeline"]["log"]["derive"] == {
        "hour": {"hour_of": "ts"},
        "weekday": {"weekday_of": "ts"},
    }
    assert made.values["contract"]["rates"]["of"] == ["user", "item"]  # nobody has a taste


def orders(seed: int = 0) -> list[dict[str, Any]]:
    """Lists of dishes with a badge; some are opened, few of these ordered, paid and rated."""
    draw, rows = random.Random(seed), []
    kinds = [draw.choice(["thai", "pizza", "vegan"]) for _ in range(150)]
    likings = [draw.random() for _ in range(150)]
    for request in range(1200):
        user, at = draw.randrange(150), 1000 * (START + draw.randrange(30 * 86_400))
        for dish in draw.sample(range(150), 6):
            opened = draw.random() < 0.1 + 0.5 * likings[dish]
            ordered = opened and draw.random() < 0.3
            rated = ordered and draw.random() < 0.5
            offer = {"badge": draw.random() < 0.15, "size": draw.choice([100, 200, 300])}
            result = {"opened": opened, "ordered": ordered, "paid": None, "stars": None}
            if ordered:
                result |= {"paid": round(draw.uniform(8, 40), 2)}
            if rated:
                result |= {"stars": draw.randrange(1, 6)}
            person = {"id": f"p{user}", "town": ["Graz", "Linz"][user % 2]}
            of_dish = {"id": dish, "pieces": dish % 5, "kind": kinds[dish]}
            place = {"list": {"id": f"r{request}"}, "person": person, "dish": of_dish}
            rows.append({"at": at, **place, "offer": offer, "result": result})
    return sorted(rows, key=lambda row: row["at"])


def test_nested_orders(tmp_path):
    """Objects in lines of many small files; a badge is a feature, a price is the order's."""
    rows, folder = orders(), tmp_path / "log"
    folder.mkdir()
    for day in range(24):
        part = rows[day * 300 : (day + 1) * 300]
        text = "".join(json.dumps(row) + "\n" for row in part)
        (folder / f"day-{day:02d}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    made = draft(folder, "dishes")
    assert columns_of(made) == {
        "time": "at",
        "user": "person.id",
        "item": "dish.id",
        "request": "list.id",
    }
    told = re.search(r"about (\d+) rows", made.notes["pipeline.log"])
    assert abs(int(told[1]) - 7200) < 50
    tasks = made.values["contract"]["tasks"]
    assert {task["label"]["column"] for task in tasks.values()} == {
        f"result.{name}" for name in ("opened", "ordered", "paid", "stars")
    }
    assert tasks["result_paid"]["when"] == "result_ordered"
    # Of the combined score are those only whose labels every row has.
    weights = {name: task.get("score_weight", 0) for name, task in tasks.items()}
    assert {name for name, weight in weights.items() if weight} == {
        "result_opened",
        "result_ordered",
    }
    assert read_by(made)["offer.badge"]["side"] == "item"
    checked = check(made.config(), folder)
    assert not checked.fails
    assert abs(checked.facts["rows"]["log"] - 7200) < 50


@pytest.mark.parametrize("hide", [False, True])
def test_a_listings_date_is_an_age(hide, tmp_path):
    """Of the log and of a side table; what is later than the rows is left out."""
    day = pl.from_epoch(pl.lit(START) - 86_400 * pl.col("thing")).dt
    log = events().with_columns(
        online=day.strftime("%Y-%m-%d"), last_seen=pl.col("when").max().over("who") * 1000
    )
    things = log.select("thing").unique(maintain_order=True)
    things = things.with_columns(
        added=(START - 3600 * pl.col("thing")) * 1000,
        changed=day.offset_by("200d").dt.strftime("%F"),
    )
    log, new = disguised(log) if hide else (log, {name: name for name in log.columns})
    things, also = disguised(things) if hide else (things, {name: name for name in things.columns})
    folder = write(log, tmp_path / "log", "log.jsonl")
    write(things, folder, "things.csv")
    made = draft(folder, "x")
    ages = {
        (one.get("source", "log"), column): (one["side"], one["age"])
        for column, one in (
            (one.get("column", name), one)
            for name, one in made.values["contract"]["features"].items()
        )
        if "age" in one
    }
    assert ages == {
        ("log", new["online"]): ("item", "iso"),
        ("items", also["added"]): ("item", "ms"),
    }
    assert "later than their rows" in made.left_out[also["changed"]]
    assert "later than their rows" in made.left_out[new["last_seen"]]
    assert not check(made.config(), folder).fails


def test_tags_with_blanks_between_are_a_list_and_places_are_none(tmp_path):
    words = ["war", "love", "fun", "crime", "home"]
    mixed = [f"{a} {b}" for a in words for b in words if a < b] + [*words, "war love fun"]
    places = ["New York", "Los Angeles", "San Francisco", "Santa Fe", "Baton Rouge"]
    frame = events().with_columns(
        genres=pl.col("thing").map_elements(lambda at: mixed[at % len(mixed)], pl.String),
        place=pl.col("who").map_elements(lambda at: places[at % len(places)], pl.String),
    )
    made = draft(write(frame, tmp_path / "log"), "x")
    features = read_by(made)
    assert (features["genres"]["kind"], features["genres"]["separator"]) == ("id_list", " ")
    assert features["place"]["kind"] == "id"
    assert "with open;" in made.notes["contract.features.recent_items"]


def test_a_scale_that_happens_to_fall_makes_no_click_unwelcome(tmp_path):
    """Rows lower in a list are clicked less; `grade` rises down the list and is no rating."""
    draw = random.Random(2)
    place = pl.int_range(pl.len()) % 5
    frame = feed().filter(pl.col("what") == "shown").drop("what", "seconds")
    clicks = [draw.random() < (0.6 if at % 5 < 2 else 0.1) for at in range(len(frame))]
    likes = [one and draw.random() < 0.3 for one in clicks]
    hides = [
        one and not like and draw.random() < 0.3 for one, like in zip(clicks, likes, strict=True)
    ]
    grade = [1 + min(at % 5 + draw.randrange(2), 4) for at in range(len(frame))]
    frame = frame.with_columns(
        hit=pl.Series(clicks), heart=pl.Series(likes), off=pl.Series(hides), grade=pl.Series(grade)
    ).with_columns(place=place)
    made = draft(write(frame, tmp_path / "log", "log.parquet"), "x")
    tasks = made.values["contract"]["tasks"]
    assert tasks["hit"]["score_weight"] == tasks["heart"]["score_weight"] == 1


def test_a_song_is_heard_long_by_its_own_length(tmp_path):
    draw = random.Random(4)
    frame = app()
    lengths = [draw.randrange(90, 400) for _ in range(200)]
    part = pl.Series([1.0 if draw.random() < 0.3 else draw.random() for _ in range(len(frame))])
    length = pl.col("song").map_elements(lambda at: lengths[at], pl.Int64)
    frame = frame.with_columns(length=length).with_columns(
        seconds=pl.when("played").then((part * pl.col("length")).round(1))
    )
    made = draft(write(frame, tmp_path / "log", "log.parquet"), "x")
    task = made.values["contract"]["tasks"]["seconds_long"]
    assert task["label"] == {"rule": "ratio", "column": "seconds", "over": "length"}
    assert 0.5 < task["at_least"] <= 0.9
    assert read_by(made)["length"]["side"] == "item"
    assert not check(made.config(), tmp_path / "log").fails


@pytest.mark.parametrize("hide", [False, True])
def test_users_without_ids_are_those_who_are_alike(hide, tmp_path):
    frame = feed().filter(pl.col("what") == "shown").drop("what", "seconds")
    code = pl.col("reader").cast(pl.Int64)
    groups = {"age": code % 3, "place": code // 3 % 4, "plan": code // 12 % 3}
    frame = frame.with_columns(
        clicked=(pl.col("article") % 7 == 0).cast(pl.Int64) * (code % 2),
        **{name: pl.format(f"{name}{{}}", value) for name, value in groups.items()},
    ).drop("reader")
    log, new = disguised(frame) if hide else (frame, {name: name for name in frame.columns})
    made = draft(write(log, tmp_path / "log"), "x")
    derive = made.values["pipeline"]["log"]["derive"]
    user = columns_of(made)["user"]
    assert set(derive[user]["join"]) == {new[name] for name in groups}
    assert columns_of(made)["item"] == new["article"]
    features = read_by(made)
    assert {features[new[name]]["side"] for name in groups} == {"user"}
    assert not check(made.config(), tmp_path / "log").fails


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 18, 25, 35, 45, 50, 56], "id"),  # codes of ages
        (list(range(40)), "id"),  # one after the other
        ([n * n for n in range(40)], "number"),
    ],
)
def test_whole_numbers_are_codes_or_counts(values, kind, tmp_path):
    frame = events().with_columns(
        x=pl.col("thing").map_elements(lambda n: values[n % len(values)], pl.Int64)
    )
    made = draft(write(frame, tmp_path / "log"), "x")
    assert read_by(made)["x"]["kind"] == kind
