"""A learnt permutation: a doubly stochastic matrix from logits, and its rounding."""

import keras

from multigate.model.gates.parts.base import Tensor

_SINKHORN_STEPS = 20


def permutation_matrix(logits: Tensor, temperature: float) -> Tensor:
    """Sinkhorn's normalisation of exp(logits / temperature).

    Columns and rows are normalised to sum 1 in turn, in logarithms; rows last, so that weights
    (B, E) times the matrix keep their sums.  With growing logits or falling temperature the matrix
    approaches a permutation.

    Args:
        logits: (E, E) float.
        temperature: > 0.

    Returns:
        (E, E) float, rows sum to 1, columns to about 1.
    """
    ops = keras.ops
    z = ops.convert_to_tensor(logits) / temperature
    for _ in range(_SINKHORN_STEPS):
        z = z - ops.logsumexp(z, axis=0, keepdims=True)
        z = z - ops.logsumexp(z, axis=1, keepdims=True)
    return ops.exp(z)


def round_permutation(matrix: Tensor) -> Tensor:
    """Greedy permutation: take the largest entry, remove its row and column, and repeat.

    Args:
        matrix: (E, E), entries in [0, 1].

    Returns:
        (E, E) of zeros and ones, exactly one 1 in each row and column.  It is the nearest
        permutation if the rows have their largest entries in different columns.
    """
    ops = keras.ops
    E = matrix.shape[0]

    def assign(_: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        left, chosen = state
        index = ops.argmax(ops.reshape(left, (-1,)))
        row = ops.reshape(ops.one_hot(index // E, E, dtype=left.dtype), (E, 1))
        column = ops.reshape(ops.one_hot(index % E, E, dtype=left.dtype), (1, E))
        used = ops.maximum(row + ops.zeros_like(column), column + ops.zeros_like(row))
        return ops.where(used > 0, -ops.ones_like(left), left), chosen + row * column

    _, chosen = ops.fori_loop(0, E, assign, (matrix, ops.zeros_like(matrix)))
    return chosen
