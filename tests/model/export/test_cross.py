"""Cross layers in the exported graph: parity, the first product once per user, the refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.model.export.test_graph import Exported, evaluated_rows, read_plain_prices
from tests.model.export.test_poolings import (
    assert_both_signatures_score_like_keras,
    contract_with,
    matmul_rows,
)

from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.checkpoints import weights
from multigate.model.data.raw import take
from multigate.model.export.export import export

MODEL: dict[str, Any] = {"cross": {"layers": 2, "rank": 3}}


def make(case: Any, **changes: Any) -> Path:
    """A checkpoint with cross layers, of weights so small that the products stay finite."""
    folder = case.checkpoint(**{"model": MODEL} | changes)
    ranker = checkpoints.load(folder).ranker
    for variable in ranker.cross.weights:
        variable.assign(0.2 * variable.value)
    weights.save(ranker, folder / checkpoints.WEIGHTS)
    return folder


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    "gate",
    [
        "topk",
        "comet",
        "hierarchical",
        "hash",
    ],
)
def test_both_signatures_score_like_the_keras_model(case, tmp_path, gate) -> None:
    options = {"name": gate}
    if gate == "hierarchical":
        options |= {"num_groups": 3, "primary": {"name": "topk"}, "secondary": {"name": "topk"}}
    checkpoint = make(case, model=MODEL | {"gate": options})
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    for raw, table in assert_both_signatures_score_like_keras(model):
        rows = evaluated_rows(model, "rank", raw)
        assert sum(rows.values()) == model.selected(table)


@pytest.mark.slow
def test_the_first_product_is_computed_once_per_user(case, tmp_path) -> None:
    model = Exported(make(case), tmp_path / "m", case.examples)
    raw, _ = model.request(np.arange(5), np.arange(60), np.arange(60) % 5)
    shapes = matmul_rows(model, raw, "cross")
    assert sorted(shapes) == sorted([(5, 3), (60, 3), (60, 34), (60, 3), (60, 34)])


@pytest.mark.slow
def test_numbers_that_cross_layers_cannot_multiply_are_refused(case, tmp_path) -> None:
    """Two layers make products of three numbers, and a relu would turn NaN into 0."""
    checkpoint = make(case, model=MODEL | {"gate": {"name": "hash"}})
    read_plain_prices(checkpoint)
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    raw = take(model.raw("user", "item", "context"), slice(3))
    raw["price__present"] = np.ones(3, bool)
    raw["price"] = np.float32([5, 1e17, 5])  # within the limit of single numbers
    with pytest.raises(tf.errors.InvalidArgumentError, match="that cross layers can multiply"):
        model.call("serving_default", raw)


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    ("options", "pooling"),
    [
        ({"items": "features"}, "attention"),
        ({"xla": [64]}, "mean"),
        ({"weights": "int8"}, "sequence"),
    ],
)
def test_every_way_to_export_keeps_parity(
    case,
    with_items,
    tmp_path,
    served_operations,
    options,
    pooling,
) -> None:
    more = {"parity_rows": 60, "weights_tolerance": 1.0, "parity_tolerance": 1e-4}
    checkpoint = make(case, contract=contract_with(pooling), export=options | more)
    version = export(checkpoint, with_items, tmp_path / "models")
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert report["parity"]["rows"] == (180 if "items" in options else 120)
    assert report["parity"]["undecided"] <= 2
    assert "VarHandleOp" not in served_operations(version)


@pytest.mark.slow
def test_flops_by_hand(case, tmp_path) -> None:
    checkpoint = make(case, export={"parity_tolerance": 1e-4})
    version = export(checkpoint, case.examples, tmp_path)
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    flops, used = report["flops_per_candidate"], report["experts_per_row"]
    # D = 34 columns, 25 of them the user's; 6 experts of 10 units, three gates, three towers.
    cross, once = 2 * 4 * 34 * 3, 2 * 25 * 3
    routing, towers = 3 * 2 * 34 * 6, 3 * 2 * (10 * 5 + 5)
    assert flops["sparse"] == round(used * 680) + routing + towers + cross
    assert flops["rank"] == flops["sparse"] - once
    assert report["flops_per_user"] == {"rank": once}
