"""Factors of two features: what they find, what they leave alone, and when there are none."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

from multigate.model.ranker.factors.newton import Factorised, Matrix, Rows, evidence, factorise, fit

SIZES = (60, 40)


def taste(seed: int = 0) -> np.ndarray:
    """What each user makes of each item, (60, 40), of rank 2."""
    rng = np.random.default_rng(seed)
    users, items = rng.normal(size=(SIZES[0], 2)), rng.normal(size=(SIZES[1], 2))
    return 1.5 * users @ items.T


def rows(n: int, seed: int, effect: np.ndarray, binary: bool = True) -> Rows:
    """Rows whose labels follow an output and an effect of user and item."""
    rng = np.random.default_rng(seed)
    users, items = (rng.integers(0, size, n) for size in SIZES)
    outputs = rng.normal(size=n) - 0.5
    true = outputs + effect[users, items]
    labels = rng.random(n) < expit(true) if binary else true + rng.normal(size=n)
    columns = (np.asarray(column, np.float32) for column in (outputs, labels, np.ones(n)))
    return Rows(users, items, *columns, users)


def found(binary: bool = True, effect: np.ndarray | None = None, width: int = 4) -> Factorised:
    effect = taste() if effect is None else effect
    fitted, judged = (rows(n, seed, effect, binary) for n, seed in ((4000, 1), (1500, 2)))
    made = factorise(fitted, judged, SIZES, width, binary)
    assert made is not None
    return made


@pytest.mark.parametrize("binary", [True, False])
def test_tastes_that_follow_no_feature_are_found(binary: bool) -> None:
    made = found(binary)
    guessed = made.first @ made.second.T
    assert np.corrcoef(guessed.ravel(), taste().ravel())[0, 1] > 0.85
    assert made.gain > 0.1


@pytest.mark.parametrize("binary", [True, False])
def test_chance_makes_no_factors(binary: bool) -> None:
    accepted = 0
    for seed in range(40):
        nothing = np.zeros(SIZES)
        fitted, judged = (rows(900, 100 * seed + k, nothing, binary) for k in (1, 2))
        accepted += factorise(fitted, judged, SIZES, 4, binary) is not None
    assert accepted <= 1


def test_what_users_and_items_do_apart_is_not_found_twice() -> None:
    """An output that knows all there is leaves nothing, whatever the labels are."""
    fitted, judged = (rows(4000, seed, taste()) for seed in (1, 2))
    exact = [
        one._replace(outputs=one.outputs + taste()[one.first, one.second].astype(np.float32))
        for one in (fitted, judged)
    ]
    assert factorise(exact[0], exact[1], SIZES, 4, binary=True) is None


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("penalty", [3.0, 8.0])
def test_a_general_optimiser_finds_nothing_better(binary: bool, penalty: float) -> None:
    data = rows(4000, 1, taste(), binary)
    width = 3
    first = np.random.default_rng(3).normal(size=(SIZES[1], width)).astype(np.float32)
    users, items = fit(data, Matrix(data, SIZES), first, penalty, binary)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        u, v = (part.reshape(-1, width) for part in np.split(x, [SIZES[0] * width]))
        z = data.outputs + (u[data.first] * v[data.second]).sum(axis=1)
        error = expit(z) - data.labels if binary else z - data.labels
        losses = np.logaddexp(0, z) - data.labels * z if binary else (z - data.labels) ** 2 / 2
        of_u, of_v = penalty * u, penalty * v
        np.add.at(of_u, data.first, error[:, None] * v[data.second])
        np.add.at(of_v, data.second, error[:, None] * u[data.first])
        value = losses.sum() + penalty / 2 * (x @ x)
        return float(value), np.concatenate([of_u.ravel(), of_v.ravel()])

    ours = np.concatenate([users.ravel(), items.ravel()]).astype(np.float64)
    start = np.concatenate([np.full(SIZES[0] * width, 0.1), first.ravel()])
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    nothing = objective(np.zeros_like(ours))[0]
    assert best.fun < 0.99 * nothing
    assert objective(ours)[0] - best.fun < 0.02 * (nothing - best.fun)


def test_the_largest_singular_value_is_the_least_penalty_without_factors() -> None:
    data = rows(4000, 1, taste())
    gradient = np.zeros(SIZES)
    np.add.at(gradient, (data.first, data.second), expit(data.outputs) - data.labels)
    largest = np.linalg.svd(gradient)[1][0]
    matrix, first = Matrix(data, SIZES), np.full((SIZES[1], 2), 0.3, np.float32)
    first[::2, 1] = -0.3
    sizes = {}
    for share in (0.9, 1.1):
        users, items = first[: SIZES[0]], first
        for _ in range(20):  # as often as it takes near the edge
            users, items = fit(data, matrix, items, share * largest, True)
        sizes[share] = np.abs(users @ items.T).max()
    assert sizes[1.1] < 1e-3
    assert sizes[0.9] > 0.05


def products(made: Factorised | None) -> np.ndarray:
    assert made is not None
    return made.first @ made.second.T


def test_other_numbers_of_users_and_items_change_nothing() -> None:
    rng = np.random.default_rng(5)
    user, item = (rng.permutation(size) for size in SIZES)
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((4000, 1), (1500, 2)))
    moved = [
        one._replace(first=user[one.first], second=item[one.second]) for one in (fitted, judged)
    ]
    expected = products(factorise(fitted, judged, SIZES, 4, binary=True))
    received = products(factorise(*moved, SIZES, 4, binary=True))
    np.testing.assert_allclose(received[np.ix_(user, item)], expected, atol=0.02)


def test_a_weight_of_two_is_a_row_twice() -> None:
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((3000, 1), (1500, 2)))
    twice = Rows(*(np.concatenate([values, values[:1000]]) for values in fitted))
    weighted = fitted._replace(weights=np.where(np.arange(3000) < 1000, 2, 1).astype(np.float32))
    expected = products(factorise(twice, judged, SIZES, 4, binary=True))
    received = products(factorise(weighted, judged, SIZES, 4, binary=True))
    np.testing.assert_allclose(received, expected, atol=0.02)


def test_rows_of_unknown_ids_teach_nothing() -> None:
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((3000, 1), (1500, 2)))
    strange = rows(500, 3, -taste())
    strangers = np.where(np.arange(500) % 2, strange.first, -1 - strange.first % 3)
    seconds = np.where(strangers < 0, strange.second, -2)
    strange = strange._replace(first=strangers, second=seconds)
    more = Rows(*(np.concatenate(pair) for pair in zip(fitted, strange, strict=True)))
    expected = products(factorise(fitted, judged, SIZES, 4, binary=True))
    received = products(factorise(more, judged, SIZES, 4, binary=True))
    np.testing.assert_allclose(received, expected, atol=1e-5)


def test_a_gain_is_a_share_of_the_whole_validation_loss() -> None:
    """Rows of new users cannot gain, and count all the same."""
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((3000, 1), (1500, 2)))
    alone = factorise(fitted, judged, SIZES, 4, binary=True)
    strangers = judged._replace(first=np.full(1500, -1))
    both = Rows(*(np.concatenate(pair) for pair in zip(judged, strangers, strict=True)))
    half = factorise(fitted, both, SIZES, 4, binary=True)
    assert alone is not None
    assert half is not None
    assert half.gain == pytest.approx(alone.gain / 2, rel=1e-3)


def test_outputs_far_off_do_no_harm() -> None:
    """Saturated outputs have nearly no curvature: a Newton step must stay finite."""
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((3000, 1), (1500, 2)))
    wild = [one._replace(outputs=80 * one.outputs) for one in (fitted, judged)]
    made = factorise(wild[0], wild[1], SIZES, 4, binary=True)
    assert made is None or np.isfinite(made.first @ made.second.T).all()


def test_there_are_no_factors_without_enough() -> None:
    fitted, judged = (rows(n, seed, taste()) for n, seed in ((3000, 1), (1500, 2)))
    nobody = fitted._replace(first=np.full(3000, -1))
    none = Rows(*(values[:0] for values in fitted))
    for one, other, sizes in (
        (nobody, judged, SIZES),
        (none, judged, SIZES),
        (fitted, none, SIZES),
        (fitted._replace(second=np.zeros(3000, int)), judged, (SIZES[0], 1)),
        (fitted._replace(outputs=logit(fitted.labels).clip(-200, 200)), judged, SIZES),
    ):
        assert factorise(one, other, sizes, 4, binary=True) is None


def test_rare_labels_of_few_users_are_no_ground_for_factors() -> None:
    """One user's taste, however clear, is within the error over users."""
    effect = np.zeros(SIZES)
    effect[0] = np.where(np.arange(SIZES[1]) % 2, 3, -3)
    fitted, judged = (rows(n, seed, effect) for n, seed in ((4000, 1), (1500, 2)))
    assert factorise(fitted, judged, SIZES, 4, binary=True) is None


