"""A small examples folder and checkpoints on it, with random weights, made without training."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from multigate.configs.config import Config
from multigate.configs.contract import FrozenContract
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.base import parse
from multigate.configs.statistics import NumberStatistics, Statistics, TaskStatistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.checkpoints import weights
from multigate.model.ranker.factors.term import Factors, PairTables

USERS = [f"user {i}" for i in range(12)]
ITEMS = list(range(100, 130))
REGIONS = ["north", "süd"]

# Item and user features take turns, so that the contract's order is not that of the sides.
CONTRACT: dict[str, Any] = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user", "oov_buckets": 2},
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
        "region": {"kind": "id", "side": "user", "missing": "indicator"},
        "price": {
            "kind": "number",
            "side": "item",
            "missing": "indicator",
            "transform": "log1p",
        },
        "recent": {
            "kind": "id_list",
            "side": "user",
            "dtype": "int",
            "share": "item_id",
            "history": {"events": ["click"], "last": 4},
            "max_length": 4,
        },
        "hour": {"kind": "id", "side": "context", "dtype": "int", "hash_buckets": 5},
        "position": {"kind": "position"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
            "score_weight": 1.0,
        },
        "dwell": {
            "group": "engagement",
            "type": "regression",
            "label": {"rule": "column", "column": "dwell"},
            "transform": "log1p",
            "score_weight": 0.01,
        },
        "like": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "column", "column": "like"},
            "score_weight": 2.0,
        },
    },
}


class Case(NamedTuple):
    """An examples folder, and functions that make configurations and checkpoints on it."""

    examples: Path
    checkpoint: Callable[..., Path]
    config: Callable[..., Config]


def make_config(**changes: Any) -> Config:
    """Configuration of the case; `changes` are sections to replace."""
    model = {
        "embedding_dim": 6,
        "experts": {"count": 6, "units": [10]},
        "gate": {"name": "topk", "num_selected": 2},
        "towers": {"units": [5]},
    }
    values = {
        "name": "case",
        "contract": CONTRACT,
        "pipeline": {
            "log": {
                "shape": "impressions",
                "files": ["log.jsonl"],
                "format": {"type": "jsonl"},
                "columns": {"time": "time", "user": "user_id", "item": "item_id"},
                "known_after": "10m",
            },
            "split": {"by": "time", "validation": 0.1, "test": 0.1},
        },
        "model": model | changes.pop("model", {}),
    }
    export = changes.pop("export", {})
    if "xla" not in export:
        # Six experts of ten units: `auto` would run all of them on every row.
        export = {"dispatch": "selected"} | export
    values["export"] = export
    return parse(Config, values | changes, "case")


def make_table(rows: int, seed: int) -> pa.Table:
    """Random examples; one user and one item in seven is unseen in training."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any], unseen: Any) -> list[Any]:
        picked = rng.integers(0, len(values), rows)
        return [unseen if rng.random() < 1 / 7 else values[i] for i in picked]

    lost = rng.random((2, rows)) < 0.3
    lists = [[int(x) for x in rng.choice(ITEMS, rng.integers(0, 7))] for _ in range(rows)]
    return pa.table(
        {
            "user_id": some(USERS, "stranger"),
            "item_id": some(ITEMS, 7),
            "region": pa.array(some(REGIONS, "elsewhere"), mask=lost[0]),
            "price": pa.array(rng.gamma(2.0, 20.0, rows), mask=lost[1]),
            "recent": pa.array(lists, pa.list_(pa.int64())),
            "hour": rng.integers(0, 24, rows),
            "position": rng.integers(0, 9, rows),
            "label/click": (rng.random(rows) < 0.4).astype(np.float32),
            "label/dwell": pa.array(rng.gamma(1.0, 30.0, rows).astype(np.float32), mask=lost[0]),
            "label/like": pa.array((rng.random(rows) < 0.3).astype(np.float32), mask=lost[1]),
        }
    )


def write_examples(folder: Path) -> None:
    """An examples folder as the pipeline writes it."""
    files = ExamplesFolder(folder)
    contract = make_config().contract
    (folder / "vocabularies").mkdir(parents=True)
    for name, values in {"user_id": USERS, "item_id": ITEMS, "region": REGIONS}.items():
        counted = pa.table({"value": values, "count": range(len(values), 0, -1)})
        pq.write_table(counted, files.vocabulary(name))
    for number, split in enumerate(("train", "validation", "test")):
        files.split(split).mkdir()
        pq.write_table(make_table(600, number), files.split(split) / "part-0.parquet")
    numbers = NumberStatistics(count=400, missing=200, mean=3.5, std=0.8)
    label = {"count": 400, "masked": 200}
    statistics = Statistics(
        features={"price": numbers},
        tasks={
            "click": TaskStatistics(**label, mean=0.4, std=0.49),
            "dwell": TaskStatistics(**label, mean=2.9, std=1.1),
            "like": TaskStatistics(**label, mean=0.3, std=0.46),
        },
        rows={"train": 600, "validation": 600, "test": 600},
    )
    files.statistics.write_text(statistics.model_dump_json())
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="case",
    )
    files.contract.write_text(json.dumps(frozen.model_dump(mode="json")))


