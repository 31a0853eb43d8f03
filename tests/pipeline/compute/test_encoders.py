"""A side table's texts become vectors by a function of the user's."""

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from multigate.configs.config import Config
from multigate.configs.errors import ConfigError, DataError
from multigate.configs.files import SPLITS
from multigate.configs.sections.base import parse
from multigate.jobs.onboarding.check import check
from multigate.pipeline import job
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.compute.tables import read_table
from multigate.verbs.command import main

T = 1_750_000_000
ENCODER = """
import numpy as np

CALLS = []

def titles(texts):
    CALLS.append(list(texts))
    return [[len(text), text.count("e")] for text in texts]

def wide(texts):
    return [[1, 2, 3] for _ in texts]

def few(texts):
    return [[1, 2]]

def broken(texts):
    raise RuntimeError("no\\nweights")

def silent(texts):
    raise ValueError

def leaves(texts):
    raise SystemExit(3)

def ragged(texts):
    return [[1, 2], [3]]

def one_by_one(texts):
    return (len(text) for text in texts)

def words(texts):
    return texts

def unbounded(texts):
    return [[1, 1e300] for _ in texts]

def empty(texts):
    return [[] for _ in texts]

def dates(texts):
    return np.zeros((len(texts), 2), "datetime64[s]")

def imaginary(texts):
    return np.zeros((len(texts), 2), complex)

def absent(texts):
    return None

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError

def unspeakable(texts):
    raise Unspeakable

class Panic(BaseException):
    pass

def panics(texts):
    raise Panic("\x1b[31m" + 1000 * "out of tokens ")

def interrupted(texts):
    raise KeyboardInterrupt

def masked(texts):
    return np.ma.masked_greater(np.arange(2.0 * len(texts)).reshape(-1, 2), 2)

def outlier(texts):
    return [[1000, len(text) + SHAKE] for text in texts]

class Stops:
    def __array__(self, *rest, **more):
        raise SystemExit("no\\nmemory")

def stops(texts):
    return Stops()

def __getattr__(name):
    if name == "lazy":
        raise ImportError("lazy needs torch")
    raise AttributeError(name)

def greedy(texts):
    vectors = [[len(text), 0] for text in texts]
    texts.clear()
    return vectors

def shaky(texts):
    SHAKES.append(SHAKE)
    return [[len(text) + (len(SHAKES) > 1) * SHAKE, 1] for text in texts]

SHAKE, SHAKES = 0.0, []

nothing = 3
"""
ITEMS = [("a", "Three trees", "x"), ("b", "", "y"), ("c", " Three trees ", ""), ("d", "Elm", "z")]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log and a table of items; the encoder's module is beside it."""
    modules, folder = tmp_path / "modules", tmp_path / "log"
    modules.mkdir()
    folder.mkdir()
    (modules / "my_encoders.py").write_text(ENCODER)
    (modules / "my_faulty.py").write_text("import absent_library\n")
    monkeypatch.syspath_prepend(modules)
    for name in ("my_encoders", "my_faulty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    rows = [f"u{at % 3},{'abcd'[at % 4]},{T + at},{at % 2}" for at in range(40)]
    (folder / "log.csv").write_text("\n".join(["user,item,time,click", *rows]) + "\n")
    items = ["item,title,topic", *(",".join(one) for one in ITEMS)]
    (folder / "items.csv").write_text("\n".join(items) + "\n")
    return folder


def values(**changes: Any) -> dict[str, Any]:
    """A configuration with these changes of its table of items."""
    cover = {"kind": "vector", "side": "item", "source": "items", "size": 2, "missing": "indicator"}
    items = {
        "files": ["items.csv"],
        "key": "item",
        "encode": {"cover": {"text": "title", "by": "my_encoders:titles"}},
    }
    return {
        "name": "encoded",
        "contract": {
            "user": "user",
            "item": "item",
            "features": {
                "user": {"kind": "id", "side": "user"},
                "item": {"kind": "id", "side": "item"},
                "cover": cover,
            },
            "tasks": {
                "click": {
                    "group": "engagement",
                    "type": "binary",
                    "label": {"rule": "column", "column": "click"},
                }
            },
        },
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.csv"],
                "columns": {"time": "time", "user": "user", "item": "item"},
            },
            "items": items | changes,
            "split": {"by": "random", "validation": 0.1, "test": 0.1},
        },
    }


