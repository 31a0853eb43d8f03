"""A log by days and a configuration whose whole run takes seconds."""

import ctypes
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

_LIBC = ctypes.CDLL(None)
_CAPABILITY_VERSION_3 = 0x20080522  # of linux/capability.h, as are the bits
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2

CONTRACT: dict[str, Any] = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item"},
        "country": {"kind": "id", "side": "user", "missing": "indicator"},
        "length": {"kind": "number", "side": "item", "transform": "log1p"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
            "score_weight": 1,
        },
        "rating": {
            "group": "satisfaction",
            "type": "regression",
            "label": {"rule": "column", "column": "rating"},
        },
    },
}


TOWERS: dict[str, Any] = {
    "embedding_dim": 8,
    "epochs": 2,
    "batch_size": 256,
    "recall_at": 10,
    "rules": {"largest_below_popularity": 1.0},
}
"""A section `candidates` whose model trains in a moment, whatever it learns."""


def settings(candidates: dict[str, Any] | None = None, **run: Any) -> dict[str, Any]:
    """The configuration as YAML holds it; keyword arguments go under `run`.

    `candidates` changes `TOWERS`; the section is absent where it is None.
    """
    section = {} if candidates is None else {"candidates": TOWERS | candidates}
    return section | {
        "name": "night",
        "contract": CONTRACT,
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["*.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {
                    "time": "time",
                    "user": "user_id",
                    "item": "item_id",
                    "request": "request_id",
                },
            },
            "split": {"by": "time", "validation": 0.1, "test": 0.2},
            "buckets": 1,
        },
        "model": {
            "embedding_dim": 8,
            "experts": {"count": 2, "units": [8], "dropout": 0.0},
            "towers": {"units": []},
        },
        "train": {
            "epochs": 3,
            "batch_size": 64,
            "learning_rate": 0.02,
            "decay": "none",
            "ema": None,
        },
        "run": run,
    }


DAY = date(2026, 1, 30)


class Finished:
    """Where the first night was run, and what it returned."""

    def __init__(self, runs: Path, logs: Path, told: Path, result: dict[str, Any]) -> None:
        self.runs, self.logs, self.told, self.result = runs, logs, told, result

    def copy(self, to: Path) -> Path:
        """The same night in another folder."""
        shutil.copytree(self.runs, to)
        return to

    def unfinished(self, to: Path, stage: str) -> Path:
        """The night as it was before a stage, with nothing published."""
        from multigate.configs.sections.run import ALL_STAGES
        from multigate.jobs.night.folder import RunFolder

        self.copy(to)
        folder = RunFolder(to, DAY)
        folder.invalidate(stage)
        for later in ALL_STAGES[ALL_STAGES.index(stage) :]:
            folder.remove_output(later)
        shutil.rmtree(to / "models")
        return to


class Nights:
    """Makes logs and configurations."""

    def __init__(self, days: dict[date, pl.DataFrame]) -> None:
        self.days = days
        self.settings = settings

    def config(self, **run: Any) -> Any:
        """The configuration; keyword arguments go under `run`."""
        from multigate.configs.config import Config
        from multigate.configs.sections.base import parse

        return parse(Config, settings(**run), "night.yaml")

    def write_config(self, path: Path, **run: Any) -> Path:
        """The same as a file."""
        path.write_text(yaml.safe_dump(settings(**run)))
        return path

    def write_log(self, folder: Path, days: Iterable[date] | None = None) -> Path:
        """Files of some days, or of all; those that are there stay."""
        folder.mkdir(exist_ok=True)
        for day in days if days is not None else self.days:
            self.days[day].write_ndjson(folder / f"{day}.jsonl")
        return folder


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """A month of 6,000 exposures by days."""
    from multigate.jobs.simulate import simulate

    folder = tmp_path_factory.mktemp("month") / "logs"
    simulate(folder, seed=3, users=150, items=60, exposures=6_000)
    log = pl.concat([pl.read_ndjson(path) for path in sorted(folder.glob("*.jsonl"))])
    days = log.with_columns(day=pl.from_epoch("time").dt.date()).partition_by("day", as_dict=True)
    return Nights({day: rows.drop("day") for (day,), rows in sorted(days.items())})


@pytest.fixture(scope="session")
def finished(nights: Nights, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A night without a candidate model, published."""
    from multigate.jobs.night.nightly import run

    folder = tmp_path_factory.mktemp("nights")
    logs, told = nights.write_log(folder / "logs"), folder / "told.jsonl"
    config = nights.config(notify=f"sh -c 'cat >> {told}'")
    return Finished(folder / "runs", logs, told, run(config, DAY, logs, folder / "runs"))


@pytest.fixture(scope="session")
def both(nights: Nights, finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same night with a candidate model, published."""
    from multigate.jobs.night.nightly import run

    runs = finished.unfinished(tmp_path_factory.mktemp("both") / "runs", "candidates_training")
    result = run(nights.config(candidates={}), DAY, finished.logs, runs)
    return Finished(runs, finished.logs, finished.told, result)


@pytest.fixture
def obeys_permissions() -> Any:
    """A context in which a read-only folder is one for root as well."""

    @contextmanager
    def obey() -> Iterator[None]:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)  # of this thread
        before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low then high words
        assert _LIBC.capget(header, before) == 0
        dropped = (ctypes.c_uint32 * 6)(*before)
        dropped[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
        assert _LIBC.capset(header, dropped) == 0
        try:
            yield
        finally:
            assert _LIBC.capset(header, before) == 0

    return obey
