"""A small examples folder with every kind of feature, and the configuration that fits it."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract, fingerprint
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.sections.base import parse
from multigate.configs.statistics import Statistics

CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user"},
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
        "country": {"kind": "id", "side": "user", "missing": "indicator"},
        "age": {
            "kind": "number",
            "side": "user",
            "scale": "buckets",
            "buckets": 4,
            "missing": "indicator",
        },
        "length": {"kind": "number", "side": "item", "transform": "log1p"},
        "recent": {
            "kind": "id_list",
            "side": "user",
            "dtype": "int",
            "share": "item_id",
            "history": {"events": ["click"], "last": 4},
            "max_length": 4,
        },
        "position": {"kind": "position", "max_position": 5},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
        },
        "dwell": {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "column", "column": "dwell"},
            "when": "click",
            "transform": "log1p",
            "weight": 0.5,
        },
        "like": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "column", "column": "like"},
        },
    },
}

PIPELINE = {
    "log": {
        "shape": "impressions",
        "files": ["*.jsonl"],
        "format": {"type": "jsonl"},
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "known_after": "10m",
    },
    "split": {"by": "time", "validation": 0.2, "test": 0.2},
}

TRAIN = {"epochs": 2, "batch_size": 64, "learning_rate": 0.01, "seed": 3}
PLAIN = {"batch_size": 512, "learning_rate": 1e-3, "decay": "none", "ema": None, "patience": 2}
"""Without what smooths training: tests compare single steps."""


def make_config(**changes: object) -> Config:
    """The configuration of the tiny data set; keyword arguments replace whole sections.

    Training is `PLAIN`, and experts have no dropout, where the sections do not say otherwise.
    """
    values: dict[str, Any] = {
        "name": "tiny",
        "contract": CONTRACT,
        "pipeline": PIPELINE,
        "model": {
            "embedding_dim": 4,
            "experts": {"count": 4, "units": [8]},
            "gate": {"name": "topk", "num_selected": 2},
            "towers": {"units": [4]},
        },
        "train": TRAIN,
    }
    values |= changes
    model = dict(values["model"])
    model["experts"] = {"dropout": 0.0} | dict(model.get("experts", {}))
    values |= {"train": PLAIN | dict(values["train"]), "model": model}
    return parse(Config, values, "tiny.yaml")


def write_examples(folder: Path, config: Config, rows: int = 500, seed: int = 0) -> None:
    """Write an examples folder; clicks depend on user and item, positions bias them."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 20, rows), rng.integers(0, 30, rows)
    position = rng.integers(0, 6, rows)
    taste = 2 * np.sin(user * 1.7) + 1.5 * np.sin(item * 0.9)
    click = (rng.random(rows) < 1 / (1 + np.exp(0.3 * position - taste))).astype(np.float32)
    dwell = np.where(click == 1, np.exp(1 + taste + 0.2 * rng.normal(size=rows)), np.nan)
    like = np.where(rng.random(rows) < 0.3, np.nan, (taste > 0.5).astype(np.float32))
    table = pl.DataFrame(
        {
            "user_id": [f"u{n}" for n in user],
            "item_id": 100 + item,
            "country": [None if n % 5 == 0 else f"c{n % 3}" for n in user],
            "age": [None if n % 4 == 0 else float(20 + n) for n in user],
            "length": (10.0 * (1 + item)).astype(np.float32),
            "recent": [(100 + rng.integers(0, 30, n % 6)).tolist() for n in user],
            "position": [None if n == 5 else int(n) for n in position],
            "label/click": click,
            "label/dwell": pl.Series(dwell.astype(np.float32)).fill_nan(None),
            "label/like": pl.Series(like.astype(np.float32)).fill_nan(None),
            "meta/impression": np.arange(rows),
        },
        schema_overrides={"recent": pl.List(pl.Int64)},
    )
    files = ExamplesFolder(folder)
    cuts = [0, int(0.6 * rows), int(0.8 * rows), rows]
    for name, start, stop in zip(("train", "validation", "test"), cuts, cuts[1:], strict=False):
        files.split(name).mkdir(parents=True)
        table[start:stop].write_parquet(files.split(name) / "part-0.parquet")
    train = table[: cuts[1]]
    (folder / "vocabularies").mkdir()
    for name in ("user_id", "item_id", "country"):
        counts = Counter(value for value in train[name].to_list() if value is not None)
        ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        pl.DataFrame(
            {"value": [value for value, _ in ordered], "count": [count for _, count in ordered]}
        ).write_parquet(files.vocabulary(name))
    ages = train["age"].drop_nulls().to_numpy()
    lengths = np.log1p(train["length"].to_numpy().astype(float))
    tasks = {}
    for name, task in config.contract.tasks.items():
        values = train[f"label/{name}"].drop_nulls().to_numpy().astype(float)
        values = np.log1p(values) if task.transform == "log1p" else values
        tasks[name] = {
            "count": len(values),
            "masked": len(train) - len(values),
            "mean": float(values.mean()),
            "std": float(values.std()),
        }
    statistics = {
        "features": {
            "age": {
                "count": len(ages),
                "missing": len(train) - len(ages),
                "mean": float(ages.mean()),
                "std": float(ages.std()),
                "boundaries": [float(q) for q in np.quantile(ages, [0.25, 0.5, 0.75])],
            },
            "length": {
                "count": len(lengths),
                "missing": 0,
                "mean": float(lengths.mean()),
                "std": float(lengths.std()),
            },
        },
        "tasks": tasks,
        "rows": {"train": cuts[1], "validation": cuts[2] - cuts[1], "test": rows - cuts[2]},
    }
    write_json(files.statistics, statistics)
    frozen = FrozenContract(
        contract=config.contract,
        schema_fingerprint=config.contract.schema_fingerprint(),
        data_fingerprint=fingerprint([statistics, seed]),
    )
    write_json(files.contract, frozen.model_dump(mode="json"))
    Statistics.read(files.statistics)  # the fixture itself is well-formed


