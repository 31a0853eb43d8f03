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
from multigate.pipeline import job
from multigate.pipeline.compute.tables import read_table
from multigate.verbs.command import main

T = 1_750_000_000
ENCODER = """
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
    return [[1, float("inf")] for _ in texts]

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
    read_table(config(), data, "items")
    assert sys.modules["my_encoders"].CALLS == [["Three trees", "Elm"]]


def test_derived_columns_are_encoded(data: Path) -> None:
    derive = {"both": {"join": ["title", "topic"], "separator": " "}}
    encode = {"cover": {"text": "both", "by": "my_encoders:titles"}}
    read_table(config(derive=derive, encode=encode), data, "items")
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
        ("my_encoders:nothing", "my_encoders has no function 'nothing'"),
        ("my_encoders:few", r"expected an array of 2 vectors, .* received one of the shape \(1, 2"),
        ("my_encoders:broken", "my_encoders:broken failed on 2 texts: RuntimeError: no weights$"),
        ("my_encoders:silent", "my_encoders:silent failed on 2 texts: ValueError$"),
        ("my_encoders:leaves", "my_encoders:leaves failed on 2 texts: SystemExit: 3$"),
        ("my_encoders:ragged", "my_encoders:ragged failed on 2 texts: ValueError: .*sequence"),
        ("my_encoders:one_by_one", "my_encoders:one_by_one failed on 2 texts: TypeError: .*"),
        ("my_encoders:words", "my_encoders:words failed on 2 texts: ValueError: .*"),
        ("my_encoders:wide", "items.csv: line 2: cover: expected a vector of 2 numbers, .* of 3"),
        ("my_encoders:unbounded", "items.csv: line 2: cover: expected finite numbers"),
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


def test_a_missing_column_of_texts_is_named(data: Path) -> None:
    wrong = config(encode={"cover": {"text": "name", "by": "my_encoders:titles"}})
    with pytest.raises(DataError, match="no column 'name'"):
        read_table(wrong, data, "items")


def test_check_runs_the_encoder(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "encoded.yaml"
    file.write_text(yaml.safe_dump(values(**by("my_encoders:wide"))))
    assert main(["check", "--config", str(file), "--data", str(data)]) == 1
    assert "expected a vector of 2 numbers, received one of 3" in capsys.readouterr().out
