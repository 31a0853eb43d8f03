"""Own experts in the exported graph: parity, and only the selected experts run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.model.export.test_graph import (
    Exported,
    assert_scores_equal,
    evaluated_rows,
    products,
)

from multigate.model.assessment.gates import choosable, expert_names, findings
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.checkpoints import weights
from multigate.model.export.export import export

EXPERTS = {"count": 3, "own": 2, "units": [10]}
GATES: dict[str, dict[str, Any]] = {
    "topk": {"name": "topk", "num_selected": 2},
    "softmax": {"name": "softmax"},
    "topk_static": {"name": "topk", "num_selected": 2, "static": True},
    "dselect_k": {"name": "dselect_k", "num_selected": 2},
    "moesart": {"name": "moesart", "num_selected": 2},
    "comet": {"name": "comet", "num_selected": 2},
    "hash": {"name": "hash"},
}


def own_model(gate: str) -> dict[str, Any]:
    return {"experts": EXPERTS, "gate": GATES[gate]}


def selected(exported: Exported, table: pa.Table) -> np.ndarray:
    """How many rows some task of the Keras model weights each expert on, from its own gates."""
    encoded = exported.encoder(table)
    ranker = exported.ranker
    x, ids = ranker.embed(encoded), ranker.ids(encoded)
    used = np.zeros((table.num_rows, 9), bool)
    for t, gate in enumerate(ranker.mixture.gates):
        mine = [0, 1, 2, 3 + 2 * t, 4 + 2 * t]
        used[:, mine] |= np.broadcast_to(gate(x, ids=ids).weights, (len(used), 5)) > 0
    return used.sum(axis=0)


@pytest.mark.sweep(1, slow=2)
@pytest.mark.parametrize(
    "gate", ["topk", "dselect_k", "hash", "topk_static", "softmax", "moesart", "comet"]
)
def test_the_graph_scores_like_the_keras_model_on_the_selected_experts(
    case, tmp_path, gate
) -> None:
    model = Exported(case.checkpoint(model=own_model(gate)), tmp_path / "m", case.examples)
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
    raw, table = model.request(np.arange(5), np.arange(40, 240), np.arange(200) % 5)
    assert_scores_equal(model, model.call("rank", raw), model.expected(table))
    if gate in ("softmax", "topk_static"):
        kept = model.servable.mixture.kept
        assert len(kept) == (9 if gate == "softmax" else (selected(model, table) > 0).sum())
        widths = [15, 10 * len(kept)] if gate == "softmax" else [10 * len(kept)]  # gates, experts
        shapes = [s for name, s in products(model, "rank", raw) if "/first_layers/" in name]
        assert sorted(shapes) == [(rows, width) for rows in (5, 200) for width in widths]
        return
    wanted = selected(model, table)
    rows = evaluated_rows(model, "rank", raw)
    assert [rows.get(number, 0) for number in range(9)] == wanted.tolist()
    assert wanted.sum() < 9 * 200


@pytest.mark.slow
def test_export_and_its_reports_know_own_experts(case, tmp_path) -> None:
    version = export(case.checkpoint(model=own_model("topk")), case.examples, tmp_path)
    extra = version / "assets.extra"
    sparsity = json.loads((extra / "sparsity.json").read_text())
    metrics = json.loads((extra / "metrics.json").read_text())
    assert sparsity["experts"] == metrics["experts"] == 9
    assert metrics["gates"]["dwell"]["own"] == [5, 6]
    assert set(sparsity["tasks"]["dwell"]["experts"]) <= {0, 1, 2, 5, 6}
    assert metrics["gates"]["like"]["load"][3:7] == [0.0] * 4
    names = ["1", "2", "3", "click 1", "click 2", "dwell 1", "dwell 2", "like 1", "like 2"]
    assert expert_names(metrics["gates"], 9) == names


def test_weights_are_named_by_task(case, tmp_path: Path) -> None:
    ranker = checkpoints.load(case.checkpoint(model=own_model("topk"))).ranker
    named = set(weights.variables(ranker))
    assert {"experts/2/0_kernel", "own/like/1/0_kernel"} <= named
    assert "experts/3/0_kernel" not in named


def test_findings_do_not_blame_a_task_for_experts_that_it_cannot_choose() -> None:
    gates: Any = {
        "click": {"own": [1], "load": [1.0, 1.0, 0.0]},
        "like": {"own": [2], "load": [1.0, 0.0, 0.0]},
    }
    assert choosable(gates, "like", 3) == [0, 2]
    said = findings(gates, [1.0, 1.0, 0.0])
    assert "Expert like 1 is never used." in said
    assert "Expert 1 serves every task on more than 95 % of its rows." in said
    assert "like uses the same experts on every row." in said  # it could use its own
    assert not any(line.startswith("click") for line in said)  # it uses all that it can
