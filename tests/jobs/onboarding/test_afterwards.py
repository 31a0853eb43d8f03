"""`multigate init`: what is known only after the impression is a label or nothing."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs.storage import place
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.tables.columns import look
from multigate.jobs.onboarding.tables.outcomes import needed, needs, tells
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01


def drafted(frame: pl.DataFrame, folder: Path, hide: bool) -> tuple[Draft, dict[str, str]]:
    """The draft of a log, under names that say nothing where `hide`; its columns' names."""
    names = {name: f"x{at}" if hide else name for at, name in enumerate(frame.columns)}
    frame.rename(names).write_parquet(folder / "log.parquet")
    return draft(place(str(folder)), "my"), names


def labels_of(made: Draft) -> dict[str, str]:
    """What each label reads -> the type of its task."""
    tasks = made.values["contract"]["tasks"].values()
    return {str(task["label"].get("column", task["label"]["rule"])): task["type"] for task in tasks}


def read_by(made: Draft) -> set[str]:
    """The columns that features read."""
    features: dict[str, Any] = made.values["contract"]["features"]
    return {str(feature.get("column", name)) for name, feature in features.items()}


def advertisements() -> pl.DataFrame:
    """Impressions without users or requests, each alone in time; what clicks tell stands beside."""
    draw, rows = random.Random(5), []
    appeal = [draw.choice([0.05, 0.15, 0.4]) for _ in range(120)]
    for at in range(9000):
        ad = draw.randrange(120)
        clicked = draw.random() < appeal[ad]
        rows.append(
            {
                "ms": (START + 97 * at) * 1000 + draw.randrange(900),
                "ad": ad + 7000,
                "owner": f"o{ad // 6}",
                "site": f"s{draw.randrange(30)}.example",
                "device": draw.choice(["phone", "desk", "tablet"]),
                "y": int(clicked),
                "t": draw.randrange(300, 90_000) if clicked else 0,
                "page": draw.choice(["p1", "p2"])
                if clicked
                else ("p1" if draw.random() < 0.03 else None),
                "bought": float(clicked and draw.random() < 0.012),  # about 20
                "floor": round(draw.uniform(0.1, 2), 2),
            }
        )
    return pl.DataFrame(rows)


@pytest.mark.parametrize("hide", [False, True])
def test_an_anonymous_log(hide, tmp_path):
    made, names = drafted(advertisements(), tmp_path, hide)
    columns = made.values["pipeline"]["log"]["columns"]
    assert columns["item"] == names["ad"]
    assert columns["user"] == names["site"]
    assert "uncertain" in made.notes["pipeline.log.columns"]
    assert labels_of(made) == {names["y"]: "binary", names["t"]: "binary"}  # the later of two
    tasks = made.values["contract"]["tasks"]
    assert [one["type"] for one in tasks.values()] == ["binary", "regression", "binary"]
    assert read_by(made) >= {names["device"], names["owner"], names["floor"]}
    assert not read_by(made) & {names[one] for one in ("y", "t", "page", "bought")}
    assert "one of its words stands only where" in made.left_out[names["page"]]
    assert "above 0 only where" in made.left_out[names["bought"]]
    assert not check(made.config(), tmp_path).fails


def visits() -> pl.DataFrame:
    """Events of a shop whose export wrote into each row what came of its session."""
    draw, rows = random.Random(6), []
    for session in range(1200):
        user, at = draw.randrange(150), START + 1000 * session
        lines, orders = [], 0
        for item in draw.sample(range(90), 5):
            at += draw.randrange(20, 90)
            basket = draw.random() < 0.15
            depth = draw.uniform(0.5, 1) if basket else 0.0
            lines.append((at, "detail", f"p{item}", depth))
            if basket:
                lines.append((at + 5, "basket", f"p{item}", None))
                if draw.random() < 0.5:
                    orders += 1
                    lines.append((at + 15, "ordered", f"p{item}", None))
        if draw.random() < 0.4:
            lines.insert(0, (at - 500, "search", None, None))
        total = round(orders * draw.uniform(5, 50), 2)
        whole = {"who": f"u{user}", "visit": f"v{session}", "lang": "ab"[user % 2]}
        whole |= {"status": "bought" if orders and draw.random() < 0.7 else "open"}
        whole |= {"converted": orders > 0, "total": total, "from": draw.choice(["ad", "mail"])}
        for time, kind, item, depth in lines:
            rows.append({"time": time, "what": kind, "sku": item, "depth": depth, **whole})
    return pl.DataFrame(rows, infer_schema_length=None).sort("time", maintain_order=True)


