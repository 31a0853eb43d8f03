"""Metrics, against hand-worked cases and definitions."""

import itertools
import math

import numpy as np
import pytest

from multigate.model.evaluation import metrics

NAN = np.nan


def auc_by_pairs(labels: np.ndarray, scores: np.ndarray) -> float:
    """Share of (positive, negative) pairs in the right order, a tie counting half."""
    pairs = itertools.product(scores[labels == 1], scores[labels == 0])
    return float(np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]))


def test_auc_with_ties_by_hand() -> None:
    # Positives 0.8 and 0.5 against negatives 0.5 and 0.1: right, right, tie, right: 3.5 / 4.
    found = metrics.binary(np.array([1, 1, 0, 0.0]), np.array([0.8, 0.5, 0.5, 0.1]))
    assert found["value"] == pytest.approx(3.5 / 4)
    assert (found["metric"], found["rows"], found["positives"]) == ("auc", 4, 2)


def test_masked_rows_take_no_part() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.3).astype(np.float32)
    scores = np.round(rng.random(200), 1)  # many ties
    masked = rng.random(200) < 0.5
    found = metrics.binary(np.where(masked, NAN, labels), np.where(masked, 1.0, scores))
    assert found["value"] == pytest.approx(auc_by_pairs(labels[~masked], scores[~masked]))
    assert found["rows"] + found["masked"] == 200
    assert found["masked"] == masked.sum()


def test_log_loss_by_hand() -> None:
    found = metrics.binary(np.array([1, 0, NAN]), np.array([0.75, 0.5, 0.9]))
    assert found["log_loss"] == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    assert found["rate"] == 0.5
    assert found["mean_score"] == pytest.approx(0.625)


def test_certain_and_wrong_is_finite() -> None:
    found = metrics.binary(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert found["value"] == 0.0
    assert math.isfinite(found["log_loss"])


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_only(label: float) -> None:
    found = metrics.binary(np.full(3, label), np.array([0.1, 0.5, 0.9]))
    assert found["value"] is None
    assert found["reason"] == f"every label is {label:g}; AUC needs both classes"
    assert found["log_loss"] > 0


def test_all_masked() -> None:
    masked, scores = np.full(3, NAN), np.array([0.1, 0.2, 0.3])
    for found in (
        metrics.binary(masked, scores),
        metrics.regression(masked, scores),
        metrics.quantile(masked, scores, 0.9),
    ):
        assert found["value"] is None
        assert found["reason"] == "every label is masked"
        assert (found["rows"], found["masked"]) == (0, 3)


def test_regression_errors_by_hand() -> None:
    # Errors 1, -3 and 2; the last row is masked.
    found = metrics.regression(np.array([1, 5, 2, NAN]), np.array([2, 2, 4, 99.0]))
    assert found["mse"] == pytest.approx(14 / 3)
    assert found["value"] == pytest.approx(math.sqrt(14 / 3))
    assert found["mae"] == pytest.approx(2.0)
    assert found["label_mean"] == pytest.approx(8 / 3)
    assert found["label_std"] == pytest.approx(math.sqrt((1 + 25 + 4) / 3 - (8 / 3) ** 2))


def test_a_quantile_by_hand() -> None:
    # Residuals -1, 3, -2 and 0 cost 0.25, 2.25, 0.5 and 0; the last row is masked.
    labels, scores = np.array([1, 5, 2, 4, NAN]), np.array([2, 2, 4, 4, 99.0])
    found = metrics.quantile(labels, scores, 0.75)
    assert found["metric"] == "pinball"
    assert found["value"] == found["pinball"] == pytest.approx(3 / 4)
    # The constant 4 costs 0.75, 0.75, 0.5 and 0.
    assert found["pinball_of_constant"] == pytest.approx(2 / 4)
    assert found["coverage"] == 3 / 4  # a label at its score is covered
    assert (found["q"], found["rows"], found["masked"], found["mean_score"]) == (0.75, 4, 1, 3)
