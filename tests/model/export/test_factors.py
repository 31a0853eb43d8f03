"""Factors of two features in the exported graph, its item table and its stored forms."""

from typing import Any

import numpy as np
import pytest
from tests.model.export.test_graph import Exported
from tests.model.export.test_poolings import assert_both_signatures_score_like_keras, matmul_rows

from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.ranker.factors.term import Factors, PairTables

FACTORS = {"factors": {"width": 3}}


def test_both_signatures_score_like_the_keras_model(case: Any, tmp_path: Any) -> None:
    model = Exported(case.checkpoint(model=FACTORS), tmp_path / "m", case.examples)
    assert_both_signatures_score_like_keras(model)
    raw, _ = model.request(np.arange(5), np.arange(60), np.arange(60) % 5)
    # Of the pair of user and context once per user.
    assert sorted(matmul_rows(model, raw, "factors")) == [(5, 3), (60, 3), (60, 3), (60, 3)]


def test_factors_reach_their_tasks_alone(case: Any) -> None:
    """By hand, of a pair of ids and one with a number in four bins, of which one is missing."""
    ranker = checkpoints.load(case.checkpoint(model=FACTORS)).ranker
    pairs = {
        pair: tables
        for pair, tables in ranker.factors.pairs.items()
        if pair in (("user_id", "item_id"), ("item_id", "price"))
    }
    tables = {pair: PairTables(*map(to_numpy, part)) for pair, part in pairs.items()}
    codes = np.arange(3, 9, dtype=np.int32)
    price = np.array([-2, -0.8, -0.79, 0.5, 0.9, 7], np.float32)
    bins, known = np.array([0, 1, 1, 2, 4, 3]), np.array([1, 1, 1, 1, 0, 1], np.float32)
    encoded = {"user_id": codes, "item_id": codes[::-1].copy(), "price": price}
    encoded["price__present"] = known
    added = np.asarray(Factors(tables, 3)(encoded))
    ids, number = tables["user_id", "item_id"], tables["item_id", "price"]
    expected = np.zeros((6, 3))
    for task, columns in ((0, slice(0, 3)), (2, slice(3, 6))):
        products = ids.first[codes, columns] * ids.second[codes[::-1], columns]
        expected[:, task] += products.sum(axis=1)
    expected[:, 1] = (number.first[codes[::-1]] * number.second[bins]).sum(axis=1)
    np.testing.assert_allclose(added, expected, rtol=1e-4)


@pytest.mark.sweep(0, slow=1)
@pytest.mark.parametrize(
    "options",
    [
        {"items": "features"},
        {"items": "precomputed"},
        {"weights": "int8"},
        {"weights": "bfloat16"},
        {"xla": [64]},
    ],
)
def test_every_way_to_export_keeps_parity(
    case: Any, with_items: Any, tmp_path: Any, options: dict[str, Any]
) -> None:
    """Export compares all signatures with the checkpoint, and refuses what differs."""
    from multigate.model.export.export import export

    checkpoint = case.checkpoint(model=FACTORS, export=options | {"weights_tolerance": 1.0})
    assert export(checkpoint, with_items, tmp_path / "models").is_dir()