def spread(case: str, number: int) -> float:
    """A z value where two features have no effect together, in several kinds of rows."""
    rng = np.random.default_rng(number)
    apart = rng.normal(size=SIZES[0])[:, None] + rng.normal(size=SIZES[1])
    apart -= 4 if case == "rare" else 0
    both = [rows(1500, 1000 + 2 * number + k, apart, case != "noise") for k in (0, 1)]
    for k, one in enumerate(both):
        outputs = one.outputs + apart[one.first, one.second].astype(np.float32)
        labels, weights = one.labels, one.weights
        if case == "noise":  # of one value in eight, eight times as large
            loud = np.where(one.second % 8, 1, 8)
            labels = outputs + loud * (labels - outputs)
        if case == "weights":
            weights = rng.lognormal(1, 1, len(labels)).astype(np.float32)
        both[k] = one._replace(outputs=outputs, labels=labels, weights=weights)
    return evidence(both[0], both[1], SIZES, case != "noise")


@pytest.mark.parametrize("case", ["plain", "rare", "noise", "weights"])
def test_evidence_is_as_good_as_normal_where_there_is_no_effect(case: str) -> None:
    """Also where users differ, and features do, as long as they do so apart."""
    values = [spread(case, number) for number in range(150)]
    assert abs(np.mean(values)) < 0.3
    assert np.std(values) == pytest.approx(1, abs=0.22)
    assert max(values) < 4.5


