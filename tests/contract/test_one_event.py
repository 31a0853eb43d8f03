"""One raw log line, followed through pipeline, training, export and a gRPC call.

The client computes the line's features from the raw log by itself, as an online caller would; the
pipeline computed them for training.  Both must agree, and so must the score of the served file and
that of the Keras model on the pipeline's row.
"""

import json
import math

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from multigate.features.history import last_items
from multigate.jobs.simulate import SLOTS
from multigate.model.checkpoints import checkpoint
from multigate.model.ranker import scores
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import Server

KNOWN_AFTER = 600  # seconds, as the preset says
STRENGTH = 10  # of the priors of rates
BY_KEY = {"user": ("user_id",), "item": ("item_id",), "user_topic": ("user_id", "topic")}


@pytest.fixture(scope="module")
def raw_log(small_run):
    lines = []
    for path in sorted((small_run.root / "logs").glob("*.jsonl")):
        lines += [json.loads(line) for line in path.read_text().splitlines()]
    return lines


@pytest.fixture(scope="module")
def event(raw_log):
    """The log's last closed line whose user had a click that was known and whose age is known."""
    return next(
        line
        for line in reversed(raw_log)
        if line["age"] is not None
        and line["time"] + KNOWN_AFTER <= raw_log[-1]["time"]
        and any(
            other["user_id"] == line["user_id"]
            and other["click"]
            and other["time"] + KNOWN_AFTER < line["time"]
            for other in raw_log
        )
    )


def labels_of(line):
    """A line's labels by task, None where masked, as rates read them."""
    names = ("click", "share", "like", "dislike", "follow", "rating")
    return {name: line[name] for name in names} | {
        "deep_click": float(line["dwell"] >= 30),
        "dwell": math.log1p(line["dwell"]) if line["click"] else None,
    }


@pytest.fixture(scope="module")
def rates(event, raw_log, small_run):
    """The event's rates, added up from the lines whose labels had closed before it."""
    statistics = json.loads((small_run.root / "run/examples/statistics.json").read_text())
    closed = [line for line in raw_log if line["time"] + KNOWN_AFTER < event["time"]]
    found = {}
    for key, columns in BY_KEY.items():
        of_key = [line for line in closed if all(line[c] == event[c] for c in columns)]
        for task in small_run.config.contract.tasks:
            labels = [labels_of(line)[task] for line in of_key]
            labels = [label for label in labels if label is not None]
            name = f"{key}_{task}_"
            found[f"{name}count"] = len(labels)
            kind = "mean" if task in ("dwell", "rating") else "rate"
            if kind == "rate" or key != "user_topic":
                prior = statistics["priors"][name + kind]
                total = sum(labels) + STRENGTH * prior
                found[name + kind] = total / (len(labels) + STRENGTH)
    assert set(found) == set(small_run.config.contract.label_counters())
    assert all(found[f"{key}_click_count"] for key in BY_KEY)
    return found


@pytest.fixture(scope="module")
def features(event, raw_log):
    """The event's other features as a client makes them from the raw log."""
    clicks = pl.DataFrame(
        [
            {"user": line["user_id"], "time": line["time"] + KNOWN_AFTER, "item": line["item_id"]}
            for line in raw_log
            if line["click"]
        ]
    )
    query = pl.DataFrame({"user": [event["user_id"]], "time": [event["time"]]})
    names = ("user_id", "country", "age", "hour", "item_id", "topic", "tags", "length")
    return {name: event[name] for name in names} | {
        "recent_clicks": last_items(clicks, query, 20)[0].to_list()
    }


@pytest.fixture(scope="module")
def row(event, small_run):
    """The event's row among the pipeline's examples."""
    table = pq.read_table(small_run.root / "run/examples/test")
    frame = pl.from_arrow(table).with_row_index("at")
    found = frame.filter(
        (pl.col("meta/request") == event["request_id"]) & (pl.col("item_id") == event["item_id"])
    )
    assert found.height == 1
    return table.slice(found["at"][0], 1)


