"""How alike two versions' answers are: pair by pair and item by item, by brute force."""

import random
from itertools import combinations

import numpy as np
import pytest

from multigate.serving.core.layout import SCORE
from multigate.serving.observe import agreement as measured_by
from multigate.serving.observe.agreement import overlap_of, pairs_agreement


def scored(scores):
    """The places of a request's candidates, and their scores."""
    return np.array(list(scores)), {SCORE: np.array(list(scores.values()), np.float32)}


def relation(one, other):
    return (one > other) - (one < other)


def agreement(first, second, most):
    """Of two dictionaries, scores by place; a version's best come first."""
    best = sorted(first, key=lambda place: -first[place])  # equal ones stay in order
    places = [place for place in best if place in second][:most]
    pairs = list(combinations(places, 2))
    same = [relation(first[a], first[b]) == relation(second[a], second[b]) for a, b in pairs]
    return sum(same) / len(pairs) if pairs else None


def test_pairs_by_hand():
    ours, theirs = scored({0: 0.5, 1: 0.4, 2: 0.3}), scored({0: 0.5, 1: 0.2, 2: 0.3})
    assert pairs_agreement(*ours, *theirs) == pytest.approx(2 / 3)  # 1 and 2 change places
    tied = scored({0: 0.5, 1: 0.5, 2: 0.3})
    assert pairs_agreement(*ours, *tied) == pytest.approx(2 / 3)  # a tie is no order
    assert pairs_agreement(*tied, *tied) == 1
    assert pairs_agreement(*scored({0: 1, 1: 2}), *scored({1: 1, 2: 2})) is None


@pytest.mark.parametrize("most", [4, 200])
def test_pairs_of_candidates_that_both_versions_score(most, monkeypatch):
    """Each version lacks some; of more than `most`, the first version's best count."""
    monkeypatch.setattr(measured_by, "_COMPARED_ITEMS", most)
    draw, found = random.Random(6), []
    for _ in range(200):
        versions = []
        for _ in range(2):
            places = sorted(draw.sample(range(9), draw.choice([3, 6, 9])))
            versions.append({place: draw.randrange(6) / 8 for place in places})
        first, second = versions
        measured = pairs_agreement(*scored(first), *scored(second))
        assert measured == pytest.approx(agreement(*versions, most))
        found.append(measured)
    between = [share for share in found if share not in (None, 0, 1)]
    assert len(set(between)) > (4 if most == 4 else 20)
    assert None in found


def test_overlap_of_answers_to_one_request():
    """Answers name rows, and rows of the two versions are of other places of the request."""
    draw, found = random.Random(7), set()
    for _ in range(200):
        answers = []
        for _ in range(2):
            places = sorted(draw.sample(range(9), draw.choice([3, 6, 9])))
            order = draw.sample(range(len(places)), draw.randrange(1, len(places) + 1))
            answers.append((places, order))
        (first, ours), (second, theirs) = answers
        ours_there, theirs_there = ([p[row] for row in o] for p, o in answers)
        measured = overlap_of(*map(np.array, (first, ours, second, theirs)))
        assert measured == pytest.approx(
            sum(place in theirs_there for place in ours_there) / len(ours_there)
        )
        found.add(measured)
    assert len(found - {0.0, 1.0}) > 8
