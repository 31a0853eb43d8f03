"""The cluster bootstrap: resampling whole users, because a user's rows are not independent."""

from typing import Any

import numpy as np

CONFIDENCE = 0.95
LEAST_USERS = 10
"""Below, no interval is given: so few clusters say nothing about those that were not seen."""


class Resamples:
    """How often each user is drawn, on the sample itself and on R resamples of it.

    A resample draws as many users as there are, with replacement; its rows are those of the users
    drawn, each as often as its user.  Two models, or two tasks, measured with the same `Resamples`
    are measured on the same draws, so that differences of their replicates are paired.

    Args:
        users: (N,) the user of each row, any values that can be sorted.
        replicates: R.
        seed: of the draws.

    Attributes:
        codes: (N,) user of each row, as 0..users-1.
        users: number of users.
        weights: (1 + R, users) float64; row 0 is the sample itself, all ones.
    """

    def __init__(self, users: np.ndarray, replicates: int = 500, seed: int = 0) -> None:
        names, self.codes = np.unique(users, return_inverse=True)
        self.users = len(names)
        self.weights = np.ones((1 + replicates, self.users))
        rng = np.random.default_rng(seed)
        for weights in self.weights[1:]:
            drawn = rng.integers(0, self.users, self.users)
            weights[:] = np.bincount(drawn, minlength=self.users)

    def totals(self, values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Sum over rows, each counted as often as its user is drawn, (1 + R,).

        Args:
            values: (n,) of the rows.
            rows: (n,) index of the rows among all N; all of them where None.
        """
        codes = self.codes if rows is None else self.codes[rows]
        return self.of_users(np.bincount(codes, values, minlength=self.users))

    def of_users(self, values: np.ndarray) -> np.ndarray:
        """Sum over users of a value (users,) of each, as often as the user is drawn, (1 + R,)."""
        # Not `@`: for products this small BLAS threads cost more than they save, and a hundred
        # times more on a machine whose cores are busy.
        found: np.ndarray = np.einsum("ru,u->r", self.weights, values)
        return found

    def totals_by_bin(
        self, bins: np.ndarray, count: int, values: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """`totals` of each bin, (1 + R, count).

        Args:
            bins: (n,) integers in [0, count).
            count: number of bins.
            values: (n,).
            rows: (n,) index of the rows among all N.
        """
        cells = self.codes[rows] * count + bins
        table = np.bincount(cells, values, minlength=self.users * count)
        found: np.ndarray = np.einsum("ru,ub->rb", self.weights, table.reshape(self.users, count))
        return found


def interval(values: np.ndarray, users: int, *, rows: int) -> dict[str, Any]:
    """A measure with its limits (the resamples' percentiles), ready for JSON.

    Args:
        values: (1 + R,) on the sample and on its resamples.
        users: how many users took part.
        rows: how many rows took part.

    Returns:
        value, low and high (None where they do not exist), error (the replicates' standard
        deviation, or None), rows.
    """
    value, drawn = float(values[0]), values[1:][np.isfinite(values[1:])]
    result: dict[str, Any] = {
        "value": value if np.isfinite(value) else None,
        "low": None,
        "high": None,
        "error": None,
        "rows": rows,
    }
    enough = users >= LEAST_USERS and len(drawn) >= max(0.9 * (len(values) - 1), 2)
    if result["value"] is None or not enough:
        return result
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return result | {"low": float(low), "high": float(high), "error": float(drawn.std(ddof=1))}
