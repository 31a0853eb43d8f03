"""The experts of an exported graph: all of them on all rows at once, or each on its rows.

Axes: N rows, S experts in the file, U1 units of the first layer, U of the last, P (row, expert)
pairs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen.trained import DenseLayer
from multigate.model.export.frozen.user_half import Halves
from multigate.model.export.frozen.weights import StoredAs, StoredMatrix, constant

Tensor = Any


class Pairs(NamedTuple):
    """P (row, expert) pairs, sorted by expert and then by row.

    Attributes:
        row: (P,) int32.
        expert: (P,) int32.
        sizes: (S,) int32, pairs of each expert.
    """

    row: Tensor
    expert: Tensor
    sizes: Tensor


class LaterLayers:
    """The layers of S experts, or towers, after the first, as batched products.

    Args:
        layers: of each expert, the first left out; alike in number, widths and activations.
        stored_as: how the file stores the kernels.
    """

    def __init__(
        self, layers: Sequence[Sequence[DenseLayer]], stored_as: StoredAs = "float32"
    ) -> None:
        self._layers = []
        for level in zip(*layers, strict=True):
            kernel = StoredMatrix(np.stack([layer.kernel for layer in level]), stored_as, axis=1)
            bias = np.stack([layer.bias for layer in level])[:, None]  # (S, 1, U)
            self._layers.append((kernel, constant(bias), level[0].activation))

    def __len__(self) -> int:
        return len(self._layers)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x (S, N, U1) to (S, N, U)."""
        for kernel, bias, activation in self._layers:
            x = activation(tf.matmul(x, kernel.read()) + bias)
        return x

    def of_each(self) -> list[list[tuple[Tensor, Tensor, Any]]]:
        """Kernel (U1, U), bias (U,) and activation of each layer, by expert."""
        levels = [
            (tf.unstack(kernel.read()), tf.unstack(tf.squeeze(bias, 1)), activation)
            for kernel, bias, activation in self._layers
        ]
        count = len(levels[0][0]) if levels else 0
        return [
            [(kernels[s], biases[s], activation) for kernels, biases, activation in levels]
            for s in range(count)
        ]


