"""What a version records about the test split, and the signature that counts unseen ids."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.raw import raw_values
from multigate.model.export import reference
from multigate.model.export.export import export
from multigate.model.export.frozen.mixture import Dispatch
from multigate.model.export.graph import ServingGraph

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def version(case, tmp_path_factory):
    checkpoint = case.checkpoint(export={"calibration": "platt"})
    return export(checkpoint, case.examples, tmp_path_factory.mktemp("reference"))


def test_shares_of_missing_values_and_unseen_ids(case, version) -> None:
    found = json.loads((version / "assets.extra" / "reference.json").read_text())
    table = pq.read_table(case.examples / "test").to_pydict()
    lists = [values[-4:] for values in table["recent"]]
    flat = [value for values in lists for value in values]
    known = set(range(100, 130))

    def share(flags: list[bool]) -> float:
        return pytest.approx(sum(flags) / len(flags))

    assert found["rows"] == 600
    assert found["features"] == {
        "user_id": {"missing": 0, "unseen": share([u == "stranger" for u in table["user_id"]])},
        "item_id": {"missing": 0, "unseen": share([i not in known for i in table["item_id"]])},
        "region": {
            "missing": share([r is None for r in table["region"]]),
            "unseen": share([r == "elsewhere" for r in table["region"]]),
        },
        "price": {"missing": share([p is None for p in table["price"]]), "unseen": None},
        "recent": {
            "missing": share([not values for values in lists]),
            "unseen": share([i not in known for i in flat]),
        },
        "hour": {"missing": 0, "unseen": None},
    }


def test_histograms_are_of_the_scores_as_served(case, version) -> None:
    found = json.loads((version / "assets.extra" / "reference.json").read_text())["scores"]
    contract = case.config().contract
    table = pq.read_table(case.examples / "test")
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    scores = signature(**raw_values(contract, table, names))
    assert found.keys() == contract.tasks.keys()
    for task, histogram in found.items():
        assert len(histogram["edges"]) == 21
        inner = np.array(histogram["edges"][1:-1])
        place = np.searchsorted(inner, np.asarray(scores[task], np.float64), side="right")
        counts = np.bincount(place, minlength=20)
        assert np.abs(counts - histogram["counts"]).sum() <= 2  # a rounding at an edge
        assert sum(histogram["counts"]) == 600


def test_scores_that_are_all_alike_have_a_histogram() -> None:
    found = reference.histogram(np.full(7, 0.3))
    assert np.all(np.diff(found["edges"]) > 0)
    assert sorted(found["counts"])[-2:] == [0, 7]


def test_watch_counts_unseen_ids(case, version) -> None:
    contract = checkpoints.load(case.checkpoint()).encoder.contract
    table = pq.read_table(case.examples / "test")
    user = [name for name, _ in contract.of_side("user", "context")]
    item = [name for name, _ in contract.of_side("item")]
    raw = raw_values(contract, table.slice(0, 40), user) | raw_values(contract, table, item)
    raw["user_index"] = np.zeros(600, np.int32)
    raw["task_weights"] = np.ones((40, 3), np.float32)
    loaded = tf.saved_model.load(str(version)).signatures
    outputs = dict(loaded["watch"](**raw))
    assert outputs.pop("experts").shape == (600,)
    found = {name: int(value) for name, value in outputs.items()}
    first = table.slice(0, 40).to_pydict()
    known = set(range(100, 130))
    assert found == {
        "unseen/user_id": first["user_id"].count("stranger"),
        "unseen/region": first["region"].count("elsewhere"),
        "unseen/recent": sum(i not in known for values in first["recent"] for i in values[-4:]),
        "unseen/item_id": sum(i not in known for i in table["item_id"].to_pylist()),
    }
    assert found["unseen/user_id"] > 0


@pytest.mark.parametrize(
    ("gate", "counts"),
    [
        ({"name": "topk", "num_selected": 2}, {2, 3, 4, 5, 6}),
        ({"name": "dselect_k", "num_selected": 2, "static": True}, None),
        ({"name": "softmax"}, {6}),
    ],
    ids=["per example", "static", "dense"],
)
def test_watch_counts_the_experts_that_are_evaluated(case, gate, counts) -> None:
    loaded = checkpoints.load(case.checkpoint(model={"gate": gate}))
    for one in loaded.ranker.mixture.gates:
        one.harden()
    dispatch: Dispatch = "auto" if gate["name"] == "softmax" else "selected"
    servable = ServingGraph(loaded.ranker, loaded.encoder, dispatch=dispatch)
    table = pq.read_table(case.examples / "test").slice(0, 200)
    users, items = servable.user_names, servable.item_names
    raw = raw_values(loaded.encoder.contract, table, [*users, *items])
    mixed = loaded.ranker.forward(loaded.encoder(table)).mixed
    chosen = [np.broadcast_to(routing.weights, (200, 6)) for routing in mixed.routings]
    expected = (np.stack(chosen) > 0).any(0).sum(1)  # the union over the tasks
    if gate.get("static"):
        counts = {len(servable.mixture.kept)}
        assert counts <= {2, 3, 4, 5}
    asked = {"user_index": np.arange(200, dtype=np.int32), "task_weights": np.ones((200, 3))}
    watched = tf.function(servable.watch, autograph=False)(
        **{name: tf.constant(values) for name, values in (raw | asked).items()}
    )["experts"].numpy()
    np.testing.assert_array_equal(watched, expected)
    assert set(watched.tolist()) <= counts
    assert len(set(watched.tolist())) > 1 or len(counts) == 1
