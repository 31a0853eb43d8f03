"""Linear maps of user, item and pair columns: the user half is computed once per user.

A pair column depends on a user and an item together, such as how often the item stands in the
user's history.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen.weights import StoredAs, StoredMatrix, constant

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
        broadcast: what `of_rows` takes of users: `user_index`, or one 0 if M = 1.
    """

    user: Tensor
    item: Tensor
    user_index: Tensor | None
    pair: Tensor | None = None
    broadcast: Tensor | None = None

    def of_rows(self, of_users: Tensor) -> Tensor:
        """Users' (M, ...) as (N, ...), or as (1, ...) where one user has all the rows."""
        if self.user_index is None:
            return of_users
        return tf.gather(of_users, self.user_index if self.broadcast is None else self.broadcast)


def broadcast_index(user_index: Tensor, users: Tensor) -> Tensor:
    """`Halves.broadcast` of user_index (N,) into users (M, ...).

    One user's row is added to all items as it is, instead of being copied N times.
    """
    rows = tf.size(user_index)
    one = tf.equal(tf.shape(users)[0], 1)
    return user_index[: tf.where(one, tf.minimum(rows, 1), rows)]


class SplitKernel:
    """x @ kernel + bias for users, items or both.

    The kernel (D, U) is one variable and the halves are slices of it, so that the file holds it
    once.

    Attributes:
        width: U.

    Args:
        kernel: (D, U), first the rows of users, then of items, then of pairs.
        user_width: Du.
        bias: (U,); none if it is None.
        stored_as: how the file stores the kernel.
    """

    def __init__(
        self,
        kernel: np.ndarray,
        user_width: int,
        bias: np.ndarray | None = None,
        stored_as: StoredAs = "float32",
    ) -> None:
        self._kernel = StoredMatrix(kernel, stored_as, axis=0)
        self.width = kernel.shape[1]
        self._user_width = user_width
        self._value = kernel
        self._bias = None
        if bias is not None and bias.any():
            self._bias = constant(bias)
        self._products: tf.Variable | None = None
        self._pairs_from = len(kernel)

    def precompute_items(self, items: np.ndarray) -> int:
        """Store the products of items (R, Di), for calls by row; return their size in bytes."""
        self._pairs_from = self._user_width + items.shape[1]
        products = items @ self._value[self._user_width : self._pairs_from]
        self._products = constant(products)
        return int(products.nbytes)

    def __call__(self, halves: Halves) -> Tensor:
        """Products (N, U) of all rows."""
        if halves.user_index is None:
            whole = tf.concat([halves.user, halves.item], axis=1)  # (N, D)
            return self._add_bias(tf.matmul(whole, self._kernel.read()))
        with tf.name_scope("user_half"):
            once = self._add_bias(self.user(halves.user))  # (M, U)
        return self.item(halves.item, halves.pair) + halves.of_rows(once)

    def user(self, x: Tensor) -> Tensor:
        """Products (m, U) of users (m, Du), without the bias."""
        return tf.matmul(x, self._kernel.slice(None, self._user_width))

    def item(self, x: Tensor, pair: Tensor | None) -> Tensor:
        """Products (n, U) of items and pairs, see `Halves.item` and `Halves.pair`."""
        if self._products is not None and x.dtype == tf.int32:
            products = tf.gather(self._products.read_value(), x)
            if pair is None:
                return products
            return products + tf.matmul(pair, self._kernel.slice(self._pairs_from, None))
        return tf.matmul(x, self._kernel.slice(self._user_width, None))

    def _add_bias(self, products: Tensor) -> Tensor:
        return products if self._bias is None else tf.nn.bias_add(products, self._bias)
