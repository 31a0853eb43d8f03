"""The encoding in NumPy and the encoding frozen into the graph agree on random raw values."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from multigate.configs.contract import (
    Contract,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.statistics import NumberStatistics, Statistics, VectorStatistics
from multigate.model.data.encoding import Encoder
from multigate.model.data.hashing import hash_ids as hash_ids_numpy
from multigate.model.export.frozen.encoding import GraphEncoder, hash_ids, raw_inputs
from multigate.model.export.frozen.matches import fingerprints, matches

WORDS = ["ann", "bob", "Zoë", "日本語のタグ", "🎬🎬", "a b|c", "x" * 300, "nul\0nul", "-7"]
UNSEEN = ["eve", "Ωmega", "y" * 255, "y" * 256, "y" * 257 + "z", "y" * 257 + "zz", "\0", "7 "]
INTS = [0, 1, -1, 70, -500, 2**62, -(2**62)]
UNSEEN_INTS = [2, -2, 2**63 - 1, -(2**63), 123456789]

FEATURES: dict[str, dict[str, Any]] = {
    "user_id": {"kind": "id", "side": "user"},
    "item_id": {"kind": "id", "side": "item", "dtype": "int", "oov_buckets": 4},
    "region": {"kind": "id", "side": "user", "oov_buckets": 5, "missing": "indicator"},
    "plan": {"kind": "id", "side": "user", "missing": "default", "default": "bob"},
    "shop": {"kind": "id", "side": "item", "missing": "default", "default": "nowhere"},
    "query": {"kind": "id", "side": "context", "hash_buckets": 9, "missing": "indicator"},
    "hour": {
        "kind": "id",
        "side": "context",
        "dtype": "int",
        "hash_buckets": 5,
        "missing": "default",
        "default": -3,
    },
    "tags": {"kind": "id_list", "side": "item", "max_length": 3},
    "hashed": {"kind": "id_list", "side": "item", "max_length": 4, "hash_buckets": 11},
    "recent": {
        "kind": "id_list",
        "side": "user",
        "dtype": "int",
        "share": "item_id",
        "max_length": 5,
    },
    "liked_tags": {"kind": "id_list", "side": "user", "share": "tags", "max_length": 6},
    "plans": {"kind": "id_list", "side": "context", "share": "shop"},
    "seen": {
        "kind": "id_list",
        "side": "user",
        "dtype": "int",
        "share": "item_id",
        "history": {"events": ("click",), "last": 4, "with": ("event", "age", "shop")},
        "max_length": 4,
    },
    "price": {"kind": "number", "side": "item"},
    "views": {"kind": "number", "side": "item", "transform": "log1p", "missing": "indicator"},
    "age": {
        "kind": "number",
        "side": "user",
        "scale": "buckets",
        "buckets": 4,
        "missing": "indicator",
    },
    "sales": {
        "kind": "number",
        "side": "item",
        "scale": "buckets",
        "buckets": 4,
        "transform": "log1p",
        "missing": "default",
        "default": 7.0,
    },
    "score_then": {"kind": "number", "side": "item", "scale": "none", "missing": "default"},
    "title": {"kind": "text", "side": "item", "max_length": 3, "hash_buckets": 50},
    "search": {"kind": "text", "side": "context", "ngrams": 1, "pooling": "sum"},
    "face": {"kind": "vector", "side": "item", "size": 3},
    "voice": {
        "kind": "vector",
        "side": "user",
        "size": 4,
        "scale": "unit",
        "missing": "indicator",
        "project": 2,
    },
    "mood": {
        "kind": "vector",
        "side": "context",
        "size": 3,
        "scale": "standardise",
        "missing": "default",
    },
    "smell": {
        "kind": "vector",
        "side": "item",
        "size": 3,
        "scale": "standardise",
        "missing": "indicator",
    },
    "position": {"kind": "position"},
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    contract = Contract.model_validate(
        {
            "user": "user_id",
            "item": "item_id",
            "features": FEATURES,
            "tasks": {
                "click": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
            },
        }
    )
    measured = NumberStatistics(
        count=9, missing=0, mean=1.7, std=0.3, boundaries=(0.1, float(np.log1p(3.0)), 2.5)
    )
    words = pa.array(WORDS)
    return Encoder(
        contract,
        Statistics(
            features={n: measured for n, f in FEATURES.items() if f["kind"] == "number"},
            vectors={
                name: VectorStatistics(count=9, missing=0, mean=(0.5, -1, 3), std=(0.1, 2, 1))
                for name in ("face", "mood", "smell")
            },
            tasks={},
            rows={},
        ),
        {"item_id": pa.array(INTS)}
        | dict.fromkeys(("user_id", "region", "plan", "shop", "tags", "seen__event"), words),
    )


def random_column(feature: Any, rows: int, rng: np.random.Generator) -> pa.Array:
    """Values of a feature, with missing ones wherever the contract allows them."""
    lost = rng.random(rows) < (0.0 if feature.missing == "error" else 0.3)
    if isinstance(feature, NumberFeature):
        pool = np.array([-2.0, 0.0, 0.1, 1.0, 2.5, 3.0, 1e6, 1e-30], np.float32)
        drawn = np.where(rng.random(rows) < 0.5, rng.choice(pool, rows), rng.normal(3, 3, rows))
        return pa.array(drawn.astype(np.float32), mask=lost)
    if isinstance(feature, VectorFeature):
        pool = [0.0, 1.0, -3e18, 1e-30] if feature.scale == "unit" else [0.0, 1.0, -1e6, 1e-30]
        values = rng.choice(pool, (rows, feature.size)) * rng.normal(size=(rows, 1))
        made = pa.array(list(values.astype(np.float32)), pa.list_(pa.float32()))
        return pa.array(
            [None if x else v for x, v in zip(lost, made.to_pylist(), strict=True)], made.type
        )
    if isinstance(feature, TextFeature):
        texts = [" ".join(rng.choice(WORDS, rng.integers(0, 6))) for _ in range(rows)]
        return pa.array(texts, pa.string(), mask=lost)
    if not isinstance(feature, IdFeature | IdListFeature):
        return pa.array(rng.integers(0, 9, rows))
    known: list[Any] = WORDS + UNSEEN if feature.dtype == "string" else INTS + UNSEEN_INTS
    kind = pa.string() if feature.dtype == "string" else pa.int64()

    def draw(count: int) -> list[Any]:
        return [known[i] for i in rng.integers(0, len(known), count)]

    if isinstance(feature, IdListFeature):
        lists = [None if x else draw(rng.integers(0, 12)) for x in lost]
        return pa.array(lists, pa.list_(kind))
    return pa.array([None if x else v for x, v in zip(lost, draw(rows), strict=True)], kind)


def raw_values(encoder: Encoder, table: pa.Table, rng: np.random.Generator) -> dict[str, Any]:
    """The table as a client sends it: junk where a value is missing and in a list's padding."""
    raw: dict[str, Any] = {}
    for name, feature in encoder.contract.features.items():
        column = table[name].combine_chunks()
        if isinstance(feature, IdListFeature):
            lists = [x or [] for x in column.to_pylist()]
            lengths = np.array([len(x) for x in lists], np.int64)
            width = lengths.max(initial=0) + rng.integers(0, 3)
            junk: Any = "ann" if feature.dtype == "string" else 70
            padded = np.full((len(lists), width), junk, object)
            for row, values in enumerate(lists):
                padded[row, : len(values)] = values
            raw[name] = padded if feature.dtype == "string" else padded.astype(np.int64)
            raw[f"{name}__length"] = lengths
        elif isinstance(feature, IdFeature | TextFeature):
            junk = "ann" if feature.dtype == "string" else 70
            values = [junk if x is None else x for x in column.to_pylist()]
            raw[name] = np.array(values, object if feature.dtype == "string" else np.int64)
        elif isinstance(feature, VectorFeature):
            rows = [[5.0] * feature.size if x is None else x for x in column.to_pylist()]
            raw[name] = np.array(rows, np.float32).reshape(-1, feature.size)
        elif isinstance(feature, NumberFeature):
            raw[name] = np.asarray(column.fill_null(5.0))
        if not isinstance(feature, IdListFeature) and feature.missing != "error":
            raw[f"{name}__present"] = np.asarray(column.is_valid())
    return raw


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [0, 1, 400])
def test_graph_and_numpy_agree(encoder: Encoder, rows: int) -> None:
    contract = encoder.contract
    rng = np.random.default_rng(rows)
    table = pa.table({n: random_column(f, rows, rng) for n, f in contract.features.items()})
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    graph = GraphEncoder(encoder)
    lists = list(contract.matches())
    assert lists == ["recent", "liked_tags", "plans", "seen", "seen__shop"]

    @tf.function(autograph=False)
    def encode(raw: dict[str, Any]) -> dict[str, Any]:
        prints = fingerprints(
            contract, raw, [n for n in names if "id" in contract.features[n].kind]
        )
        found = matches(contract, prints, lists, None)  # (N, 1) each
        return graph(raw, names) | {name: column[:, 0] for name, column in found.items()}

    raw = raw_values(encoder, table, rng)
    specs = raw_inputs(contract, names)
    assert "position" not in specs
    inputs = {name: tf.constant(raw[name], spec.dtype) for name, spec in specs.items()}

    expected = encoder(table)
    del expected["position"], expected["user_id__hash"]
    received = encode(inputs)
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        assert received[name].dtype == value.dtype, name
        if value.dtype == np.int32:
            np.testing.assert_array_equal(received[name], value, name)
        else:
            np.testing.assert_allclose(received[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
        if rows == 400:
            assert len(np.unique(value)) > 1, f"{name} is the same everywhere: nothing was compared"


def test_a_vocabulary_may_be_empty(encoder: Encoder) -> None:
    """Such as that of a column that is never given, or of ids below their `min_count`."""
    known = {name: values[:0] for name, values in encoder.vocabularies.items()}
    nothing = Encoder(encoder.contract, encoder.statistics, known)
    graph = GraphEncoder(nothing)
    for name, values in (("item_id", INTS), ("region", WORDS)):
        raw = {name: tf.constant(values, tf.int64 if name == "item_id" else tf.string)}
        if nothing.contract.features[name].missing != "error":
            raw[f"{name}__present"] = tf.ones(len(values), tf.bool)
        expected = nothing(pa.table({name: values}), [name])
        np.testing.assert_array_equal(graph(raw, [name])[name], expected[name])


def test_a_match_is_counted_in_raw_ids_and_among_the_values_that_are_kept() -> None:
    contract = Contract.model_validate(
        {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user"},
                "item_id": {"kind": "id", "side": "item"},
                "topic": {"kind": "id", "side": "item", "missing": "indicator"},
                "tags": {"kind": "id_list", "side": "item", "share": "topic"},
                "seen": {"kind": "id_list", "side": "user", "share": "item_id", "max_length": 3},
                "topics": {"kind": "id_list", "side": "user", "share": "topic"},
                "queries": {"kind": "id_list", "side": "context"},
            },
            "tasks": {
                "click": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
            },
        }
    )
    known = {name: pa.array(["a"]) for name in ("user_id", "item_id", "topic", "queries")}
    encoder = Encoder(contract, Statistics(features={}, tasks={}, rows={}), known)
    texts = pa.list_(pa.string())
    table = pa.table(
        {
            "user_id": ["a"] * 5,
            # Two ids that the vocabulary lacks share a code, and are not the same item.
            "item_id": ["a", "new", "newer", "a", "a"],
            "topic": ["x", None, "y", "y", "x"],
            "tags": pa.array([["x", "z"], [], None, ["y"], ["q"]], texts),
            "seen": pa.array(
                [["a", "b", "a"], ["new", "old"], ["new"], ["a", "b", "b", "b"], None], texts
            ),
            "topics": pa.array([["x", "x", "z"], ["", "x"], ["y"], ["y", "y"], []], texts),
            "queries": pa.array([["a"]] * 5, texts),
        }
    )
    found = encoder(table)
    np.testing.assert_allclose(np.expm1(found["seen__match"]), [2, 1, 0, 0, 0], atol=1e-6)
    # x twice as the topic and twice as a tag, z once; y once; y twice as each of both.
    np.testing.assert_allclose(np.expm1(found["topics__match"]), [5, 0, 1, 4, 0], atol=1e-6)
    assert "queries__match" not in found
    np.testing.assert_allclose(np.expm1(found["seen__length"]), [3, 2, 1, 3, 0], atol=1e-6)


def test_empty_text_and_numbers_that_are_not_finite_are_missing(encoder: Encoder) -> None:
    graph = GraphEncoder(encoder)
    raw = {
        "region": tf.constant([""]),
        "plan": tf.constant([""]),
        "query": tf.constant([""]),
        "hashed": tf.constant([["", "eve"]]),
        "hashed__length": tf.constant([2], tf.int64),
        "views": tf.constant([np.nan]),
        "sales": tf.constant([np.inf]),
    }
    names = ["region", "plan", "query", "hashed", "views", "sales"]
    raw |= {f"{name}__present": tf.constant([True]) for name in names if name != "hashed"}
    rng = np.random.default_rng(0)
    columns = {n: random_column(f, 1, rng) for n, f in encoder.contract.features.items()}
    nothing = {n: pa.nulls(1, columns[n].type) for n in names}
    lists = {"hashed": pa.array([[None, "eve"]])}
    expected = encoder(pa.table(columns | nothing | lists))
    for name, value in graph(raw, names).items():
        np.testing.assert_array_equal(value, expected[name], name)


def test_a_list_shorter_than_its_length_is_refused(encoder: Encoder) -> None:
    raw = {"tags": tf.constant([["ann"]]), "tags__length": tf.constant([90], tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError):
        GraphEncoder(encoder)(raw, ["tags"])


@pytest.mark.parametrize(
    ("user", "values"),
    [
        ({}, WORDS + UNSEEN),
        ({"missing": "indicator"}, [*WORDS, None, "", *UNSEEN]),
        ({"missing": "default", "default": "bob"}, [*WORDS, None, "", *UNSEEN]),
        ({"dtype": "int"}, INTS + UNSEEN_INTS),
        ({"dtype": "int", "missing": "indicator"}, [*INTS, None, *UNSEEN_INTS]),
        ({"dtype": "int", "missing": "default", "default": 7}, [*INTS, None, *UNSEEN_INTS]),
    ],
)
def test_the_users_hash_is_that_of_the_raw_id_in_numpy_and_in_the_graph(
    encoder: Encoder, user: dict[str, Any], values: list[Any]
) -> None:
    described = encoder.contract.model_dump(mode="json")
    described["features"] = {
        "user_id": {"kind": "id", "side": "user"} | user,
        "item_id": FEATURES["item_id"],
    }
    contract = Contract.model_validate(described)
    kind = pa.int64() if user.get("dtype") == "int" else pa.string()
    column = pa.array(values, kind)
    rng = np.random.default_rng(0)
    found = []
    for vocabulary in (column.unique().drop_null()[1:4], column.unique().drop_null()[:1]):
        encode = Encoder(
            contract, encoder.statistics, {"user_id": vocabulary, "item_id": pa.array(INTS)}
        )
        table = pa.table({"user_id": column, "item_id": pa.array([0] * len(column))})
        raw = {name: tf.constant(v) for name, v in raw_values(encode, table, rng).items()}
        found.append(encode(table)["user_id__hash"])
        assert found[-1].dtype == np.int32
        graph = GraphEncoder(encode).id_hash("user_id", raw)
        assert graph.dtype == tf.int32
        np.testing.assert_array_equal(graph, found[-1])
    np.testing.assert_array_equal(*found)  # whatever the vocabulary
    missing = np.array([v is None or v == "" for v in values])
    if user.get("missing") == "default":
        expected = hash_ids_numpy(pa.array([user["default"]], kind), 2**31)
        np.testing.assert_array_equal(found[0][missing], np.repeat(expected, missing.sum()))
    else:
        np.testing.assert_array_equal(found[0] == -1, missing)
    present = found[0][~missing]
    texts = {str(value) for value in values if value not in (None, "")}
    assert len(np.unique(present)) >= len(texts) - 1  # of two, only the 257th character differs


@pytest.mark.parametrize("values", [WORDS + UNSEEN, INTS + UNSEEN_INTS, [], [""]])
def test_the_hashes_agree(values: list) -> None:
    kind = pa.int64() if values and isinstance(values[0], int) else pa.string()
    expected = hash_ids_numpy(pa.array(values, kind), 1_000_003)
    graph = hash_ids(tf.constant(values, tf.int64 if kind == pa.int64() else tf.string), 1_000_003)
    np.testing.assert_array_equal(graph, expected)