LOSSES = ("squared", "huber", "quantile", "censored", "ordinal", "zero_inflated")


def heads_config(**changes: object) -> Config:
    """The tiny configuration with a funnel, and dwell once for every loss of regression tasks."""
    tasks = {name: dict(CONTRACT["tasks"][name]) for name in ("click", "like")}
    tasks["like"]["given"] = "click"
    column = {"rule": "column", "column": "dwell"}
    base = {"group": "engagement", "type": "regression", "label": column, "clip": [0.0, 12.0]}
    for loss in LOSSES:
        transform = {} if loss == "zero_inflated" else {"transform": "log1p"}
        tasks[loss] = base | {"loss": loss} | transform
    return make_config(**{"contract": CONTRACT | {"tasks": tasks}} | changes)


def add_labels_of_heads(folder: Path) -> None:
    """Turn an examples folder of `write_examples` into one of `heads_config`."""
    config, files = heads_config(), ExamplesFolder(folder)
    for split in ("train", "validation", "test"):
        path = files.split(split) / "part-0.parquet"
        table = pl.read_parquet(path).with_columns(
            pl.col("label/like") * pl.col("label/click"),
            pl.col("label/dwell").clip(0, 12).alias("label/dwell"),
        )
        labels = {f"label/{loss}": pl.col("label/dwell") for loss in LOSSES}
        labels["label/zero_inflated"] = pl.col("label/dwell").fill_null(0.0)
        # Requests of up to four rows of a user, an hour between two rows.
        hours = pl.duration(hours=pl.col("meta/impression"))
        labels["meta/time"] = pl.datetime(2026, 1, 1, time_zone="UTC", time_unit="us") + hours
        labels["meta/request"] = (pl.int_range(pl.len()).over("user_id") // 4).cast(pl.String)
        table.with_columns(**labels).drop("label/dwell").write_parquet(path)
    statistics = json.loads(files.statistics.read_text())
    train = pl.read_parquet(files.split("train") / "part-0.parquet")
    statistics["tasks"] = {}
    for name, task in config.contract.tasks.items():
        values = train[f"label/{name}"].drop_nulls().to_numpy().astype(float)
        values = np.log1p(values) if task.transform == "log1p" else values
        mean, std = float(values.mean()), float(values.std())
        count = {"count": len(values), "masked": len(train) - len(values)}
        statistics["tasks"][name] = count | {"mean": mean, "std": std}
    write_json(files.statistics, statistics)
    frozen = FrozenContract(
        contract=config.contract,
        schema_fingerprint=config.contract.schema_fingerprint(),
        data_fingerprint=fingerprint(statistics),
    )
    write_json(files.contract, frozen.model_dump(mode="json"))


EVERYTHING = {"ranking": {"kind": "listwise", "weight": 0.5}, "recency": "2d"}
"""Options of the training that read more than features and labels."""


class Heads:
    """Examples of a contract with a funnel and every loss, and a checkpoint on them."""

    def __init__(self, folder: Path) -> None:
        self.examples = folder / "examples"
        self.checkpoint = folder / "checkpoint"
        self.make_config = heads_config
        self.write_examples = write_examples
        self.add_labels = add_labels_of_heads
        self.everything = EVERYTHING


@pytest.fixture(scope="session")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Heads:
    """Made once; tests must not write into it."""
    from multigate.model.training import train

    made = Heads(tmp_path_factory.mktemp("heads"))
    write_examples(made.examples, make_config())
    add_labels_of_heads(made.examples)
    train.train(heads_config(), made.examples, made.checkpoint, progress=False)
    return made


class Tiny:
    """A configuration, and examples that fit it."""

    def __init__(self, examples: Path) -> None:
        self.examples = examples
        self.config = make_config()
        self.make_config = make_config
        self.write_examples = write_examples


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Examples on disk, made once; tests must not write into them."""
    tiny = Tiny(tmp_path_factory.mktemp("tiny") / "examples")
    write_examples(tiny.examples, tiny.config)
    return tiny


def labels_apart(examples: Path, out: Path, tasks: list[str], splits: list[str]) -> Path:
    """A copy as of days that are read as one folder: labels of some tasks closed a day earlier."""
    shutil.copytree(examples, out)
    for split in splits:
        (path,) = (out / split).glob("*.parquet")
        rows = pl.read_parquet(path)
        if "meta/impression" not in rows:
            rows = rows.with_columns(pl.int_range(pl.len()).alias("meta/impression"))
        labels = {name for name in rows.columns if name.startswith("label/")}
        early = {f"label/{task}" for task in tasks}
        for name, masked in (("0", labels - early), ("1", early)):
            nulls = [pl.lit(None, rows.schema[label]).alias(label) for label in masked]
            rows.with_columns(*nulls).write_parquet(out / split / f"{name}.parquet")
        path.unlink()
    return out


@pytest.fixture(scope="session", name="labels_apart")
def _labels_apart() -> Callable[[Path, Path, list[str], list[str]], Path]:
    return labels_apart