def test_a_flag_that_some_rows_lack_is_a_rate_and_no_term_of_the_score(tmp_path):
    """Who sells answers those who ask; of the others there is no answer, and no label."""
    draw, log = random.Random(6), advertisements().drop("t", "page", "bought")
    answers = [draw.choice(["yes", "no", "no"]) if one else None for one in log["y"]]
    made, _ = drafted(log.with_columns(pl.Series("answer", answers)), tmp_path, False)
    tasks = made.values["contract"]["tasks"]
    assert {name: tasks[name]["score_weight"] for name in ("y", "answer")} == {"y": 1, "answer": 0}
    missing = 1 - float(log["y"].mean())
    assert (
        f"{missing:.0%} of the rows have none and no label" in made.notes["contract.tasks.answer"]
    )
    found = check(made.config(), tmp_path)
    assert found.facts["tasks"]["answer"]["mean"] == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("hide", [False, True])
def test_an_event_log_that_knows_its_sessions_end(hide, tmp_path):
    made, names = drafted(visits(), tmp_path, hide)
    contract = made.values["contract"]
    assert made.values["pipeline"]["log"]["columns"]["session"] == names["visit"]
    assert names["from"] in read_by(made)
    assert not read_by(made) & {names[one] for one in ("converted", "total", "depth", "status")}
    assert "any row of its" in made.left_out[names["converted"]]
    assert "any row of its" in made.left_out[names["total"]]
    assert "a 'basket' follows" in made.left_out[names["depth"]]
    kinds = [task["label"].get("events") for task in contract["tasks"].values()]
    assert ["basket"] in kinds
    assert ["ordered"] in kinds
    assert ["search"] not in kinds  # it is of no item
    told = made.notes["pipeline.log.impression"]
    assert f"'search' names no {names['sku']!r}, so that it is no task" in told
    job.run(made.config(), tmp_path, tmp_path / "examples")  # no history reads it either
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows["label/basket"].sum() > 100


