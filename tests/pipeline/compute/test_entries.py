"""What is known of a history's entries: event, age and category, as of the event."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError
from multigate.configs.files import SPLITS
from multigate.configs.sections.base import parse
from multigate.features import last_entries
from multigate.pipeline import job
from multigate.pipeline.audit import audit

T = 1_750_000_000
LOG = [
    (0, "VIEW", "a", "x"),
    (10, "LIKE", "a", ""),  # has no topic of its own: that of the user's view of it
    (10, "VIEW", "b", "y"),
    (50, "LIKE", "e", "z"),
    (50, "VIEW", "e", "z"),
    (100, "VIEW", "c", ""),
    (200, "VIEW", "a", "later"),
    (200, "VIEW", "d", "x"),
]
HISTORY = {"events": ["VIEW", "LIKE"], "last": 6, "with": ["event", "age", "topic"]}


def make_config(history: dict[str, Any] = HISTORY, **model: Any) -> Config:
    features = {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "topic": {"kind": "id", "side": "item", "missing": "indicator"},
        "place": {"kind": "id", "side": "context", "column": "event"},
        "recent": {
            "kind": "id_list",
            "side": "user",
            "share": "item_id",
            "history": history,
            "max_length": 6,
        },
    }
    like = {"rule": "event", "events": ["LIKE"], "within": "1h"}
    columns = {"time": "time", "user": "user_id", "item": "item_id", "event": "event"}
    values = {
        "name": "entries",
        "contract": {
            "user": "user_id",
            "item": "item_id",
            "features": features,
            "tasks": {"like": {"group": "satisfaction", "type": "binary", "label": like}},
        },
        "pipeline": {
            "log": {
                "shape": "events",
                "files": ["log.csv"],
                "format": {"type": "csv"},
                "impression": "VIEW",
                "columns": columns,
            },
            "split": {"by": "random", "validation": 0.1, "test": 0.1},
            "hold_back": False,
        },
        "model": model,
    }
    return parse(Config, values, "entries.yaml")


def write_log(folder: Path, rows: list[Any]) -> Path:
    folder.mkdir()
    lines = [f"{T + t},u1,{item},{event},{topic}" for t, event, item, topic in rows]
    text = "\n".join(["time,user_id,item_id,event,topic", *lines])
    (folder / "log.csv").write_text(text + "\n")
    return folder


def examples(folder: Path) -> pl.DataFrame:
    paths = [path for split in SPLITS for path in (folder / split).glob("*.parquet")]
    return pl.concat(map(pl.read_parquet, paths))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_entries_of_an_event_log(tmp_path: Path, seed: int | None) -> None:
    """The order of the rows in the file changes nothing."""
    rows = list(LOG)
    if seed is not None:
        random.Random(seed).shuffle(rows)
    data = write_log(tmp_path / "log", rows)
    config = make_config()
    job.run(config, data, tmp_path / "examples")
    found = examples(tmp_path / "examples")
    (row,) = found.filter(item_id="d").to_dicts()
    assert row["recent"] == ["a", "a", "b", "e", "e", "c"]
    assert row["recent__event"] == ["VIEW", "LIKE", "VIEW", "LIKE", "VIEW", "VIEW"]
    assert row["recent__age"] == [200, 190, 190, 150, 150, 100]
    assert row["recent__topic"] == ["x", "x", "y", "z", "z", None]
    (first,) = found.filter(item_id="b").to_dicts()
    assert (first["recent"], first["recent__age"]) == (["a"], [10])
    # The snapshot is of just after the log: both views of 200 s are there, the oldest entry is not.
    (user,) = pl.read_parquet(tmp_path / "examples/snapshot/users").to_dicts()
    assert user["recent"] == ["b", "e", "e", "c", "a", "d"]
    assert user["recent__topic"] == ["y", "z", "z", None, "later", "x"]
    assert audit.audit(config, data, tmp_path / "examples")["examples"] == len(found)


def test_later_events_change_no_earlier_entry(tmp_path: Path) -> None:
    """Likes of one instant, some without a topic: many later ones do not change their order."""
    rng = random.Random(0)
    rows = [(0, "VIEW", "a", "w")]
    for at in range(1, 60):
        rows += [(10 * at, "LIKE", "a", topic) for topic in ("", *rng.sample("xyz", 2))]
        rows += [(10 * at, "VIEW", item, "") for item in "ab"]
    config, found = make_config(HISTORY | {"events": ["LIKE"]}), []
    for name, some in (("less", rows[:151]), ("more", rows)):
        data = write_log(tmp_path / name, some)
        job.run(config, data, tmp_path / f"{name}-out")
        found.append(examples(tmp_path / f"{name}-out").filter(pl.col("item_id") == "b"))
        audit.audit(config, data, tmp_path / f"{name}-out")
    lists = [found[k].sort("meta/time")["recent__topic"].to_list() for k in (0, 1)]
    assert lists[0] == lists[1][: len(lists[0])]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("recent__event", ["LIKE"], "feature 'recent__event': expected .*'VIEW'.* received"),
        ("recent__age", [1], "feature 'recent__age': expected .*received"),
        ("recent__topic", ["later"], "feature 'recent__topic': expected .*received"),
    ],
)
def test_the_audit_catches_a_wrong_entry(
    tmp_path: Path, name: str, wrong: list[Any], message: str
) -> None:
    config, data = make_config(), write_log(tmp_path / "log", LOG)
    job.run(config, data, tmp_path / "examples")
    for path in (path for split in SPLITS for path in (tmp_path / "examples" / split).iterdir()):
        frame = pl.read_parquet(path)
        bad = pl.when(pl.col("item_id") == "b").then(pl.lit(pl.Series([wrong]))).otherwise(name)
        frame.with_columns(bad.alias(name)).write_parquet(path)
    with pytest.raises(Exception, match=message):
        audit.audit(config, data, tmp_path / "examples")


def test_entries_of_one_instant_are_in_the_order_of_what_is_known() -> None:
    at = pl.Series([0, 0, 0]).cast(pl.Datetime("us", "UTC"))
    events = pl.DataFrame({"user": "u", "item": ["b", "a", "a"], "event": ["x", "y", "x"]})
    queries = pl.DataFrame({"user": ["u"], "time": [1]}).cast({"time": pl.Datetime("us", "UTC")})
    found = last_entries(events.with_columns(time=at), queries, 5, beside=["event"])
    assert found["item"].lists().to_list() == [["a", "a", "b"]]
    assert found["event"].lists().to_list() == [["x", "y", "x"]]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("item_id", "history.with: expected some of event, age and id features of the item"),
        ("place", "history.with: expected some of event, age and id features of the item"),
        ("nothing", "history.with: .* received 'nothing'"),
    ],
)
def test_what_a_history_can_be_told_with(what: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(HISTORY | {"with": [what]})


def test_a_category_has_the_width_of_the_items() -> None:
    with pytest.raises(ConfigError, match=r"'topic' is added to the entries of 'recent'.* 16, rec"):
        make_config(embedding_dims={"topic": 4})


def test_two_underscores_are_for_the_lists_of_histories() -> None:
    values = make_config().contract.model_dump()
    values["features"]["recent__place"] = values["features"]["place"]
    with pytest.raises(ConfigError, match="feature 'recent__place': two underscores"):
        parse(type(make_config().contract), values, "contract")


def test_a_run_of_some_days_tells_the_same_of_entries(tmp_path: Path) -> None:
    """A like in the window whose view lies before it: the category is at most `attribution` old."""
    day = 86_400
    midnight = -T % day  # of the next day, in seconds since T
    rows = [(midnight + 1800 * n, "VIEW", f"z{n}", "w") for n in range(40)]
    rows += [(midnight + day, "VIEW", "a", "x"), (midnight + day + 60, "VIEW", "b", "y")]
    rows += [(midnight + day + 5 * 3600, "LIKE", "a", "")]
    rows += [(midnight + day + 14 * 3600, "LIKE", "b", "")]
    rows += [(midnight + 2 * day + 7200 + 60 * n, "VIEW", f"q{n}", "y") for n in range(10)]
    history = {"events": ["LIKE"], "last": 6, "within": "1d", "with": ["topic"]}
    values = make_config(history).model_dump(mode="json", by_alias=True)
    features = values["contract"]["features"]
    values["contract"]["features"] = {k: v for k, v in features.items() if "__" not in k}
    values["pipeline"]["attribution"] = "6h"
    config = parse(Config, values, "entries.yaml")
    data = write_log(tmp_path / "log", sorted(rows))
    noon = datetime.fromtimestamp(T + midnight + 2 * day + 3600, UTC)
    found = {}
    for name, span in (("whole", None), ("days", (noon, noon + timedelta(hours=22)))):
        job.run(config, data, tmp_path / name, span=span)
        made = examples(tmp_path / name).filter(pl.col("item_id").str.starts_with("q"))
        found[name] = sorted(made.select("item_id", "recent", "recent__topic").rows())
    assert len(found["whole"]) == 10
    assert found["days"] == found["whole"]
    # The like of a came within six hours of its view; that of b did not.
    assert found["whole"][0][1:] == (["a", "b"], ["x", None])