def config(**changes: Any) -> Config:
    return parse(Config, values(**changes), "encoded.yaml")


def by(function: str) -> dict[str, Any]:
    return {"encode": {"cover": {"text": "title", "by": function}}}


def test_examples_and_snapshot_hold_the_encoder_s_vectors(data: Path, tmp_path: Path) -> None:
    job.run(config(), data, tmp_path / "examples")
    made = tmp_path / "examples"
    paths = [path for split in SPLITS for path in (made / split).glob("*.parquet")]
    rows = pl.concat(map(pl.read_parquet, paths))
    expected: dict[str, Any] = {"a": [11, 4], "b": None, "c": [11, 4], "d": [3, 0]}
    for found in (rows, pl.read_parquet(made / "snapshot/items")):
        assert dict(found.select("item", "cover").rows()) == expected


def test_each_text_is_encoded_once_and_without_blanks(data: Path) -> None:
    read_table(config(), data, "items", None)
    assert sys.modules["my_encoders"].CALLS == [["Three trees", "Elm"]]


def test_derived_columns_are_encoded(data: Path) -> None:
    derive = {"both": {"join": ["title", "topic"], "separator": " "}}
    encode = {"cover": {"text": "both", "by": "my_encoders:titles"}}
    read_table(config(derive=derive, encode=encode), data, "items", None)
    (texts,) = sys.modules["my_encoders"].CALLS
    assert texts == ["Three trees x", "y", "Three trees", "Elm z"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "my_encoder:titles",
            "cover.by: my_encoder:titles: cannot import 'my_encoder' .*PYTHONPATH",
        ),
        ("my_faulty:titles", r"cannot import 'my_faulty' .*absent_library.*"),
        ("my_encoders:title", "my_encoders has no function 'title'; did you mean 'titles'"),
        ("my_encoders:nothing", "expected a function, 'nothing' of my_encoders is of type int"),
        ("my_encoders:few", r"expected an array of 2 vectors .* received list of the shape \(1, 2"),
        ("my_encoders:empty", r"received list of the shape \(2, 0\)"),
        ("my_encoders:absent", r"received NoneType of the shape \(\)"),
        ("my_encoders:dates", r"received an array of datetime64\[s\]"),
        ("my_encoders:imaginary", "received an array of complex128"),
        ("my_encoders:masked", "received an array with masked values"),
        ("my_encoders:stops", "received Stops: SystemExit: no memory$"),
        ("my_encoders:lazy", r"cannot import 'my_encoders' \(ImportError: lazy needs torch\)"),
        ("my_encoders:unspeakable", "failed on 2 texts: Unspeakable$"),
        ("my_encoders:panics", r"failed on 2 texts: Panic: \[31mout of .{,290}…$"),
        ("my_encoders:broken", "my_encoders:broken failed on 2 texts: RuntimeError: no weights$"),
        ("my_encoders:silent", "my_encoders:silent failed on 2 texts: ValueError$"),
        ("my_encoders:leaves", "my_encoders:leaves failed on 2 texts: SystemExit: 3$"),
        ("my_encoders:ragged", "of numbers, .*, received list: ValueError: .*sequence"),
        ("my_encoders:one_by_one", r"received generator of the shape \(\)"),
        ("my_encoders:words", r"received list of the shape \(2,\)"),
        (
            "my_encoders:wide",
            "line 2: cover: expected a vector of 2 numbers, .* of 3, made by my_encoders:wide",
        ),
        (
            "my_encoders:unbounded",
            "cover: expected finite numbers.*, made by my_encoders:unbounded",
        ),
    ],
)
def test_what_an_encoder_does_wrong_is_one_line(
    data: Path, tmp_path: Path, function: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        job.run(config(**by(function)), data, tmp_path / "examples")
    assert str(caught.value).startswith("pipeline.items")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "examples" / SPLITS[0]).exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encode": {"other": {"text": "title", "by": "m:f"}}}, "encode.other: .*received none"),
        ({"derive": {"cover": {"lower": "title"}}}, "encode.cover: derive makes a column"),
        ({"encode": {"cover": {"text": "title", "by": "m.f"}}}, "encode.cover.by"),
        ({"encode": {"cover": {"text": "title", "by": "m.:f"}}}, "encode.cover.by"),
        ({"encode": {"cover": {"text": "title", "by": "m:1"}}}, "encode.cover.by"),
        ({"encode": {"cover": {"text": "", "by": "m:f"}}}, "encode.cover.text"),
        ({"encode": {"": {"text": "title", "by": "m:f"}}}, "encode"),
        ({"key": "cover"}, "encode.cover: key reads a column of that name"),
        ({"time": "cover"}, "encode.cover: time reads a column of that name"),
    ],
)
def test_a_wrong_rule_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_a_feature_of_another_kind_is_refused() -> None:
    given = values()
    feature = {"kind": "id", "side": "item", "source": "items", "missing": "indicator"}
    given["contract"]["features"]["cover"] = feature
    with pytest.raises(ConfigError, match=r"features of kind vector .*received 'cover' of kind id"):
        parse(Config, given, "encoded.yaml")


