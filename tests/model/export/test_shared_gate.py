"""Tasks that share a gate: one routing for them, in training, in the graph and in reports."""

import json
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tests.model.export.test_graph import Exported, assert_scores_equal, evaluated_rows, products

from multigate.model.assessment.gates import findings
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.checkpoints import weights
from multigate.model.export.export import export

GATE_OF = {
    "group": {"click": "engagement", "dwell": "engagement", "like": "satisfaction"},
    "all": dict.fromkeys(("click", "dwell", "like"), "all"),
}
GATES: dict[str, dict[str, Any]] = {
    "topk": {"name": "topk", "num_selected": 2},
    "dselect_k": {"name": "dselect_k", "num_selected": 2},
    "moesart": {"name": "moesart", "num_selected": 2},
    "comet": {"name": "comet", "num_selected": 2},
    "hash": {"name": "hash"},
    "softmax": {"name": "softmax"},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
}


def model_of(gate: str, shared: str, **more: Any) -> dict[str, Any]:
    experts = {"count": 8, "units": [10]}
    return {"experts": experts, "gate": GATES[gate], "shared_gate": shared, **more}


@pytest.mark.sweep(1, slow=2)
@pytest.mark.parametrize("shared", ["all", "group"])
@pytest.mark.parametrize("gate", GATES)
def test_the_graph_scores_like_the_keras_model(case, tmp_path, gate, shared) -> None:
    towers = {"units": [6]} if gate in ("topk", "softmax") else {}
    checkpoint = case.checkpoint(model=model_of(gate, shared, towers=towers))
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
    raw, table = model.request(np.arange(5), np.arange(40, 240), np.arange(200) % 5)
    assert_scores_equal(model, model.call("rank", raw), model.expected(table))
    chosen = model.call("gates", model.raw("user", "item", "context"))
    for task, name in GATE_OF[shared].items():
        for other, another in GATE_OF[shared].items():
            same = np.array_equal(chosen[task], chosen[other])
            assert same or name != another, (task, other)


@pytest.mark.parametrize(("shared", "most"), [("all", 2), ("group", 4)])
def test_a_row_is_evaluated_by_k_experts_for_each_gate(case, tmp_path, shared, most) -> None:
    checkpoint = case.checkpoint(model=model_of("topk", shared))
    model = Exported(checkpoint, tmp_path / "m", case.examples, dispatch="selected")
    raw, _ = model.request(np.arange(5), np.arange(40, 240), np.arange(200) % 5)
    rows = evaluated_rows(model, "rank", raw)
    assert 2 * 200 <= sum(rows.values()) <= most * 200
    assert most != 2 or sum(rows.values()) == 2 * 200
    gates = [s for name, s in products(model, "rank", raw) if "/first_layers/" in name]
    assert {columns for _, columns in gates} == {8 * len(set(GATE_OF[shared].values()))}


def test_a_shared_gate_has_one_penalty_and_learns_from_each_task(case) -> None:
    loaded = checkpoints.load(case.checkpoint(model=model_of("dselect_k", "all")))
    ranker, encoded = loaded.ranker, loaded.encoder(pq.read_table(case.examples / "train"))
    [gate] = ranker.mixture.gates
    kernel = gate.linear_maps()[0][0]
    assert len(ranker.forward(encoded, training=True).mixed.routings) == 1
    for task in GATE_OF["all"]:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(ranker.forward(encoded).logits[task])
        assert np.abs(tape.gradient(value, kernel.value)).max() > 0, task


def test_weights_and_reports_name_the_gate(case, tmp_path) -> None:
    checkpoint = case.checkpoint(model=model_of("topk", "group"))
    named = [name.split("/") for name in weights.variables(checkpoints.load(checkpoint).ranker)]
    gates = {parts[1] for parts in named if parts[0] == "gates"}
    assert gates == {"engagement", "satisfaction"}
    version = export(checkpoint, case.examples, tmp_path)
    metrics = json.loads((version / "assets.extra" / "metrics.json").read_text())
    assert {task: gate["shared"] for task, gate in metrics["gates"].items()} == GATE_OF["group"]
    assert metrics["gates"]["click"]["overlap"]["dwell"] == pytest.approx(1)
    sparsity = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert sparsity["tasks"]["click"]["experts"] == sparsity["tasks"]["dwell"]["experts"]
    assert sparsity["selected_per_row"] <= 4


def test_tasks_that_share_a_gate_are_not_blamed_for_it() -> None:
    one: dict[str, Any] = {"load": [0.5, 0.5], "overlap": {}}
    gates: Any = {
        "click": one | {"shared": "all", "overlap": {"like": 1.0, "dwell": 1.0}},
        "like": one | {"shared": "all", "overlap": {"click": 1.0, "dwell": 1.0}},
        "dwell": one | {"shared": "all", "overlap": {"click": 1.0, "like": 1.0}},
    }
    assert not any("do not separate" in said for said in findings(gates, [0.5, 0.5]))
    apart = {task: gate | {"shared": task} for task, gate in gates.items()}
    assert any("do not separate" in said for said in findings(apart, [0.5, 0.5]))
