"""What the tests that walk all verbs share."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def words_of(small_run: Any, tmp_path: Path) -> Callable[..., list[str]]:
    """Makes a command line's words of a text with places of the small run in it."""
    values = small_run.config.model_dump(mode="json", exclude_unset=True)
    values["tune"] = {"space": {"train.learning_rate": {"low": 0.001, "high": 0.002}}}
    values["candidates"] = {"embedding_dim": 4, "units": [4], "epochs": 1}
    (tmp_path / "config.yaml").write_text(json.dumps(values))
    run = small_run.root / "run"
    places = {
        "LOGS": small_run.root / "logs",
        "EXAMPLES": run / "examples",
        "VERSION": run / "models/demo/1",
        "BASE": run / "models/demo",
        "CHECKPOINT": run / "checkpoint",
        "CONFIG": tmp_path / "config.yaml",
        "OUT": tmp_path / "out",
    }

    def make(text: str, **more: str) -> list[str]:
        for name, place in {**places, **more}.items():
            text = re.sub(rf"\b{name}\b", str(place), text)
        return text.split()

    return make