def test_a_vector_of_the_log_is_named() -> None:
    given = values()
    given["contract"]["features"]["cover"]["source"] = "log"
    with pytest.raises(ConfigError, match=r"received none; 'cover' reads a column of .* of log$"):
        parse(Config, given, "encoded.yaml")


@pytest.mark.parametrize("name", ["name", "topic"])
def test_texts_cannot_be_renamed_away(data: Path, name: str) -> None:
    """Their column would be empty, and no vector made."""
    with pytest.raises(ConfigError, match=r"pipeline.items.rename: "):
        read_table(config(rename={name: ["title"]}), data, "items", None)


def test_an_earlier_name_of_the_texts_is_read(data: Path) -> None:
    path = data / "items.csv"
    path.write_text(path.read_text().replace("title", "heading", 1))
    read_table(config(rename={"title": ["heading"]}), data, "items", None)
    assert sys.modules["my_encoders"].CALLS == [["Three trees", "Elm"]]


def test_a_text_of_two_files_is_encoded_once(data: Path) -> None:
    (data / "more.csv").write_text("item,title,topic\ne,Elm,x\nf,Oak,\n")
    table = read_table(config(files=["items.csv", "more.csv"]), data, "items", None)
    assert sys.modules["my_encoders"].CALLS == [["Three trees", "Elm", "Oak"]]
    assert table is not None
    found: dict[str, Any] = dict(table.select("item", "cover").rows())
    assert (found["d"], found["e"], found["f"]) == ([3, 0], [3, 0], [3, 0])


def test_a_call_has_at_most_1024_texts(data: Path) -> None:
    rows = [f"i{at},text {at},x" for at in range(2500)]
    (data / "items.csv").write_text("\n".join(["item,title,topic", *rows]) + "\n")
    read_table(config(), data, "items", None)
    calls = sys.modules["my_encoders"].CALLS
    assert [len(call) for call in calls] == [1024, 1024, 452]
    assert [text for call in calls for text in call] == [f"text {at}" for at in range(2500)]


@pytest.mark.parametrize("names", [("title", "cover"), ("cover", "title")])
def test_rules_read_the_files_texts_in_any_order(data: Path, names: tuple[str, str]) -> None:
    """A rule never reads the vectors of another, whose column may have the name of its texts."""
    given = values(encode={name: {"text": "title", "by": "my_encoders:titles"} for name in names})
    features = given["contract"]["features"]
    features["title"] = features["cover"]
    table = read_table(parse(Config, given, "encoded.yaml"), data, "items", None)
    assert table is not None
    assert table["title"].to_list() == table["cover"].to_list() == [[11, 4], None, [11, 4], [3, 0]]
    assert sys.modules["my_encoders"].CALLS == [["Three trees", "Elm"]]


def test_an_encoder_may_change_its_list(data: Path) -> None:
    table = read_table(config(**by("my_encoders:greedy")), data, "items", None)
    assert table is not None
    assert table["cover"].to_list() == [[11, 0], None, [11, 0], [3, 0]]