def test_two_features_of_the_user_are_no_evidence() -> None:
    """They are the same in all rows of a user; what is left of them is rounding."""
    weights = np.random.default_rng(3).lognormal(size=3000).astype(np.float32)
    both = []
    for seed in (1, 2):
        one = rows(3000, seed, taste())
        labels = (one.first % 2).astype(np.float32)
        both.append(one._replace(second=one.first % 7, weights=weights, labels=labels))
    assert evidence(both[0], both[1], (SIZES[0], 7), binary=True) == 0


def test_a_user_whose_level_is_wrong_is_no_evidence() -> None:
    """What a user does in all rows needs no second feature."""
    values = []
    for seed in range(60):
        level = 1.5 * np.random.default_rng(seed).normal(size=SIZES[0])[:, None]
        fitted, judged = (
            rows(1200, 1000 + 2 * seed + k, np.broadcast_to(level, SIZES)) for k in (0, 1)
        )
        values.append(evidence(fitted, judged, SIZES, binary=True))
    assert abs(np.mean(values)) < 0.5
    assert np.max(np.abs(values)) < 4


@pytest.mark.parametrize("binary", [True, False])
def test_evidence_grows_with_an_effect(binary: bool) -> None:
    values = []
    for strength in (0.0, 0.2, 1.0):
        fitted, judged = (rows(3000, seed, strength * taste(), binary) for seed in (1, 2))
        values.append(evidence(fitted, judged, SIZES, binary))
    assert values[0] < 2 < values[1] < values[2]
    assert values[2] > 6
    fitted, judged = rows(3000, 1, taste(), binary), rows(3000, 2, -taste(), binary)
    assert evidence(fitted, judged, SIZES, binary) < -6  # the opposite, in other rows


def test_evidence_of_nothing_is_none() -> None:
    fitted, judged = (rows(300, seed, taste()) for seed in (1, 2))
    nobody = judged._replace(first=np.full(300, -1))
    assert evidence(fitted, nobody, SIZES, binary=True) == 0
    assert evidence(nobody, judged, SIZES, binary=True) == 0
    alone = [one._replace(second=np.zeros(300, int)) for one in (fitted, judged)]
    assert evidence(*alone, (SIZES[0], 1), binary=True) == 0


def test_large_tables_are_decomposed_in_part() -> None:
    """More than 65,536 cells: the largest directions alone, and the same twice."""
    sizes = (500, 400)
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(sizes[0], 2)), rng.normal(size=(sizes[1], 2))

    def some(n: int, seed: int) -> Rows:
        rng = np.random.default_rng(seed)
        first, second = (rng.integers(0, size, n) for size in sizes)
        chance = expit(1.5 * (one[first] * other[second]).sum(axis=1))
        labels = (rng.random(n) < chance).astype(np.float32)
        return Rows(first, second, 0 * labels, labels, np.ones(n, np.float32), first)

    fitted, judged = some(30_000, 2), some(5_000, 3)
    made = [factorise(fitted, judged, sizes, 4, binary=True) for _ in range(2)]
    assert made[0] is not None
    assert made[0].gain > 0.1
    np.testing.assert_array_equal(products(made[0]), products(made[1]))
    assert evidence(fitted, judged, sizes, binary=True) > 6