def feed(so_far: bool) -> pl.DataFrame:
    """Videos that play by themselves: how much was watched is all that is told."""
    draw, rows, seen = random.Random(7), [], [0] * 150
    good = [draw.random() for _ in range(100)]
    for at in range(8000):
        user, video = draw.randrange(150), draw.randrange(100)
        watched = min(max(draw.gauss(good[video], 0.3), 0.01), 1.4)
        seen[user] += 1
        rows.append((START + 60 * at, f"u{user}", f"v{video}", round(watched, 3), seen[user]))
    names = ["when", "who", "video", "watch_ratio", "clicks_so_far"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame if so_far else frame.drop("clicks_so_far")


def test_a_number_whose_name_says_so_is_a_label(tmp_path):
    made, _ = drafted(feed(so_far=True), tmp_path, hide=False)
    tasks = made.values["contract"]["tasks"]
    assert tasks["watch_ratio"]["type"] == "regression"
    high = tasks["watch_ratio_high"]
    ratios = feed(so_far=True)["watch_ratio"]
    assert high["at_least"] == pytest.approx(ratios.median(), abs=0.01)
    assert "watch_ratio" not in read_by(made)
    # A running count of the past has such a name, too.
    assert "clicks_so_far" in read_by(made)
    job.run(made.config(), tmp_path, tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows["label/watch_ratio_high"].mean() == pytest.approx(0.5, abs=0.03)


def words(name: str, bought: str) -> pl.DataFrame:
    """Rows alone in time, without a flag, of which a word tells what came."""
    draw, rows = random.Random(8), []
    for at in range(6000):
        what = draw.choices(["none", "clicked", bought], [0.8, 0.15, 0.05])[0]
        surface = draw.choices(["home", "mail", "map"], [0.6, 0.3, 0.1])[0]
        user, item = f"u{draw.randrange(120)}", f"i{draw.randrange(80)}"
        rows.append((START + 60 * at, user, item, what, surface))
    return pl.DataFrame(rows, schema=["when", "who", "item", name, "surface"], orient="row")


@pytest.mark.parametrize(("name", "bought"), [("x", "purchased"), ("outcome", "k2")])
def test_words_alone_in_time_are_labels_where_they_or_their_name_say_so(name, bought, tmp_path):
    made, _ = drafted(words(name, bought), tmp_path, hide=False)
    derived = made.values["pipeline"]["log"]["derive"]
    assert derived[f"{name}_any"] == {"flag": name, "ones": ["clicked", bought]}
    assert labels_of(made) == {f"{name}_any": "binary", f"{name}_{bought}": "binary"}
    assert "surface" in read_by(made)
    assert name not in read_by(made)


def test_flags_of_words_belong_to_their_rows_in_a_file_without_order(tmp_path):
    """A word's flag beside another column: a duration is recognised only row by row."""
    draw = random.Random(9)
    frame = words("outcome", "bought").with_columns(
        seconds=pl.col("outcome").map_elements(
            lambda one: 0.0 if one == "none" else round(draw.uniform(1, 90), 1),
            return_dtype=pl.Float64,
        )
    )
    made, _ = drafted(frame.sample(fraction=1, shuffle=True, seed=1), tmp_path, hide=False)
    assert made.values["contract"]["tasks"]["seconds"]["when"] == "outcome_any"


def test_what_a_column_tells_of_a_flag():
    flag = look("y", pl.Series([1] * 100 + [0] * 900))
    noise = pl.Series([at % 2 for at in range(1000)])
    same = pl.Series([1] * 99 + [0] * 901)
    assert tells(look("x", same), flag)
    assert not tells(look("x", noise), flag)
    assert needs(look("x", pl.Series([3] * 40 + [0] * 960)), flag)
    assert not needs(look("x", pl.Series([3] * 40 + [0] * 800 + [3] * 160)), flag)
    assert needs(look("x", pl.Series(["done"] * 40 + ["open"] * 960)), flag)
    assert not needs(look("x", pl.Series(["done"] * 10 + ["open"] * 990)), flag)  # by chance
    mixed = pl.Series(["done"] * 60 + ["open"] * 40 + ["done", "open"] * 450)
    assert not needs(look("x", mixed), flag)
    often = look("y", pl.Series([1] * 970 + [0] * 30))
    assert not needs(look("x", pl.Series([0, 3] * 500)), often)
    word = pl.Series(["a", "b"] * 55 + [None] * 890)
    assert needed(look("x", word), flag)
    assert not needed(look("x", pl.Series(["a", "b"] * 45 + [None] * 910)), flag)
    # Where 20 positives are expected by chance, their absence says little.
    assert not needed(look("x", pl.Series(["a", "b"] * 400 + [None] * 200)), flag)


@pytest.mark.parametrize(("name", "wait"), [("t", "10m"), ("t_ms", "10m"), ("t_s", "6h")])
def test_milliseconds_are_not_waited_for_as_seconds(name, wait, tmp_path):
    """A wait as long as a split leaves no row of it."""
    frame = advertisements().rename({"t": name})
    if name == "t_s":  # the log's times are seconds, and so are the long ones
        frame = frame.with_columns(ms=pl.col("ms") // 1000, t_s=pl.col("t_s") // 5)
    made, _ = drafted(frame, tmp_path, hide=False)
    assert made.values["pipeline"]["log"]["known_after"] == wait
    assert made.values["pipeline"]["split"]["test"] == (0.2 if wait == "6h" else 0.1)
    made.values["pipeline"]["log"]["known_after"] = "1d"
    made.values["pipeline"]["split"]["validation"] = 0.05
    message = [one.message for one in check(made.config(), tmp_path).findings if one.fails]
    assert message[0].startswith("no row of the validation split has a label")