def test_the_pipelines_features_are_the_clients(features, row):
    stored = row.to_pylist()[0]
    assert {name: stored[name] for name in features} == features


def test_the_pipelines_rates_are_the_clients(rates, row):
    stored = row.to_pylist()[0]
    assert {name: stored[name] for name in rates} == pytest.approx(rates, rel=1e-7)  # float32


def test_labels_follow_from_the_line(event, row, small_run):
    stored = row.to_pylist()[0]
    for name in ("click", "share", "like", "dislike", "follow", "rating"):
        assert stored[f"label/{name}"] == event[name]
    assert stored["label/deep_click"] == float(event["dwell"] >= 30)
    dwell = pytest.approx(event["dwell"]) if event["click"] else None
    assert stored["label/dwell"] == dwell
    assert 0 <= stored["position"] < SLOTS


def rank(client, contract, features):
    """What the server says of one item, with every feature in the request."""
    sides = {
        side: {name: features[name] for name, _ in contract.of_side(side)}
        for side in ("user", "context", "item")
    }
    item_id = sides["item"].pop("item_id")
    columns = {name: [value] for name, value in sides["item"].items()}
    (item,) = client.rank(
        "demo",
        user=sides["user"],
        context=sides["context"],
        item_ids=[item_id],
        columns=columns,
    )
    return item


@pytest.mark.slow
def test_the_served_score_is_the_models(features, rates, row, small_run):
    ranker, encoder, config, _ = checkpoint.load(small_run.root / "run/checkpoint")
    encoded = encoder(row)
    logits = {task: np.asarray(z) for task, z in ranker(encoded, training=False).items()}
    expected = {
        task: float(np.asarray(values)[0])
        for task, values in scores.scores(config.contract, encoder.statistics, logits).items()
    }

    base = small_run.root / "run/models/demo"
    options = ServerOptions(model_name="demo", model_base_path=base, port=0, watch_rate=1.0)
    with Server(options) as server, RankClient(f"127.0.0.1:{server.port}", timeout=30) as client:
        item = rank(client, config.contract, features | rates)
    assert item["tasks"] == pytest.approx(expected, rel=1e-5)
    weights = {name: task.score_weight for name, task in config.contract.tasks.items()}
    combined = sum(weights[name] * score for name, score in expected.items())
    assert item["score"] == pytest.approx(combined, rel=1e-5)
    # The watch has looked at the call before the server ended.
    gates = [np.asarray(one.weights) for one in ranker.forward(encoded).mixed.routings]
    evaluated = int((np.vstack(gates) > 0).any(0).sum())
    counted = server.metrics.registry.get_sample_value(
        "multigate_watched_experts_per_row_sum", {"model": "demo"}
    )
    assert counted == evaluated


@pytest.mark.slow
def test_every_feature_reaches_the_graph(features, rates, small_run):
    """No input is read and then forgotten: each feature's change changes some score."""
    options = ServerOptions(
        model_name="demo", model_base_path=small_run.root / "run/models/demo", port=0
    )
    contract = small_run.config.contract
    changes = {name: value + 1 for name, value in rates.items()}
    changes |= {
        "user_id": "u0000",
        "country": None,
        "age": 18 if features["age"] > 40 else 70,
        "hour": (features["hour"] + 12) % 24,
        "item_id": "i0001",
        "topic": "topic11" if features["topic"] != "topic11" else "topic00",
        "tags": [],
        "length": 1.0,
        "recent_clicks": ["i0002"],
    }
    assert set(changes) == set(contract.features) - {contract.position}
    with Server(options) as server, RankClient(f"127.0.0.1:{server.port}", timeout=30) as client:

        def score(changed: dict) -> dict:
            return rank(client, contract, features | rates | changed)["tasks"]

        base = score({})
        assert score({}) == base
        for name, value in changes.items():
            assert score({name: value}) != base, f"{name} has no effect"
