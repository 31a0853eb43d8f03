"""The combined score, and what makes a row relevant: one rule for both."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from multigate.configs import load
from multigate.configs.contract import Combine, Contract
from multigate.model.assessment import tradeoff
from multigate.model.data.rows import Rows
from multigate.model.evaluation.combine import combine, gains
from multigate.model.evaluation.comparison import compare_scored
from multigate.model.evaluation.measures.bootstrap import Resamples
from multigate.model.evaluation.scored import Scored

NAN = np.nan
SUM = Combine()
PRODUCT = Combine(kind="product", epsilon=0.01)


def contract(rule: Combine = SUM, **weights: float) -> Contract:
    """Binary tasks with these score weights."""
    task = load("demo").contract.tasks["click"]
    tasks = {
        name: task.model_copy(
            update={
                "score_weight": weight,
                "group": "engagement" if name == "click" else "satisfaction",
            }
        )
        for name, weight in weights.items()
    }
    return load("demo").contract.model_copy(update={"tasks": tasks, "combine": rule})


def test_gains_of_a_sum_are_the_weighted_labels() -> None:
    labels = np.array([[1, 1, 0], [0, 0, 1], [1, NAN, 0], [0, 0, 0], [NAN, NAN, NAN]])
    found = gains(contract(click=1, like=3, dislike=-2), labels)
    np.testing.assert_allclose(found, [4, 0, 1, 0, 0])


def test_gains_of_a_product_are_the_products_of_the_labels() -> None:
    # A label counts as at least 0.01, and a row of zeros alone (0.01 * 0.1) is worth nothing.
    labels = np.array([[1, 1], [1, 0], [0, 1], [0, 0], [NAN, NAN], [1, NAN]])
    found = gains(contract(PRODUCT, click=1, like=0.5), labels)
    np.testing.assert_allclose(
        found, [1 - 0.001, 0.1 - 0.001, 0.01 - 0.001, 0, 0, 0.1 - 0.001], rtol=1e-12
    )


def test_a_disliked_row_has_no_gain_in_a_product() -> None:
    labels = np.array([[1, 1], [1, 0], [0, 1], [0, 0]])
    found = gains(contract(PRODUCT, click=1, dislike=-1), labels)
    # click / dislike: 1, 100, 0.01 and, where there is neither, 1.
    np.testing.assert_allclose(found, [0, 99, 0, 0], atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 7, 1000])
def test_rows_without_any_label_are_never_relevant(rows: int) -> None:
    """Rounding of powers must not make them so."""
    rule = Combine(kind="product", epsilon=1e-6)
    weighted = contract(rule, click=0.37, like=1.93, dislike=-0.71)
    assert not gains(weighted, np.zeros((rows, 3))).any()


def test_a_perfect_score_has_an_ndcg_of_one_by_either_rule() -> None:
    """Labels 5 and 1 have the greater sum, 3 and 2 the greater product."""
    depth, rating = np.tile([5.0, 3, 0, 0], 20), np.tile([1.0, 2, 0, 1], 20)
    table = pa.table(
        {
            "user_id": np.repeat(np.arange(20), 4),
            "label/depth": depth.astype(np.float32),
            "label/rating": rating.astype(np.float32),
        }
    )
    rows = Rows(Path("made"), table)
    scores = {"depth": depth, "rating": rating}
    for rule in (SUM, PRODUCT):
        given = contract(rule, depth=1, rating=1)
        tasks = {
            name: task.model_copy(update={"type": "regression"})
            for name, task in given.tasks.items()
        }
        given = given.model_copy(update={"tasks": tasks})
        scored = Scored(given, scores, combine(given, scores))
        found = compare_scored(scored, None, rows, Resamples(rows.codes("user_id"), 10))
        assert found["ranking"]["candidate"]["value"] == pytest.approx(1.0)


def test_the_trade_off_of_a_product_judges_by_products() -> None:
    given = contract(PRODUCT, click=1, like=1, follow=1)
    # One list: satisfaction wants like and follow together (1) far more than one of them (0.01).
    labels = np.array([[0, 1, 1], [1, 1, 0], [0, 0, 0]])
    scores = {"click": np.array([0.2, 0.9, 0.1]), "like": np.array([0.5, 0.9, 0.1])}
    scores["follow"] = np.array([0.5, 0.9, 0.1])
    found = tradeoff.trade_off(given, labels, scores, np.zeros(3, int), Resamples(np.zeros(3), 5))
    assert found is not None
    ideal = (1 - 1e-4) + (0.01 - 1e-4) / np.log2(3)
    got = (0.01 - 1e-4) + (1 - 1e-4) / np.log2(3)
    for point in found["points"]:
        assert point["satisfaction"]["value"] == pytest.approx(got / ideal)
