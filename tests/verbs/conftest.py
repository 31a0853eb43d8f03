"""What the tests that walk all verbs share."""

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.jobs.publication import trial
from multigate.jobs.publication.base_folder import Base


@pytest.fixture
def on_trial(small_run: Any, tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Puts a version on trial, and logs calls to it whose users stand in a column of that name."""

    def make(user: str) -> tuple[Path, Path]:
        base, shown = tmp_path / "tried", tmp_path / "shown"
        for number in ("1", "2"):
            shutil.copytree(small_run.root / "run/models/demo/1", base / number)
        trial.begin(Base(base), 2, 50.0, 0.0)
        shown.mkdir()
        row = {
            "ranked/time": datetime.now(UTC) - timedelta(days=1),
            "ranked/trial": 2,
            "ranked/canary": 50.0,
            "ranked/shadow": False,
            **{f"ranked/score/{task}": 0.5 for task in small_run.config.contract.tasks},
        }
        rows = []
        for at in range(8):
            group, version = ("canary", 2) if at % 2 else ("stable", 1)
            ids = {"ranked/request_id": f"r{at}", user: f"u{at}", "item_id": f"i{at}"}
            rows.append(row | ids | {"ranked/group": group, "ranked/model_version": version})
        pl.DataFrame(rows).write_parquet(shown / "impressions-1.parquet")
        return base, shown

    return make


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
