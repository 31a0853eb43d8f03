"""The examples of docs/modelling.md are valid."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.configs.sections.pipeline import SideTable

PAGE = (Path(__file__).parents[2] / "docs/modelling.md").read_text()
BLOCKS = re.findall(r"```(yaml|python)\n(.*?)```", PAGE, re.DOTALL)
YAML = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]


@pytest.mark.parametrize("example", [one["pipeline"] for one in YAML if "pipeline" in one])
def test_side_tables_are_valid(example: dict[str, Any]) -> None:
    for name, table in example.items():
        parse(SideTable, table, f"modelling.md: {name}")


@pytest.mark.parametrize("example", [one for one in YAML if "pipeline" not in one])
def test_features_are_valid(example: dict[str, Any]) -> None:
    values = {
        "user": "user_id",
        "item": "item_id",
        "features": {
            "user_id": {"kind": "id", "side": "user"},
            "item_id": {"kind": "id", "side": "item"},
            "topic": {"kind": "id", "side": "item"},
            **example,
        },
        "tasks": {
            "click": {
                "group": "engagement",
                "type": "binary",
                "label": {"rule": "column", "column": "click"},
            }
        },
    }
    assert set(example) <= set(parse(Contract, values, "modelling.md").features)


@pytest.mark.parametrize("example", [text for kind, text in BLOCKS if kind == "python"])
def test_python_compiles(example: str) -> None:
    compile(example, "modelling.md", "exec")


def test_the_words_of_the_page_are_the_words() -> None:
    from multigate.model.data.ngrams import words

    assert "`Don't panic 🎉` has the words `don`, `t`, `panic`, `🎉`" in PAGE
    assert words("Don't panic 🎉") == ["don", "t", "panic", "🎉"]
    assert words("café") != words("cafe")
