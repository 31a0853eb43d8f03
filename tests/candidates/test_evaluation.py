"""Recall: questions, answers and simple methods, worked out by hand."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from multigate.candidates import evaluation
from multigate.candidates.evaluation import (
    interval_by_user,
    item_cosine,
    make_questions,
    popularity,
    popularity_of,
    recall,
)
from multigate.candidates.pairs import Catalogue, Pairs

START = datetime(2026, 1, 1, tzinfo=UTC)


def pairs(*rows):
    """Rows (user, item, minute)."""
    users, items, minutes = (list(column) for column in zip(*rows, strict=True))
    table = pl.DataFrame({"meta/time": [START + timedelta(minutes=m) for m in minutes]})
    return Pairs({}, np.asarray(users, object), np.asarray(items, object), table)


ITEMS = Catalogue(np.asarray(["a", "b", "c", "d"], object), {})
BEFORE = pairs(("ann", "a", 0), ("ann", "b", 1), ("bob", "a", 2), ("bob", "c", 3), ("cid", "a", 4))
# ann touches c, then d; a again is no answer. bob goes on to something that nobody knew, then to b.
# dan is new.
NOW = pairs(
    ("ann", "c", 10),
    ("ann", "a", 11),
    ("ann", "d", 12),
    ("bob", "new", 13),
    ("bob", "b", 14),
    ("dan", "a", 15),
)


def test_a_question_for_each_positive():
    questions = make_questions([BEFORE], NOW, ITEMS, "next_item", limit=100)
    assert questions.rows.tolist() == [0, 2, 3, 4, 5]
    assert questions.answers.toarray().tolist() == [
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 0],
    ]
    assert questions.missed.tolist() == [0, 0, 1, 0, 0]
    # What ann touched within the split, before the second question, counts as seen.
    assert questions.seen.toarray().tolist() == [
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 0, 1, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 0],
    ]


def test_a_question_for_each_user():
    questions = make_questions([BEFORE], NOW, ITEMS, "from_the_start", limit=100)
    assert questions.rows.tolist() == [0, 3, 5]
    assert questions.answers.toarray().tolist() == [[0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert questions.missed.tolist() == [0, 1, 0]
    assert questions.seen.toarray().tolist() == [[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_who_touched_only_what_nobody_knew_has_a_history():
    now = pairs(("eve", "new", 10), ("eve", "a", 11), ("dan", "a", 12), ("bob", "d", 13))
    for kind, cold in (
        ("next_item", [True, False, True, False]),
        ("from_the_start", [True, True, False]),
    ):
        assert make_questions([BEFORE], now, ITEMS, kind, limit=100).cold.tolist() == cold


def test_the_limit_draws_the_same_questions_again():
    first, second = (make_questions([BEFORE], NOW, ITEMS, "next_item", limit=3) for _ in range(2))
    assert first.rows.tolist() == second.rows.tolist()
    assert len(first) == 3


def test_recall_by_hand():
    questions = make_questions([BEFORE], NOW, ITEMS, "from_the_start", limit=100)
    scores = np.asarray([[9, 9, 1, 2], [9, 1, 9, 2], [0, 3, 2, 1]], np.float32)
    found = recall(lambda part: scores[part], questions, (1, 2))
    # ann, of c and d: d first, then c. bob, of b and one unknown: d first, then b. dan: a is last.
    assert found == {1: pytest.approx(1 / 3), 2: pytest.approx((1 + 1 / 2 + 0) / 3)}


def test_equal_scores_rank_by_number_so_that_no_method_gains_by_ties():
    questions = make_questions([BEFORE], NOW, ITEMS, "from_the_start", limit=100)
    found = recall(lambda part: np.zeros((part.stop - part.start, 4)), questions, (1,))
    assert found == {1: pytest.approx((1 + 1 + 1) / 3)}  # c, b and a are the first unseen ones


def test_popularity_counts_users_of_the_earlier_splits():
    questions = make_questions([BEFORE], NOW, ITEMS, "next_item", limit=100)
    assert popularity(questions)(slice(0, 2)).tolist() == [[3, 1, 1, 0]] * 2
    assert popularity_of([BEFORE], ITEMS).tolist() == [3, 1, 1, 0]


def test_item_cosine_by_hand():
    questions = make_questions([BEFORE], NOW, ITEMS, "from_the_start", limit=100)
    found = item_cosine(questions)(slice(0, 3))
    third = 1 / np.sqrt(3)  # a has three users, b and c one each, all of them users of a
    expected = [[third, third, third, 0], [third, third, third, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[2].argmax() == 0  # without a past, popularity decides


def test_users_alike_in_all_their_questions_are_known_no_better_than_by_one_each():
    random = np.random.default_rng(0)
    users, losses = np.arange(40), random.normal(size=40)
    spread = 1.96 * losses.std(ddof=1) / np.sqrt(40)
    expected = pytest.approx([losses.mean() - spread, losses.mean() + spread])
    assert interval_by_user(losses, users) == expected
    order = random.permutation(40 * 30)  # each asks the same thirty times
    found = interval_by_user(np.repeat(losses, 30)[order], np.repeat(users, 30)[order])
    assert found == expected


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Each user has a rate of losses of his own; the mean over users is 0.3."""
    random, held = np.random.default_rng(0), 0
    users = np.repeat(np.arange(100), random.integers(1, 30, 100))
    for _ in range(300):
        rates = random.beta(1.5, 3.5, 100)
        low, high = interval_by_user((random.random(len(users)) < rates[users]) * 1.0, users)
        held += low <= 0.3 <= high
    assert 0.92 <= held / 300 <= 0.98


def test_few_users_have_no_interval():
    losses = np.linspace(0, 1, 90)
    assert interval_by_user(losses, np.arange(90) % 9) is None
    assert interval_by_user(losses, np.arange(90) % 10) is not None
    assert interval_by_user(losses[:1], np.array(["ann"], object)) is None


@pytest.mark.parametrize("split", ["train", "tset"])
def test_only_later_splits_are_evaluated(tmp_path, split):
    from multigate.configs.errors import DataError

    with pytest.raises(DataError, match=f"expected one of validation, test; received '{split}'"):
        evaluation.evaluate(tmp_path, tmp_path, split=split)
