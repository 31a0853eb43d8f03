"""Contributions are Shapley values: against brute force, and what must hold of any."""

from itertools import chain, combinations
from math import factorial

import numpy as np
import pytest

from multigate.explanation.shapley import attribute

B, G = 6, 5


def rows(seed):
    """Background (B, G), and the explained row as row B."""
    return np.random.default_rng(seed).normal(size=(B + 1, G))


def score_of(function, table):
    """Mixes rows of a table (B + 1, G), and scores them."""
    count = []

    def score(sources):
        count.append(len(sources))
        return {"y": function(np.take_along_axis(table, sources, axis=0))}

    return score, count


def network(x):
    """A small network with products of its inputs, (n,)."""
    random = np.random.default_rng(5)
    hidden = np.tanh(x @ random.normal(size=(G, 7))) * np.tanh(x @ random.normal(size=(G, 7)))
    return 1 / (1 + np.exp(-hidden @ random.normal(size=7)))


def brute_force(function, table, g):
    """The definition: over all sets of the other groups and all background rows."""
    others = [i for i in range(G) if i != g]
    total = 0.0
    for b in range(B):
        for taken in chain.from_iterable(combinations(others, k) for k in range(G)):
            without, with_ = table[b].copy(), table[b].copy()
            without[list(taken)] = table[B, list(taken)]
            with_[[*taken, g]] = table[B, [*taken, g]]
            share = factorial(len(taken)) * factorial(G - len(taken) - 1) / factorial(G)
            total += share * (function(with_[None]) - function(without[None]))[0]
    return total / B


ALL = np.ones((B, G), bool)


@pytest.mark.parametrize("seed", range(3))
def test_all_orders_give_the_shapley_values(seed):
    table = rows(seed)
    found = attribute(score_of(network, table)[0], ALL, pairs=None)
    expected = [brute_force(network, table, g) for g in range(G)]
    np.testing.assert_allclose(found.contributions["y"], expected, atol=1e-12)
    assert found.exact
    assert (found.errors["y"] == 0).all()
    assert found.rows == 1 + B * (2**G - 1)


def test_drawn_orders_come_as_near_as_their_error_says():
    """Over 200 seeds, the mean square of the distance is that of the standard error."""
    table = rows(1)
    expected = np.array([brute_force(network, table, g) for g in range(G)])
    found = [attribute(score_of(network, table)[0], ALL, 2, seed) for seed in range(200)]
    assert not any(one.exact for one in found)
    distance = np.mean([np.square(one.contributions["y"] - expected) for one in found], axis=0)
    error = np.mean([np.square(one.errors["y"]) for one in found], axis=0)
    np.testing.assert_allclose(np.sqrt(distance / error), 1, atol=0.15)


@pytest.mark.parametrize("pairs", [2, 3, None])
def test_contributions_add_up_to_the_score_less_the_background_mean(pairs):
    table = rows(2)
    found = attribute(score_of(network, table)[0], ALL, pairs)
    own, mean = network(table[B:])[0], network(table[:B]).mean()
    assert found.explained["y"] == pytest.approx(own, abs=1e-12)
    assert found.background["y"] == pytest.approx(mean, abs=1e-12)
    assert found.contributions["y"].sum() == pytest.approx(own - mean, abs=1e-12)


@pytest.mark.parametrize("pairs", [2, None])
def test_an_ignored_feature_adds_exactly_nothing(pairs):
    def ignores_two(x):
        return np.prod(1 + np.tanh(x[:, [0, 1, 3, 4]]), axis=1)

    found = attribute(score_of(ignores_two, rows(3))[0], ALL, pairs)
    assert found.contributions["y"][2] == 0
    assert found.errors["y"][2] == 0
    assert (found.contributions["y"][[0, 1, 3, 4]] != 0).all()


def test_copies_share_equally():
    """Features 0 and 4 hold the same and do the same: neither may have more than the other."""
    table = rows(4)
    table[:, 4] = table[:, 0]

    def alike(x):
        return np.maximum(x[:, 0], x[:, 4]) * x[:, 1] + np.tanh(x[:, 2] * x[:, 3])

    first, *_, last = attribute(score_of(alike, table)[0], ALL, pairs=None).contributions["y"]
    assert first == pytest.approx(last, abs=1e-12)
    drawn = attribute(score_of(alike, table)[0], ALL, pairs=50)
    difference = drawn.contributions["y"][0] - drawn.contributions["y"][4]
    assert abs(difference) < 4 * np.hypot(drawn.errors["y"][0], drawn.errors["y"][4]) + 1e-12


def test_a_linear_model_has_its_own_terms_with_any_orders():
    """By hand: weight times (value - mean of the background), without any error."""
    table, weights = rows(5), np.array([2.0, -1.0, 0.5, 0.0, 3.0])
    found = attribute(score_of(lambda x: x @ weights, table)[0], ALL, pairs=2)
    expected = weights * (table[B] - table[:B].mean(axis=0))
    np.testing.assert_allclose(found.contributions["y"], expected, atol=1e-12)


def test_an_order_and_its_reverse_share_a_product_equally():
    """Of two features the later one gets what only both give: once the one, once the other."""
    table = rows(8)

    def products(x):
        return x[:, 0] * x[:, 3] - 2 * x[:, 1] * x[:, 4] + x[:, 2] ** 2

    found = attribute(score_of(products, table)[0], ALL, pairs=2)
    expected = [brute_force(products, table, g) for g in range(G)]
    assert not found.exact
    np.testing.assert_allclose(found.contributions["y"], expected, atol=1e-12)
    np.testing.assert_allclose(found.errors["y"], 0, atol=1e-12)


def test_groups_in_which_a_row_agrees_cost_nothing_and_change_nothing():
    table = rows(6)
    table[:, 1] = table[B, 1]
    table[2] = table[B]
    differs = table[:B] != table[B]
    score, count = score_of(network, table)
    found = attribute(score, differs, pairs=None)
    expected = attribute(score_of(network, table)[0], ALL, pairs=None)
    np.testing.assert_allclose(found.contributions["y"], expected.contributions["y"], atol=1e-12)
    assert found.contributions["y"][1] == 0
    assert count == [1 + (B - 1) * (2 ** (G - 1) - 1)]


def test_a_seed_repeats_and_another_differs():
    table = rows(7)
    one, again, other = (
        attribute(score_of(network, table)[0], ALL, 2, seed).contributions["y"]
        for seed in (1, 1, 2)
    )
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize(
    ("differs", "pairs", "message"),
    [
        (np.ones((0, 3), bool), 2, "background: expected at least one row, received none"),
        (ALL, 1, "pairs: expected 2 or more, received 1"),
        (np.ones((2, 13), bool), None, "at most 12 groups .* received 13; draw some orders"),
    ],
)
def test_what_cannot_be_attributed_is_said(differs, pairs, message):
    with pytest.raises(ValueError, match=message):
        attribute(lambda sources: {}, differs, pairs)
