"""Pinball loss and its best constant, by hand, by brute force and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss

from multigate.model.evaluation.measures import pinball


def test_losses_by_hand() -> None:
    # Above the score by 4: 0.9 * 4.  Below it by 2: 0.1 * 2.  On it: nothing.
    found = pinball.losses(np.array([5.0, 1.0, 3.0]), np.array([1.0, 3.0, 3.0]), 0.9)
    np.testing.assert_allclose(found, [3.6, 0.2, 0.0])


def test_the_best_constant_by_hand() -> None:
    labels = np.array([40.0, 10.0, 30.0, 20.0])
    assert pinball.best_constant(labels, 0.5) == 20
    assert pinball.best_constant(labels, 0.51) == 30
    # With weights 1, 1, 1 and 7 of ten, the largest label has all from 0.3 upward.
    assert pinball.best_constant(labels, 0.31, np.array([7.0, 1.0, 1.0, 1.0])) == 40
    assert pinball.best_constant(labels, 0.25, np.array([7.0, 1.0, 1.0, 1.0])) == 30


@pytest.mark.parametrize("q", [0.03, 0.5, 0.9, 0.999])
def test_no_constant_is_better_than_the_best(q: float) -> None:
    rng = np.random.default_rng(0)
    labels, weights = np.round(rng.exponential(3, 120), 1), rng.integers(0, 4, 120).astype(float)

    def loss(constant: float) -> float:
        every = np.full(120, constant)
        return float(mean_pinball_loss(labels, every, alpha=q, sample_weight=weights))

    found = loss(pinball.best_constant(labels, q, weights))
    # The loss is a straight line between two labels, so that its least value is at one of them.
    assert found == pytest.approx(min(loss(label) for label in labels))