def randomise(ranker: keras.Model, seed: int) -> None:
    """Weights large enough that gates differ from row to row and scores from item to item."""
    rng = np.random.default_rng(seed)
    lines = [] if ranker.linear is None else list(ranker.linear.weights)
    if ranker.factors is not None:
        lines += [one for pair in ranker.factors.pairs.values() for one in pair[3:]]  # edges
    for variable in ranker.weights:
        if "float" in str(variable.dtype) and not any(variable is other for other in lines):
            fan = max(variable.shape[0], 1) if len(variable.shape) == 2 else 1.0
            scale = 1.0 if "embedding" in variable.path else 2.0 / np.sqrt(fan)
            variable.assign(rng.normal(0.0, scale, variable.shape))
    if ranker.linear is not None:
        draw_lines(ranker.linear, np.random.default_rng(seed))


def draw_lines(linear: Any, rng: np.random.Generator) -> None:
    """Lines of the tasks that may have one, some of whose values are beyond the labels."""
    T = linear.count
    kernel, shares = np.zeros(linear.kernel.shape), np.zeros((3, T))
    kernel[np.ix_(linear.columns, linear.tasks)] = rng.normal(
        size=(len(linear.columns), len(linear.tasks))
    )
    shares[:, linear.tasks] = rng.uniform(0.3, 0.7, (3, len(linear.tasks)))
    deep = np.where(np.isin(np.arange(T), linear.tasks), shares[0], 1.0)
    for variable, value in (
        *((linear.kernel, kernel), (linear.bias, np.zeros(T)), (linear.deep, deep)),
        *((linear.low, np.full(T, -1.2)), (linear.high, np.full(T, 1.0))),
        *((linear.line, shares[1]), (linear.start, shares[2])),
    ):
        variable.assign(value)


def draw_factors(ranker: Any, width: int) -> Factors:
    """Factors of pairs of all sides; `randomise` draws other values, for unknown ids too.

    A graph must read the tables by code, whatever is in them.
    """
    contract, pairs = ranker.contract, {}
    edges = {"price": np.array([-0.8, 0.1, 0.9], np.float32)}
    for one, other, tasks in (
        ("user_id", "item_id", [0, 2]),
        ("item_id", "price", [1]),
        ("region", "hour", [0, 1, 2]),
        ("price", "region", [2]),
    ):
        tables = []
        for name in (one, other):
            rows = len(edges.get(name, ())) + 2  # bins, and missing
            if name not in edges:
                owner = contract.vocabulary_of(name)
                rows = ranker.embedder.tables[owner].embeddings.shape[0]
            tables.append(np.zeros((rows, len(tasks) * width), np.float32))
        none = np.zeros(0, np.float32)
        of_both = [edges.get(name, none) for name in (one, other)]
        pairs[one, other] = PairTables(*tables, np.array(tasks, np.int32), *of_both)
    return Factors(pairs, len(contract.tasks), name="factors")


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The examples folder, and checkpoints of any configuration on it."""
    root = tmp_path_factory.mktemp("export_case")
    write_examples(root / "examples")
    made = 0

    def checkpoint(seed: int = 0, **changes: Any) -> Path:
        nonlocal made
        made += 1
        folder = root / f"checkpoint-{made}"
        folder.mkdir()
        config = make_config(**changes)
        checkpoints.create(folder, config, root / "examples")
        encoder = checkpoints.Encoder.read(folder)
        ranker = checkpoints.make_ranker(config.contract, config.model, encoder, seed)
        if config.model.factors is not None:
            ranker.factors = draw_factors(ranker, config.model.factors.width)
        randomise(ranker, seed)
        weights.save(ranker, folder / checkpoints.WEIGHTS)
        return folder

    return Case(root / "examples", checkpoint, make_config)


@pytest.fixture(scope="session")
def with_items(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The case's examples with a snapshot of items, which an item table is made of."""
    folder = tmp_path_factory.mktemp("poolings") / "examples"
    shutil.copytree(case.examples, folder)
    snapshot = ExamplesFolder(folder).snapshot("items")
    snapshot.mkdir(parents=True)
    items = list(range(100, 128))
    prices = pa.array([None if n % 5 == 0 else float(n) for n in items], pa.float32())
    pq.write_table(pa.table({"item_id": items, "price": prices}), snapshot / "part-0.parquet")
    return folder


@pytest.fixture(scope="session")
def graph_of() -> Callable[[Path], Any]:
    """The GraphDef of a version."""

    def read(version: Path) -> Any:
        saved = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
        return saved.meta_graphs[0].graph_def

    return read


@pytest.fixture(scope="session")
def served_operations(graph_of) -> Callable[[Path], set[str]]:
    """The kinds of operations in a version's graph."""

    def kinds(version: Path) -> set[str]:
        graph = graph_of(version)
        functions = [node for function in graph.library.function for node in function.node_def]
        return {node.op for node in (*graph.node, *functions)}

    return kinds