class SelectedExperts:
    """S experts, each on the rows that select it.

    Args:
        layers: of each expert.
        numbers: of the experts in the mixture.
        columns: (D,) the column of the experts' input for each column of `Halves`.
        user_width: Du.
        stored_as: how the file stores the kernels.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[DenseLayer]],
        numbers: Sequence[int],
        columns: np.ndarray,
        user_width: int,
        stored_as: StoredAs,
    ) -> None:
        self._numbers = list(numbers)
        kernels = np.stack([first.kernel[columns] for first, *_ in layers])  # (S, D, U1)
        self._items = kernels[:, user_width:]
        # Two variables: a slice of one would be a copy in each call.  Those of users are side by
        # side, because a user is multiplied by all of them.
        whole = np.concatenate([*kernels], axis=1)  # (D, S * U1)
        self._of_user = StoredMatrix(whole[:user_width], stored_as, axis=0, whole=whole)
        self._of_item = StoredMatrix(self._items, stored_as, axis=1, whole=kernels)
        self._bias = constant(np.concatenate([first.bias for first, *_ in layers]))  # (S * U1,)
        self._activation = layers[0][0].activation
        self._later = LaterLayers([later for _, *later in layers], stored_as)
        self._products: tf.Variable | None = None
        self._pairs_from = self._items.shape[1]

    def precompute_items(self, items: np.ndarray) -> int:
        """Store the products of items (R, Di), for calls by row; return their size in bytes."""
        self._pairs_from = items.shape[1]
        products = np.einsum("rd,sdu->rsu", items, self._items[:, : items.shape[1]])
        self._products = constant(products.reshape(-1, products.shape[2]))  # (R * S, U1)
        return int(products.nbytes)

    def __call__(self, halves: Halves, pairs: Pairs) -> Tensor:
        """Outputs (P, U) of the pairs."""
        S = len(self._numbers)
        bases = self._user_parts(halves, pairs)
        items = self._item_parts(halves, pairs)
        kernels = tf.unstack(self._of_item.read())
        later = self._later.of_each() or [[]] * S
        results = []
        for s, number in enumerate(self._numbers):
            with tf.name_scope(f"expert_{number}"):
                part, precomputed = items[s]
                x = bases[s] if precomputed is None else precomputed + bases[s]
                if part is not None:
                    kernel = kernels[s] if precomputed is None else kernels[s][self._pairs_from :]
                    x = tf.matmul(part, kernel) + x
                x = self._activation(x)
                for kernel, bias, activation in later[s]:
                    x = activation(tf.nn.bias_add(tf.matmul(x, kernel), bias))
                results.append(x)
        return tf.concat(results, axis=0)

    def _user_parts(self, halves: Halves, pairs: Pairs) -> list[Tensor]:
        """Each expert's user half with its bias, (n, U1), or (1, U1) for all its rows."""
        S = len(self._numbers)
        with tf.name_scope("user_half"):
            if not self._of_user.shape[0]:  # a product with a kernel without rows loses its bias
                return [bias[None] for bias in tf.split(self._bias.read_value(), S)]
            kernels = self._of_user.read()
            if halves.user_index is None:
                rows = tf.split(tf.gather(halves.user, pairs.row), pairs.sizes, num=S)
                biases = tf.split(self._bias.read_value(), S)
                each = zip(rows, tf.split(kernels, S, axis=1), biases, strict=True)
                return [tf.nn.bias_add(tf.matmul(x, kernel), bias) for x, kernel, bias in each]
            once = tf.nn.bias_add(tf.matmul(halves.user, kernels), self._bias)  # (M, S * U1)
            if halves.broadcast is None:
                index, sizes = tf.gather(halves.user_index, pairs.row), pairs.sizes
            else:  # a single user's row is added to all rows of an expert as it is
                one = tf.equal(tf.shape(halves.user)[0], 1)
                sizes = tf.where(one, tf.minimum(pairs.sizes, 1), pairs.sizes)
                index = tf.gather(halves.user_index, pairs.row[: tf.reduce_sum(sizes)])
            users = zip(tf.split(once, S, axis=1), tf.split(index, sizes, num=S), strict=True)
            return [tf.gather(user, rows) for user, rows in users]

    def _item_parts(
        self, halves: Halves, pairs: Pairs
    ) -> list[tuple[Tensor | None, Tensor | None]]:
        """Each expert's rows (n, .) to multiply, and its rows (n, U1) of precomputed products."""
        S = len(self._numbers)

        def each(x: Tensor) -> list[Tensor]:
            return tf.split(x, pairs.sizes, num=S)

        if self._products is None or halves.item.dtype != tf.int32:
            return [(x, None) for x in each(tf.gather(halves.item, pairs.row))]
        places = tf.gather(halves.item, pairs.row) * S + pairs.expert
        products = each(tf.gather(self._products.read_value(), places))
        if halves.pair is None:
            return [(None, x) for x in products]
        return list(zip(each(tf.gather(halves.pair, pairs.row)), products, strict=True))


def select(used: Tensor) -> Pairs:
    """The pairs of used (N, S) bool."""
    found = tf.where(tf.transpose(used))  # (P, 2): expert, row
    expert, row = tf.unstack(tf.cast(found, tf.int32), axis=1)
    return Pairs(row, expert, tf.reduce_sum(tf.cast(used, tf.int32), axis=0))


def mix_pairs(weights: Tensor, used: Tensor, results: Tensor) -> Tensor:
    """Mix outputs of pairs for all tasks by one sparse product.

    Args:
        weights: (N, T, S), >= 0.
        used: (N, S) bool, whether some task weights the expert on the row.
        results: (P, U) of the pairs, as `select` sorts them.

    Returns:
        (T, N, U).
    """
    N, T = tf.shape(weights)[0], weights.shape[1]
    # A pair's place is the number of pairs before it, expert by expert.
    flat = tf.reshape(tf.cast(tf.transpose(used), tf.int32), [-1])  # (S * N,)
    places = tf.cumsum(flat, exclusive=True)
    of_tasks = tf.transpose(weights, [1, 0, 2])  # (T, N, S)
    entries = tf.where(of_tasks > 0)  # (Z, 3): task, row, expert; sorted
    task, row, expert = tf.unstack(tf.cast(entries, tf.int32), axis=1)
    source = tf.gather(places, expert * N + row)
    # A matrix in compressed rows multiplies several times as fast as one in coordinates.  One row
    # more than needed: TensorFlow's kernel divides by the number of rows, and without rows the
    # process would end in a floating-point exception.
    matrix = tf.raw_ops.SparseTensorToCSRSparseMatrix(
        indices=tf.cast(tf.stack([task * N + row, source], axis=1), tf.int64),
        values=tf.gather_nd(of_tasks, entries),
        dense_shape=tf.cast(tf.stack([T * N + 1, tf.shape(results)[0]]), tf.int64),
    )
    mixed = tf.raw_ops.SparseMatrixMatMul(a=matrix, b=results)  # (T * N + 1, U)
    return tf.reshape(mixed[: T * N], [T, N, results.shape[-1]])
