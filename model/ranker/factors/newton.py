"""Factors of the values of two features, for what a model's outputs leave unexplained.

With o the output of a row, y its label, and u, v (F,) the factors of its two values, they minimise

    sum over rows of loss(o + u v, y) + penalty / 2 (sum of all |u|^2 + sum of all |v|^2)

in turns: for fixed v each u is a small regression of its own, solved by one Newton step, and the
other way round (alternating least squares, Koren, Bell and Volinsky 2009; for the logistic loss
each step solves the quadratic approximation).  The penalty is that of the nuclear norm of the
matrix of all u v (Srebro and Shraibman 2005): directions that are no stronger than chance vanish
altogether, and where all do, 0 is the solution.  The least penalty at which it is, is the largest
singular value of the matrix of the loss's gradients at 0, so that penalties are chosen as shares of
it, by validation.

`implicit` was considered: it takes no offset, and no labels of 0 and 1 that are both seen.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import ArpackError, svds
from scipy.special import expit

SHARES = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12)
"""Penalties to choose from, as shares of the least one at which all factors are 0."""
LEAST_GAIN = 0.001
"""Share of the validation loss that factors must save, and twice the standard error of it."""
_SWEEPS = 10
_START = 0.3  # size of the first factors
_LEAST_CURVATURE = 0.01  # of a row, so that a Newton step far from 0.5 stays short
_ENOUGH = 1e-3  # relative change of all factors at which sweeps end
_SMALL = 1 << 16  # numbers of a matrix that is decomposed whole
_ROUNDING = 1e-10  # share of a step's square that is nothing
_JUDGED = 4  # directions of the gradient that tell whether two features have an effect together


class Rows(NamedTuple):
    """Rows of one task that have its label.

    Attributes:
        first: (N,) places of the first feature's values among the known ones; below 0 for others.
        second: (N,) likewise.
        outputs: (N,) of the model, on the scale of the loss.
        labels: (N,) on the same scale.
        weights: (N,) in the loss.
        users: (N,) a number from 0 for each user, over whom errors are measured.
    """

    first: np.ndarray
    second: np.ndarray
    outputs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    users: np.ndarray

    def known(self) -> "Rows":
        """The rows with two known values."""
        return self.take(self.are_known())

    def are_known(self) -> np.ndarray:
        """Whether each row has two known values, (N,)."""
        found: np.ndarray = (self.first >= 0) & (self.second >= 0)
        return found

    def take(self, rows: np.ndarray | slice) -> "Rows":
        """Some rows."""
        return Rows(*(values[rows] for values in self))


class Factorised(NamedTuple):
    """Factors of a task.

    Attributes:
        first: (n, F) of the first feature's values.
        second: (m, F) of the second's.
        gain: share of the validation loss that they save.
    """

    first: np.ndarray
    second: np.ndarray
    gain: float

    def effect(self, rows: Rows) -> np.ndarray:
        """What they add to the outputs of rows, (N,)."""
        known = rows.are_known()
        found = np.zeros(len(known), np.float32)
        found[known] = _products(self.first, self.second, rows.take(known))
        return found


def evidence(rows: Rows, held_out: Rows, sizes: tuple[int, int], binary: bool) -> float:
    """Whether two features have an effect together on rows that it is not found in, a z value.

    A small step along the strongest directions of the gradient lowers the loss of held-out rows by
    so many standard errors.  It is as good as normal where there is no such effect, whatever the
    rows' weights and the noise of their labels are (White 1980), and however much users differ:
    what a user's rows have in common is taken out of the step.  Two features of the user alone are
    therefore never an effect.

    Args:
        rows: in which the directions are found.
        held_out: see above.
        sizes: numbers of known values.
        binary: whether the loss is logistic; else squared.
    """
    fitted, judged = rows.known(), held_out.known()
    if not len(fitted.first) or not len(judged.first):
        return 0.0
    slopes, _ = _derivatives(fitted.outputs, fitted, binary)
    found = _directions(Matrix(fitted, sizes).of_first(slopes), _JUDGED)
    if found is None:
        return 0.0
    one, strengths, other = found
    step = np.einsum("nf,nf->n", one[judged.first] * strengths, other[judged.second])
    slopes, _ = _derivatives(judged.outputs, judged, binary)
    inside = step - _of_users(step, judged)
    if np.square(inside).sum() <= _ROUNDING * np.square(step).sum():
        return 0.0
    error = float(np.sqrt(np.square(slopes * inside).sum()))
    return float((slopes * inside).sum()) / error if error else 0.0


def _of_users(values: np.ndarray, rows: Rows) -> np.ndarray:
    """The weighted mean (N,) of values over the rows of each row's user.

    Users with a single row are one, so that these rows have something to differ from.
    """
    users = np.where(np.bincount(rows.users)[rows.users] > 1, rows.users + 1, 0)
    weights = rows.weights.astype(np.float64)
    total = np.bincount(users, weights)
    means = np.bincount(users, weights * values) / np.where(total > 0, total, 1)
    found: np.ndarray = means[users]
    return found


def factorise(
    rows: Rows, held_out: Rows, sizes: tuple[int, int], width: int, binary: bool
) -> Factorised | None:
    """The factors that suit validation rows best; None if they save too little there.

    Args:
        rows: to fit.
        held_out: to choose the penalty.
        sizes: numbers of known values.
        width: F, at most.
        binary: whether the loss is logistic; else squared.
    """
    fitted, judged = rows.known(), held_out.known()
    if not len(fitted.first) or not judged.weights.sum():
        return None
    matrix = Matrix(fitted, sizes)
    slopes, _ = _derivatives(fitted.outputs, fitted, binary)
    found = _directions(matrix.of_first(slopes), width)
    if found is None:
        return None
    _, strengths, directions = found
    start = (directions * _START * sizes[1] ** 0.5).astype(np.float32)
    total = float(_losses(held_out.outputs, held_out, binary).sum())
    best = None
    for share in SHARES:
        first, second = fit(fitted, matrix, start, share * float(strengths.max()), binary)
        effect = _products(first, second, judged)
        scale = _scale(judged, effect, binary)
        saved, error = _saved(judged, scale * effect, binary)
        if best is not None and saved < best.gain:
            break
        if saved > max(LEAST_GAIN * total, 2 * error):
            best = Factorised(first * np.float32(scale), second, saved)
    return None if best is None else best._replace(gain=best.gain / total)


class Matrix:
    """Sparse matrices (n, m) of one number for each row, summed over rows of the same two values.

    Attributes:
        sizes: n and m.

    Args:
        rows: N rows with two known values.
        sizes: see there.
    """

    def __init__(self, rows: Rows, sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        sides = ((rows.first, rows.second, sizes[0]), (rows.second, rows.first, sizes[1]))
        self._sides = [_sorted(*side) for side in sides]

    def of_first(self, values: np.ndarray) -> csr_matrix:
        """(n, m)."""
        return self._made(0, values)

    def of_second(self, values: np.ndarray) -> csr_matrix:
        """(m, n)."""
        return self._made(1, values)

    def _made(self, side: int, values: np.ndarray) -> csr_matrix:
        order, indices, ends = self._sides[side]
        shape = self.sizes if side == 0 else self.sizes[::-1]
        return csr_matrix((values[order], indices, ends), shape=shape)


def _sorted(
    own: np.ndarray, other: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order of the rows by `own`, `other` in that order, and where each of `own` begins."""
    order = np.argsort(own, kind="stable")
    return order, other[order], np.searchsorted(own[order], np.arange(size + 1))


