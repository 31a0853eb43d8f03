"""Linear maps of user, item and pair columns: the user half is computed once per user.

A pair column depends on a user and an item together, such as how often the item stands in the
user's history.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen.weights import StoredAs, StoredMatrix
from multigate.model.gates.parts.base import Gate

Tensor = Any


class Halves(NamedTuple):
    """An input (N, D) as two halves: the users' columns, and those of items and pairs.

    Attributes:
        user: (M, Du) columns of user and context features.
        item: (N, Di + Dp) columns of item features and of pairs; or (N,) int32 rows of the
            precomputed items (`SplitKernel.precompute_items`).
        user_index: (N,) int32, each item's row of `user`; None if M = N and row n belongs to n.
        pair: (N, Dp) columns of pairs, beside precomputed items; None if there are none, or if
            `item` has them.
    """

    user: Tensor
    item: Tensor
    user_index: Tensor | None
    pair: Tensor | None = None


class SplitKernel:
    """A kernel (D, U) that multiplies users, items or both.

    It is one variable and the halves are slices of it, so that the file holds it once.

    Args:
        kernel: (D, U), first the rows of users, then of items, then of pairs.
        user_width: Du.
        stored_as: how the file stores it.
    """

    def __init__(
        self, kernel: np.ndarray, user_width: int, stored_as: StoredAs = "float32"
    ) -> None:
        self._kernel = StoredMatrix(kernel, stored_as, axis=0)
        self._user_width = user_width
        self._value = kernel
        self._products: tf.Variable | None = None
        self._pairs_from = len(kernel)

    def precompute_items(self, items: np.ndarray) -> int:
        """Store the products of items (R, Di), for calls by row; return their size in bytes."""
        self._pairs_from = self._user_width + items.shape[1]
        products = items @ self._value[self._user_width : self._pairs_from]
        self._products = tf.Variable(products, trainable=False)
        return int(products.nbytes)

    def both(self, x: Tensor) -> Tensor:
        """Products (n, U) of whole rows (n, D)."""
        return tf.matmul(x, self._kernel.read())

    def user(self, x: Tensor) -> Tensor:
        """Products (m, U) of users (m, Du)."""
        return tf.matmul(x, self._kernel.slice(None, self._user_width))

    def item(self, x: Tensor, pair: Tensor | None) -> Tensor:
        """Products (n, U) of items and pairs, see `Halves.item` and `Halves.pair`."""
        if self._products is not None and x.dtype == tf.int32:
            products = tf.gather(self._products.read_value(), x)
            if pair is None:
                return products
            return products + tf.matmul(pair, self._kernel.slice(self._pairs_from, None))
        return tf.matmul(x, self._kernel.slice(self._user_width, None))


class GateKernels:
    """The kernels (D, .) of gates that read their input through `linear.product` only.

    Args:
        gates: all gates; those that read their input in another way are left out.
        columns: (D,) which column of the gates' input each column of `Halves` is.
        user_width: Du.
    """

    def __init__(self, gates: Iterable[Gate], columns: np.ndarray, user_width: int) -> None:
        self._kernels = {
            id(variable): SplitKernel(variable.value.numpy()[columns], user_width)
            for gate in gates
            if gate.reads_products and not gate.static
            for variable, _ in gate.linear_maps()
        }

    def precompute_items(self, items: np.ndarray) -> int:
        """`SplitKernel.precompute_items` of every kernel; return the size in bytes."""
        return sum(kernel.precompute_items(items) for kernel in self._kernels.values())

    def input(self, halves: Halves) -> "GateInput":
        """What these gates get instead of a tensor (N, D)."""
        return GateInput(halves, self._kernels)


class GateInput:
    """A gate's input that gives its products with kernels, not its values."""

    def __init__(self, halves: Halves, kernels: dict[int, SplitKernel]) -> None:
        self._halves = halves
        self._kernels = kernels

    def product(self, kernel: Any) -> Tensor:
        """The input (N, D) times one of the gates' kernels (D, U), (N, U)."""
        split = self._kernels[id(kernel)]
        if self._halves.user_index is None:
            return split.both(self._whole)
        user = tf.gather(split.user(self._halves.user), self._halves.user_index)
        return split.item(self._halves.item, self._halves.pair) + user

    @cached_property
    def _whole(self) -> Tensor:
        return tf.concat([self._halves.user, self._halves.item], axis=1)