def test_an_interrupt_is_no_failure_of_the_encoder(data: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        read_table(config(**by("my_encoders:interrupted")), data, "items", None)


def test_no_encoder_sees_the_texts_of_users_to_forget(data: Path, tmp_path: Path) -> None:
    given = values()
    features, pipeline = given["contract"]["features"], given["pipeline"]
    features["cover"] |= {"side": "user", "source": "users"}
    rows = ["u0,about zero", "u1,about one", "u2,about two"]
    (data / "users.csv").write_text("\n".join(["user,about", *rows]) + "\n")
    rule = {"cover": {"text": "about", "by": "my_encoders:titles"}}
    pipeline["users"] = {"files": ["users.csv"], "key": "user", "encode": rule}
    del pipeline["items"]
    (tmp_path / "gone.txt").write_text("u1\n")
    one = parse(Config, given, "encoded.yaml")
    job.run(one, data, tmp_path / "made", forget=tmp_path / "gone.txt")
    audit(one, data, tmp_path / "made", forget=tmp_path / "gone.txt")
    (data / "gone.txt").write_text("u1\n")
    given["pipeline"]["forget"] = "gone.txt"
    check(parse(Config, given, "encoded.yaml"), data)
    assert {text for call in sys.modules["my_encoders"].CALLS for text in call} == {
        "about zero",
        "about two",
    }


def test_the_audit_finds_another_vector_beside_a_large_number(data: Path, tmp_path: Path) -> None:
    one = config(**by("my_encoders:outlier"))
    job.run(one, data, tmp_path / "made")
    sys.modules["my_encoders"].SHAKE = 0.5  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"'cover': number 2 of 2: expected (11|3).5 .* received "):
        audit(one, data, tmp_path / "made")


@pytest.mark.parametrize(
    ("dtype", "before", "after"),
    [("int", "9007199254740993|5", "9007199254740992|5"), ("string", "x|y", "x|w")],
)
def test_the_audit_finds_another_list_of_a_table(
    data: Path, tmp_path: Path, dtype: str, before: str, after: str
) -> None:
    given = values(encode={})
    given["contract"]["features"]["cover"] = {
        **{"kind": "id_list", "side": "item", "source": "items", "dtype": dtype},
        **{"column": "topic", "max_length": 3},
    }
    one, items = parse(Config, given, "encoded.yaml"), data / "items.csv"
    items.write_text("item,topic\n" + "".join(f"{item},{before}\n" for item in "abcd"))
    job.run(one, data, tmp_path / "made")
    items.write_text(items.read_text().replace(before, after))
    with pytest.raises(DataError, match=r"feature 'cover': expected \[.*from the items table"):
        audit(one, data, tmp_path / "made")


def test_nothing_is_encoded_for_a_run_that_cannot_be(data: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(DataError, match="already exists"):
        job.run(config(), data, tmp_path / "made")
    with (data / "items.csv").open("a") as items:
        items.write("a,Another title,x\n")
    with pytest.raises(DataError, match="expected one row per id"):
        job.run(config(), data, tmp_path / "other")
    assert "my_encoders" not in sys.modules


@pytest.mark.parametrize("shake", [1e-3, 1.0])
def test_the_audit_allows_an_encoder_to_round(data: Path, tmp_path: Path, shake: float) -> None:
    one = config(**by("my_encoders:shaky"))
    job.run(one, data, tmp_path / "made")
    sys.modules["my_encoders"].SHAKE = shake  # type: ignore[attr-defined]
    if shake < 0.01:
        assert audit(one, data, tmp_path / "made")["examples"] == 40
        return
    with pytest.raises(DataError, match=r"'cover': number 1 of 2: expected (12|4).0 .* received "):
        audit(one, data, tmp_path / "made")


def test_a_missing_column_of_texts_is_named(data: Path) -> None:
    wrong = config(encode={"cover": {"text": "name", "by": "my_encoders:titles"}})
    with pytest.raises(DataError, match="no column 'name'"):
        read_table(wrong, data, "items", None)


def test_check_runs_the_encoder(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "encoded.yaml"
    file.write_text(yaml.safe_dump(values(**by("my_encoders:wide"))))
    assert main(["check", "--config", str(file), "--data", str(data)]) == 1
    assert "expected a vector of 2 numbers, received one of 3" in capsys.readouterr().out
