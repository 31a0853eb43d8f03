"""Poolings in the exported graph: what depends on the user is computed once per user."""

import copy
import json
from typing import Any

import numpy as np
import pytest
from tests.model.export.conftest import CONTRACT
from tests.model.export.test_graph import Exported, products

from multigate.model.export.export import export
from multigate.model.export.parity import relative_differences


def contract_with(pooling: str) -> dict[str, Any]:
    contract = copy.deepcopy(CONTRACT)
    contract["features"]["recent"]["pooling"] = pooling
    return contract


def assert_scores_equal(model: Exported, received: dict[str, Any], expected: Any) -> None:
    # Random weights, large ones, through several layers: rounding grows along.
    assert received.keys() == expected.keys()
    assert relative_differences(model.contract, expected, received).max() < 1e-4


def assert_both_signatures_score_like_keras(model: Exported) -> list[tuple[Any, Any]]:
    """Of all rows, and of one user's and several users' candidates; these requests and tables."""
    received = model.call("serving_default", model.raw("user", "item", "context"))
    assert_scores_equal(model, received, model.expected(model.table))
    requests = []
    for M in (1, 5):
        raw, table = model.request(np.arange(M), np.arange(40, 100), np.arange(60) * 7 % M)
        assert_scores_equal(model, model.call("rank", raw), model.expected(table))
        requests.append((raw, table))
    return requests


def matmul_rows(exported: Exported, raw: dict[str, Any], scope: str) -> list[tuple[int, ...]]:
    """Shapes of the results of the matrix products under a name, as the runtime recorded them."""
    return [shape for name, shape in products(exported, "rank", raw) if scope in name]


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize("pooling", ["attention", "sequence"])
def test_both_signatures_score_like_the_keras_model(case, tmp_path, pooling) -> None:
    checkpoint = case.checkpoint(contract=contract_with(pooling))
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    assert_both_signatures_score_like_keras(model)


@pytest.mark.slow
def test_attention_computes_the_part_of_an_entry_once_per_user(case, tmp_path) -> None:
    model = Exported(
        case.checkpoint(contract=contract_with("attention")), tmp_path / "m", case.examples
    )
    L, d, H = 4, 6, 16
    for M in (1, 5):
        raw, _ = model.request(np.arange(M), np.arange(60), np.arange(60) % M)
        shapes = matmul_rows(model, raw, "attention_recent")
        # Entries, candidates, products of both, scores, weighted sum.
        assert sorted(np.prod(shape) for shape in shapes) == sorted(
            [M * L * H, 60 * H, 60 * L * H, 60 * L, 60 * d]
        )


@pytest.mark.slow
def test_a_sequence_is_read_once_per_user(case, tmp_path) -> None:
    checkpoint = case.checkpoint(contract=contract_with("sequence"))
    model = Exported(checkpoint, tmp_path / "m", case.examples)
    for M in (1, 5):
        raw, _ = model.request(np.arange(M), np.arange(60), np.arange(60) % M)
        sizes = {np.prod(shape) for shape in matmul_rows(model, raw, "sequence_recent")}
        assert len(sizes) >= 3
        assert all(size % M == 0 and size <= M * 4 * 32 for size in sizes)


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    ("pooling", "options", "gate"),
    [
        ("attention", {"items": "precomputed"}, "topk"),
        ("sequence", {"items": "precomputed"}, "topk"),
        pytest.param("sequence", {"xla": [64]}, "topk", marks=pytest.mark.long),
        pytest.param("attention", {"items": "features"}, "hash", marks=pytest.mark.long),
        pytest.param("attention", {"xla": [64]}, "topk", marks=pytest.mark.long),
        ("attention", {"weights": "int8"}, "topk"),
    ],
)
def test_every_way_to_export_keeps_parity(
    case, with_items, tmp_path, served_operations, pooling, options, gate
) -> None:
    checkpoint = case.checkpoint(
        contract=contract_with(pooling),
        model={"gate": {"name": gate}},
        export=options | {"parity_rows": 60, "weights_tolerance": 1.0},
    )
    version = export(checkpoint, with_items, tmp_path / "models")
    report = json.loads((version / "assets.extra" / "sparsity.json").read_text())
    assert report["parity"]["rows"] == (180 if "items" in options else 120)
    assert report["parity"]["undecided"] <= 2
    # By hand: D = 34 columns, 25 of them the user's, with attention 19; E = 6 experts of 10 units,
    # three gates, three towers.
    flops, used, L, d = report["flops_per_candidate"], report["experts_per_row"], 4, 6
    user, H = (19, 16) if pooling == "attention" else (25, 32)
    of_user, of_pair = 2 * L * d * H, 2 * d * H + L * (2 * d * H + 2 * H + 2 * d)
    if pooling == "sequence":
        of_user, of_pair = L * 2 * (2 * d * d + 2 * d) + 2 * (2 * d * d + 2 * d * H), 0
    routing, of_users = (3 * 2 * 34 * 6, 3 * 2 * user * 6) if gate == "topk" else (0, 0)
    towers, half = 3 * 2 * (10 * 5 + 5), 2 * user * 10
    assert flops["minimum"] == round(used * (680 - half)) + towers + of_pair
    assert flops["rank"] == flops["minimum"] + routing - of_users
    assert flops["sparse"] == round(used * 680) + routing + towers + of_user + of_pair
    assert report["flops_per_user"] == {"rank": 6 * half + of_users + of_user}
    assert "VarHandleOp" not in served_operations(version)