def _directions(matrix: csr_matrix, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The strongest directions of a matrix (n, m): (n, F), singular values (F,), (m, F).

    F is at most `count`; None where the matrix is 0, or has one row or column.
    """
    count = min(count, *(size - 1 for size in matrix.shape))
    if count < 1 or not matrix.count_nonzero():
        return None
    if matrix.shape[0] * matrix.shape[1] <= _SMALL:
        one, strengths, other = np.linalg.svd(matrix.toarray(), full_matrices=False)
        return one[:, :count], strengths[:count], other[:count].T
    # Not ones: outputs with a weight of each id leave nothing in the sum over a row.
    start = np.random.default_rng(0).normal(size=min(matrix.shape))
    try:
        one, strengths, other = svds(matrix.astype(np.float64), k=count, v0=start, tol=1e-3)
    except ArpackError:
        return None
    return one, strengths, other.T


def fit(
    rows: Rows, matrix: Matrix, second: np.ndarray, penalty: float, binary: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Factors (n, F) and (m, F) of both features' values for a penalty.

    Args:
        rows: N rows with two known values.
        matrix: of these rows.
        second: (m, F) to begin with.
        penalty: see above.
        binary: whether the loss is logistic; else squared, and half of the square.
    """
    first = np.zeros((matrix.sizes[0], second.shape[1]), np.float32)
    size = 0.0
    for _ in range(_SWEEPS):
        slopes, curves = _derivatives(rows.outputs + _products(first, second, rows), rows, binary)
        first = _step(first, second, matrix.of_first(slopes), matrix.of_first(curves), penalty)
        slopes, curves = _derivatives(rows.outputs + _products(first, second, rows), rows, binary)
        second = _step(second, first, matrix.of_second(slopes), matrix.of_second(curves), penalty)
        before, size = size, float(np.square(first).sum() + np.square(second).sum())
        if abs(size - before) <= _ENOUGH * size:
            break
    return first, second


def _step(
    own: np.ndarray, other: np.ndarray, slopes: csr_matrix, curves: csr_matrix, penalty: float
) -> np.ndarray:
    """Factors (n, F) after a Newton step, for fixed ones (m, F) of the other side.

    Args:
        own: (n, F) before it.
        other: (m, F).
        slopes: (n, m) of the loss in the product.
        curves: (n, m) its second derivatives.
        penalty: see above.
    """
    width = own.shape[1]
    one, two = np.triu_indices(width)
    seen = np.flatnonzero(np.diff(curves.indptr))  # others have no rows, and factors of 0
    halves = curves[seen] @ (other[:, one] * other[:, two])  # (seen, F (F + 1) / 2)
    hessian = np.empty((len(seen), width, width), np.float32)
    hessian[:, one, two] = hessian[:, two, one] = halves
    hessian[:, np.arange(width), np.arange(width)] += penalty
    gradient = slopes[seen] @ other + penalty * own[seen]
    found = np.zeros_like(own)
    found[seen] = own[seen] - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    return found


def _products(first: np.ndarray, second: np.ndarray, rows: Rows) -> np.ndarray:
    """U v (N,) of rows with two known values."""
    return np.einsum("nf,nf->n", first[rows.first], second[rows.second])


def _derivatives(outputs: np.ndarray, rows: Rows, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives (N,) of the rows' losses."""
    if not binary:
        return rows.weights * (outputs - rows.labels), rows.weights
    chances = expit(outputs)
    curves = np.maximum(chances * (1 - chances), _LEAST_CURVATURE)
    return rows.weights * (chances - rows.labels), rows.weights * curves


def _losses(outputs: np.ndarray, rows: Rows, binary: bool) -> np.ndarray:
    """Weighted losses (N,) of the rows."""
    if not binary:
        return rows.weights * np.square(outputs - rows.labels) / 2
    return rows.weights * (np.logaddexp(0, outputs) - rows.labels * outputs)


def _scale(rows: Rows, effect: np.ndarray, binary: bool) -> float:
    """The share in [0, 1] of an effect (N,) that suits rows best."""
    share = 1.0
    for _ in range(_SWEEPS):
        slopes, curves = _derivatives(rows.outputs + share * effect, rows, binary)
        curve = float((curves * effect**2).sum())
        if not curve:
            return 0.0
        share = min(max(share - float((slopes * effect).sum()) / curve, 0.0), 1.0)
    return share


def _saved(rows: Rows, effect: np.ndarray, binary: bool) -> tuple[float, float]:
    """What an effect (N,) saves of the rows' loss, and its standard error over users."""
    without = _losses(rows.outputs, rows, binary)
    of_rows = without - _losses(rows.outputs + effect, rows, binary)
    of_users = np.bincount(rows.users, of_rows)
    return float(of_rows.sum()), float(np.sqrt(np.square(of_users).sum()))
