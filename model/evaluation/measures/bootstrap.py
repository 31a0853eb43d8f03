"""The cluster bootstrap: resampling whole users, because a user's rows are not independent.

`scipy.stats.bootstrap` draws rows, and calls the measure anew for every resample.
"""

from typing import TypedDict

import numpy as np

CONFIDENCE = 0.95
LEAST_USERS = 10
"""With fewer users there is no interval: so few say nothing about the users that were not seen."""


class Interval(TypedDict):
    """A measure with its limits; None where they do not exist.

    Attributes:
        value: on the sample.
        low: lower 95 % limit.
        high: upper 95 % limit.
        error: standard deviation of the replicates.
        rows: how many rows took part.
    """

    value: float | None
    low: float | None
    high: float | None
    error: float | None
    rows: int


def limits(found: Interval | None) -> tuple[float, float] | None:
    """Both limits of an interval, where there are any."""
    if found is None or found["low"] is None or found["high"] is None:
        return None
    return found["low"], found["high"]


class Resamples:
    """How often each user is drawn, on the sample itself and on R resamples of it.

    A resample draws as many users as there are, with replacement, and has all rows of each drawn
    user, each as often as the user was drawn.  Two models or tasks measured with the same
    `Resamples` share their draws, so that differences of their replicates are paired.

    Args:
        users: (N,) the user of each row, any values that can be sorted.
        replicates: number of resamples, R.
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

    def users_of(self, rows: np.ndarray) -> int:
        """How many users have some of the rows: (N,) bool, or an index of rows."""
        return len(np.unique(self.codes[rows]))

    def totals(self, values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Sum over rows, each counted as often as its user is drawn, (1 + R,).

        Args:
            values: (n,) one of each row.
            rows: (n,) index of these rows among all N; all rows where None.
        """
        codes = self.codes if rows is None else self.codes[rows]
        return self.of_users(np.bincount(codes, values, minlength=self.users))

    def of_users(self, values: np.ndarray) -> np.ndarray:
        """Sum over users of `values` (users,), each as often as the user is drawn, (1 + R,)."""
        # Not `@`: for products this small, BLAS threads cost more than they save, and a hundred
        # times more on a machine with busy cores.
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


def interval(values: np.ndarray, users: int, *, rows: int) -> Interval:
    """A measure with its limits: the percentiles of its replicates.

    Args:
        values: (1 + R,) on the sample and on its resamples.
        users: how many users took part.
        rows: how many rows took part.
    """
    value, drawn = float(values[0]), values[1:][np.isfinite(values[1:])]
    result: Interval = {
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
