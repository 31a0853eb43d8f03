"""Measures of ranked lists, by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from multigate.model.evaluation.measures import ranking


def test_one_list_by_hand() -> None:
    # Ranked: gain 0, 2, 0, 1, 0, 0.  DCG@5 = 2 / log2(3) + 1 / log2(5); ideal 2 + 1 / log2(3).
    gain = np.array([1, 0, 2, 0, 0, 0.0])
    score = np.array([0.4, 0.9, 0.8, 0.5, 0.2, 0.1])
    found = ranking.by_list(np.zeros(6, int), gain, score)
    expected = (2 / np.log2(3) + 1 / np.log2(5)) / (2 + 1 / np.log2(3))
    assert found["ndcg@5"][0] == pytest.approx(expected)
    assert found["recall@5"][0] == 1.0
    assert found["mrr"][0] == 0.5


def test_ties_earn_what_chance_earns() -> None:
    # A constant score over ten rows, one relevant: recall@5 is 5 of 10; MRR supposes the worst.
    found = ranking.by_list(np.zeros(10, int), np.eye(10)[3], np.ones(10))
    assert found["recall@5"][0] == pytest.approx(0.5)
    assert found["mrr"][0] == pytest.approx(1 / 10)
    # Two relevant among ten that tie: at worst they are ninth and tenth.
    found = ranking.by_list(np.zeros(10, int), np.eye(10)[3] + np.eye(10)[4], np.ones(10))
    assert found["mrr"][0] == pytest.approx(1 / 9)
    # Second place, behind one row and tied with two irrelevant ones: fourth at worst.
    score = np.array([0.9, 0.5, 0.5, 0.5, 0.1])
    found = ranking.by_list(np.zeros(5, int), np.array([0, 1.0, 0, 0, 0]), score)
    assert found["mrr"][0] == pytest.approx(1 / 4)


def test_ndcg_against_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    lists = rng.permutation(np.repeat(np.arange(30), rng.integers(2, 25, 30)))
    gain = rng.integers(0, 4, len(lists)) * (rng.random(len(lists)) < 0.3) * 1.0
    score = np.round(rng.random(len(lists)), 1)  # many ties
    found = ranking.by_list(lists, gain, score)
    for number in range(30):
        mine = lists == number
        if not gain[mine].any():
            assert np.isnan(found["ndcg@5"][number])
            continue
        for k in (5, 10):
            expected = ndcg_score([gain[mine]], [score[mine]], k=k)
            assert found[f"ndcg@{k}"][number] == pytest.approx(expected), (number, k)


def test_lists_that_say_nothing_take_no_part() -> None:
    # A single row; no relevant row; and one list that can be judged.
    lists = np.array([0, 1, 1, 2, 2])
    found = ranking.by_list(lists, np.array([1, 0, 0, 0, 1.0]), np.array([1, 1, 2, 1, 2.0]))
    for values in found.values():
        assert np.isnan(values[:2]).all()
    assert found["mrr"][2] == 1.0
