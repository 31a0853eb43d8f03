"""What each group of features adds to a row's scores: Shapley values by ablation.

A feature that is left out takes its value from another row, of a background of B example rows.  For
one background row b and a set S of groups, f(S) is the score of the row whose groups in S are the
explained row's and whose other groups are b's.  The contribution of group g is

    phi_g = mean over b and over orders of the groups of  f(before g, and g) - f(before g)

(Shapley 1953; Strumbelj and Kononenko 2014).  For each b the contributions add up to f(all) -
f(none), so that over all groups they add up to the explained row's score minus the background's
mean score: exactly, however few orders are drawn.

Orders are drawn in antithetic pairs, an order and its reverse (Mitchell et al. 2022, section 4).
Where evaluating every set of groups costs no more, all orders are taken instead, by way of the
sets' Shapley weights, and the values are exact.  Groups in which b equals the explained row change
nothing, so they are left out of b's orders and have exactly 0 there.

Axes: B background rows, G groups, n rows to score.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import factorial

import numpy as np

Sources = np.ndarray
"""(n, G) int64: the row that each group is taken from: 0 to B - 1 of the background, B the
explained row."""

Score = Callable[[Sources], Mapping[str, np.ndarray]]
"""Scores (n,) of such rows, by output."""

MOST_EXACT = 12
"""Groups that differ of which `pairs=None` evaluates all sets: 4,096 for each background row."""


@dataclass(frozen=True)
class Attribution:
    """Contributions to each output.

    Attributes:
        contributions: by output, (G,).
        errors: by output, (G,) standard errors that drawing orders leaves, for this background; 0
            where all orders were taken.
        explained: by output, the explained row's score.
        background: by output, the mean score of the background rows.
        exact: whether all orders were taken.
        rows: how many rows were scored.
    """

    contributions: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    explained: dict[str, float]
    background: dict[str, float]
    exact: bool
    rows: int


def rows_needed(background: int, groups: int, pairs: int) -> int:
    """The most rows that `attribute` scores."""
    return 1 + background * (1 + 2 * pairs * max(groups - 1, 0))


def attribute(
    score: Score, differs: np.ndarray, pairs: int | None = 2, seed: int = 0
) -> Attribution:
    """Divide the explained row's scores among the groups.

    Args:
        score: scores rows that are mixed from the explained row and the background.
        differs: (B, G) bool, whether a background row differs from the explained one in a group;
            True is always right, and costs evaluations.
        pairs: antithetic pairs of orders for each background row, at least 2; None takes all
            orders.
        seed: of the orders.

    Raises:
        ValueError: no background row, fewer than 2 pairs, or all orders of too many groups.
    """
    B, G = differs.shape
    if not B:
        raise ValueError("background: expected at least one row, received none")
    if pairs is not None and pairs < 2:
        raise ValueError(f"pairs: expected 2 or more, received {pairs}")
    most = int(differs.sum(axis=1).max())
    if pairs is None and most > MOST_EXACT:
        raise ValueError(
            f"expected at most {MOST_EXACT} groups of features that differ, for all their orders, "
            f"received {most}; draw some orders"
        )
    walks = _Walks(B, G)
    generator = np.random.default_rng(seed)
    exact = True
    for b in range(B):
        active = np.flatnonzero(differs[b])
        if pairs is None or 2 ** len(active) <= 2 + 2 * pairs * max(len(active) - 1, 0):
            walks.add_sets(b, active)
            continue
        exact = False
        for pair in range(pairs):
            order = generator.permutation(active)
            walks.add_order(b, order, pair, 0.5)
            walks.add_order(b, order[::-1], pair, 0.5)
    found = {name: np.asarray(v, np.float64) for name, v in score(np.array(walks.sources)).items()}
    results = {name: walks.contributions(values) for name, values in found.items()}
    return Attribution(
        {name: value for name, (value, _) in results.items()},
        {name: error for name, (_, error) in results.items()},
        {name: float(values[0]) for name, values in found.items()},
        {name: float(values[walks.nothing].mean()) for name, values in found.items()},
        exact,
        len(walks.sources),
    )


class _Walks:
    """Rows to score, each once, and the steps between them in which one group changes."""

    def __init__(self, background: int, groups: int) -> None:
        self._groups = groups
        self._explained = background
        self.sources: list[np.ndarray] = [np.full(groups, background)]
        self._places: dict[tuple[int, bytes], int] = {}
        self._units: list[tuple[int, int]] = []
        """Background row and pair of each unit of drawing."""
        self._steps: list[tuple[int, int, int, int, float]] = []
        """Unit, group, row before, row after, weight."""
        self.nothing: list[int] = []
        """The row of each background row itself; see `add_sets` and `add_order`."""

    def add_order(self, b: int, order: np.ndarray, pair: int, weight: float) -> None:
        """Let the groups become the explained row's one after the other, with a weight."""
        unit = self._unit(b, pair)
        taken = np.zeros(self._groups, bool)
        places = [self._row(b, taken, len(order))]
        if len(self.nothing) == b:
            self.nothing.append(places[0])
        for group in order:
            taken[group] = True
            places.append(self._row(b, taken, len(order)))
        for group, (before, after) in zip(order, pairwise(places), strict=True):
            self._steps.append((unit, int(group), before, after, weight))

    def add_sets(self, b: int, active: np.ndarray) -> None:
        """All orders of the groups: each step from a set with its share of the orders."""
        unit, count = self._unit(b, 0), len(active)
        places = []
        for mask in range(1 << count):
            taken = np.zeros(self._groups, bool)
            taken[active[[place for place in range(count) if mask >> place & 1]]] = True
            places.append(self._row(b, taken, count))
        self.nothing.append(places[0])
        for mask, before in enumerate(places):
            size = mask.bit_count()
            for place in range(count):
                if not mask >> place & 1:
                    weight = factorial(size) * factorial(count - size - 1) / factorial(count)
                    after = places[mask | 1 << place]
                    self._steps.append((unit, int(active[place]), before, after, weight))

    def contributions(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Contributions and standard errors, (G,) each, for scores (n,) of the rows."""
        each = np.zeros((len(self._units), self._groups))
        if self._steps:
            unit, group, before, after, weight = map(np.array, zip(*self._steps, strict=True))
            # The difference first: where a group changes nothing, it is exactly 0.
            np.add.at(each, (unit, group), weight * (scores[after] - scores[before]))
        of = np.array([b for b, _ in self._units])
        B = self._explained
        value, variance = np.zeros(self._groups), np.zeros(self._groups)
        for b in range(B):
            units = each[of == b]
            value += units.mean(axis=0) / B
            if len(units) > 1:
                variance += units.var(axis=0, ddof=1) / len(units) / B**2
        return value, np.sqrt(variance)

    def _unit(self, b: int, pair: int) -> int:
        if not self._units or self._units[-1] != (b, pair):
            self._units.append((b, pair))
        return len(self._units) - 1

    def _row(self, b: int, taken: np.ndarray, count: int) -> int:
        """The place of a row; one that has all groups that differ is the explained row."""
        if taken.sum() == count:
            return 0
        key = (b, np.packbits(taken).tobytes())
        if key not in self._places:
            self._places[key] = len(self.sources)
            self.sources.append(np.where(taken, self._explained, b))
        return self._places[key]
