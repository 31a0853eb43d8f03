"""Linear maps over a user's columns beside an item's: the user's half is computed once per user."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from multigate.model.export.frozen_weights import Kind, Stored
from multigate.model.gates.parts.base import Gate

Tensor = Any


class Halves(NamedTuple):
    """An input (N, D), users and items apart.

    Attributes:
        user: (M, Du) columns of user and context features.
        item: (N, Di) columns of item features; or (N,) int32, rows of the items that the kernels
            know (`SplitKernel.know`).
        user_index: (N,) int32, each item's row of `user`; None: M = N, row by row.
    """

    user: Tensor
    item: Tensor
    user_index: Tensor | None


class SplitKernel:
    """A kernel (D, U), the user's rows first, that takes users, items or both beside each other.

    It is one variable, of which the halves are slices, so that the file holds it once.

    Args:
        kernel: (D, U).
        user_width: Du.
        kind: how the file stores it.
    """

    def __init__(self, kernel: np.ndarray, user_width: int, kind: Kind = "float32") -> None:
        self._kernel = Stored(kernel, kind, axis=0)
        self._user_width = user_width
        self._value = kernel
        self._known: tf.Variable | None = None

    def know(self, items: np.ndarray) -> int:
        """Hold the products of items (R, Di), for later calls by row; their size in bytes."""
        products = items @ self._value[self._user_width :]
        self._known = tf.Variable(products, trainable=False)
        return int(products.nbytes)

    def both(self, x: Tensor) -> Tensor:
        """Products (n, U) of whole rows (n, D)."""
        return tf.matmul(x, self._kernel.read())

    def user(self, x: Tensor) -> Tensor:
        """Products (m, U) of users (m, Du)."""
        return tf.matmul(x, self._kernel.slice(None, self._user_width))

    def item(self, x: Tensor) -> Tensor:
        """Products (n, U) of items (n, Di), or of known ones by row (n,)."""
        if self._known is not None and x.dtype == tf.int32:
            return tf.gather(self._known.read_value(), x)
        return tf.matmul(x, self._kernel.slice(self._user_width, None))


class GateKernels:
    """The kernels (D, .) of gates that read their input through `linear.product` alone.

    Args:
        gates: gates; others than those are left out.
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

    def know(self, items: np.ndarray) -> int:
        """As of `SplitKernel`, for every kernel."""
        return sum(kernel.know(items) for kernel in self._kernels.values())

    def input(self, halves: Halves) -> "GateInput":
        """What such gates take in the place of a tensor (N, D)."""
        return GateInput(halves, self._kernels)


class GateInput:
    """An input that is known by its products only."""

    def __init__(self, halves: Halves, kernels: dict[int, SplitKernel]) -> None:
        self._halves = halves
        self._kernels = kernels

    def product(self, kernel: Any) -> Tensor:
        """The input (N, D) times one of the gates' kernels (D, U), (N, U)."""
        split = self._kernels[id(kernel)]
        if self._halves.user_index is None:
            return split.both(self._whole)
        user = tf.gather(split.user(self._halves.user), self._halves.user_index)
        return split.item(self._halves.item) + user

    @cached_property
    def _whole(self) -> Tensor:
        return tf.concat([self._halves.user, self._halves.item], axis=1)
