"""The columns of a side in large pieces: the same as the Keras embedder's, in another order."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from multigate.configs.contract import Contract
from multigate.configs.sections.base import parse
from multigate.configs.sections.model import ModelConfig
from multigate.configs.statistics import NumberStatistics, Statistics, VectorStatistics
from multigate.model.data.encoding import Encoder
from multigate.model.export.frozen.embedding import FrozenEmbedder, FrozenWide
from multigate.model.export.frozen.encoding import layout_of
from multigate.model.ranker.embedder import Embedder
from multigate.model.ranker.wide import Wide

NUMBER = {"kind": "number", "side": "item"}
TAGS = {"kind": "id_list", "side": "item", "max_length": 3}
FEATURES: dict[str, dict[str, Any]] = {
    "user_id": {"kind": "id", "side": "user"},
    "age": {"kind": "number", "side": "user", "scale": "buckets", "missing": "indicator"},
    "recent": {"kind": "id_list", "side": "user", "share": "item_id", "max_length": 4},
    "seen": {
        "kind": "id_list",
        "side": "user",
        "share": "item_id",
        "max_length": 4,
        "history": {"events": ("click",), "last": 4, "with": ("age",)},
    },
    "price": NUMBER,
    "item_id": {"kind": "id", "side": "item"},
    "views": NUMBER | {"transform": "log1p", "missing": "indicator"},
    "tags": TAGS,
    "shop": {"kind": "id", "side": "item", "oov_buckets": 3},
    "stars": NUMBER | {"missing": "indicator"},
    "sum_of": TAGS | {"share": "tags", "pooling": "sum"},
    "read": TAGS | {"share": "tags", "pooling": "sequence"},
    "likes": NUMBER | {"transform": "log1p", "missing": "default", "default": 3},
    "title": {"kind": "text", "side": "item", "hash_buckets": 40, "max_length": 3},
    "face": {"kind": "vector", "side": "item", "size": 3},
    "voice": {"kind": "vector", "side": "item", "size": 3, "project": 2, "missing": "indicator"},
    "query": {"kind": "id", "side": "context", "hash_buckets": 9, "missing": "indicator"},
}
WORDS = ["a", "b", "c", "d"]
ROWS = 50


def make_table(rng: np.random.Generator) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, feature in FEATURES.items():
        gaps = rng.random(ROWS) < 0.3 if "missing" in feature else np.zeros(ROWS, bool)
        words = [[str(w) for w in rng.choice([*WORDS, "new"], rng.integers(0, 6))] for _ in gaps]
        if feature["kind"] == "number":
            columns[name] = pa.array(rng.gamma(2.0, 3.0, ROWS), mask=gaps)
        elif feature["kind"] == "vector":
            rows = rng.normal(size=(ROWS, 3)).astype(np.float32).tolist()
            values = [None if gap else row for gap, row in zip(gaps, rows, strict=True)]
            columns[name] = pa.array(values, pa.list_(pa.float32()))
        elif feature["kind"] == "id_list":
            columns[name] = pa.array(words, pa.list_(pa.string()))
        else:
            columns[name] = pa.array([" ".join(w) or "a" for w in words], mask=gaps)
    ages = [[int(x) for x in rng.integers(0, 10**6, len(one))] for one in columns["seen"]]
    return pa.table(columns | {"seen__age": pa.array(ages, pa.list_(pa.int64()))})


@pytest.mark.parametrize("lengths", [True, False])
def test_columns_are_those_of_the_embedder(lengths: bool) -> None:
    task = {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
    contract = Contract.model_validate(
        {"user": "user_id", "item": "item_id", "features": FEATURES, "tasks": {"click": task}}
    )
    measured = NumberStatistics(count=9, missing=0, mean=1.7, std=0.3, boundaries=(1.0, 4.0))
    vector = VectorStatistics(count=9, missing=0, mean=(0.5, -1, 3), std=(0.1, 2, 1))
    encoder = Encoder(
        contract,
        Statistics(
            features={n: measured for n, f in FEATURES.items() if f["kind"] == "number"},
            vectors={"face": vector, "voice": vector},
            tasks={},
            rows={},
        ),
        dict.fromkeys(("user_id", "item_id", "tags", "shop"), pa.array(WORDS)),
    )
    options = {
        "embedding_dim": 5,
        "embedding_dims": {"shop": 3, "user_id": 3, "tags": 3},
        "lists": {"length": lengths},
        "cross": {},  # numbers are rescaled
    }
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    rows = {
        owner: encoder.rows(owner)
        for owner in dict.fromkeys(contract.vocabulary_of(name) for name in names)
        if contract.features[owner].kind not in ("number", "vector") or owner == "age"
    }
    embedder = Embedder(contract, parse(ModelConfig, options, "model"), rows, seed=3)
    rng = np.random.default_rng(0)
    for variable in embedder.rescaled.values():
        variable.assign(rng.normal(1.0, 0.5, variable.shape))
    encoded = encoder(make_table(rng))
    layouts = {
        "user": layout_of(contract, [name for name, _ in contract.of_side("user", "context")]),
        "item": layout_of(contract, [name for name, _ in contract.of_side("item")]),
    }
    frozen = FrozenEmbedder(embedder, layouts)
    whole = np.asarray(embedder(encoded))
    for side, layout in layouts.items():
        received = frozen(side, layout.pack(encoded).map(tf.constant))
        expected = whole[:, frozen.columns[side]]
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)
        assert (expected.std(axis=0) > 0).mean() > 0.9
    every = np.concatenate([*frozen.columns.values()])
    pairs = {place for place, of in enumerate(_of_columns(embedder)) if of == "pair"}
    assert sorted([*every, *pairs]) == list(range(whole.shape[1]))

    term = Wide({"shop": (4, np.ones(4)), "item_id": (2, np.ones(4))}, tasks=2)
    for part in term.tables.values():
        part.embeddings.assign(rng.normal(size=part.embeddings.shape))
    tables = term.weights_of(term.tables)
    wide = FrozenWide(tables, layouts, term)
    by_hand = tables["shop"][encoded["shop"]] + tables["item_id"][encoded["item_id"]]
    items = layouts["item"].pack(encoded).map(tf.constant)
    np.testing.assert_allclose(wide("item", items), by_hand, rtol=1e-6)
    assert wide("user", layouts["user"].pack(encoded).map(tf.constant)) is None


def _of_columns(embedder: Embedder) -> list[str]:
    """What each column depends on."""
    return [embedder.of[name] for name, width in embedder.widths.items() for _ in range(width)]
