"""The mixture as an exported graph computes it: experts run on the rows that select them.

There are three modes; the gates' properties decide which:

    constant  every gate is static: experts that no task selects are left out, the others run on all
              rows and are mixed with constant weights
    dispatch  every gate that is not static is k-sparse at inference: an expert runs on the rows
              where some task's weight for it is not zero
    dense     some gate weights every expert on every row (softmax): all run on all rows

An expert's first layer is linear in its input, and the input is a user's columns and an item's.  So
the user half of the product is computed once per user and added to the item half of each of the
user's rows.  The same holds for gates that read their input through linear maps.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multigate.configs.errors import ExportError
from multigate.model.export.frozen.user_half import GateKernels, Halves, SplitKernel
from multigate.model.export.frozen.weights import StoredAs, StoredMatrix
from multigate.model.gates.parts.base import Gate
from multigate.model.moe.experts import Expert
from multigate.model.moe.mixture import Mixture
from multigate.model.moe.own import spread

Tensor = Any


class FrozenMixture:
    """Gates and experts of a trained mixture, for inference only.

    Attributes:
        mode: see the module's text.
        kept: indices of the experts in the graph.
        user_width: Du.
        constant_weights: (T, S) over the kept experts if every gate is static, else None.

    Args:
        mixture: the trained mixture; its gates as they are to be exported, hardened or not.
        tasks: names of the tasks, for messages.
        columns: (D,) the column of the mixture's input for each column of `Halves`, the user's
            first.
        user_width: Du.
        stored_as: how the file stores the experts' kernels.
        static_shapes: whether no shape may depend on values, as XLA requires: experts then run on
            all rows instead of some.

    Raises:
        ExportError: a task's gate selects no expert at all.
    """

    def __init__(
        self,
        mixture: Mixture,
        tasks: Sequence[str],
        columns: np.ndarray,
        user_width: int,
        stored_as: StoredAs = "float32",
        static_shapes: bool = False,
    ) -> None:
        self.user_width = user_width
        self._gates = mixture.gates
        self._gate_kernels = GateKernels(mixture.gates, columns, user_width)
        self._choices = mixture.choices
        self._constant = [
            _constant_weights(gate, choice, len(mixture.experts), len(columns))
            for gate, choice in zip(mixture.gates, mixture.choices, strict=True)
        ]
        for task, weights in zip(tasks, self._constant, strict=True):
            if weights is not None and not weights.any():
                raise ExportError(
                    f"task {task!r}: its gate selects none of the {len(mixture.experts)} experts; "
                    "train with a weaker sparsity penalty and export again"
                )
        self.mode: Literal["constant", "dispatch", "dense"] = "dispatch"
        self.kept = list(range(len(mixture.experts)))
        self.constant_weights: np.ndarray | None = None
        known = [weights for weights in self._constant if weights is not None]
        if len(known) == len(mixture.gates):
            self.mode = "constant"
            weights = np.stack(known)  # (T, E)
            self.kept = np.flatnonzero(weights.any(axis=0)).tolist()
            self.constant_weights = weights[:, self.kept]
        elif static_shapes or not all(
            g.static or g.properties.sparse_at_inference for g in mixture.gates
        ):
            self.mode = "dense"
        self._experts = _FrozenExperts(
            [mixture.experts[e] for e in self.kept],
            self.kept,
            columns,
            user_width,
            stored_as,
            static_shapes,
        )

    def precompute_items(self, items: np.ndarray) -> int:
        """Store what items (R, Di) add to the first layers; return the size in bytes."""
        return self._experts.precompute_items(items) + self._gate_kernels.precompute_items(items)

    def __call__(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> list[Tensor]:
        """Mix the experts for every task.

        Args:
            halves: the experts' input.
            gate_input: returns the gates' input (N, D), columns in the mixture's order; called only
                if a gate does not read products.
            ids: (N,) int32, for gates that route by id; None where none does.

        Returns:
            T tensors (N, U).
        """
        if self.mode == "constant":
            return self._mix_constant(self._experts(halves, None))
        weights = self._route(halves, gate_input, ids)  # (T, N, E)
        if self.mode == "dense":
            results = tf.stack(self._experts(halves, None))  # (E, N, U)
            return tf.unstack(tf.einsum("tne,enu->tnu", weights, results))
        return self._dispatch(halves, weights)

    def count_experts(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None, rows: Tensor
    ) -> Tensor:
        """How many experts each row is evaluated by, the union over the tasks.

        Args:
            halves: as in `__call__`.
            gate_input: as in `__call__`.
            ids: as in `__call__`.
            rows: (), N.  Unless the gates decide row by row, nothing else is read.

        Returns:
            (N,) int32.
        """
        if self.mode != "dispatch":
            return tf.fill([rows], len(self.kept))
        used = _used(self._route(halves, gate_input, ids))
        return tf.math.count_nonzero(used, axis=1, dtype=tf.int32)

    def _route(
        self, halves: Halves, gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> Tensor:
        """Weights (T, N, E) of all gates."""
        N, E = tf.shape(halves.item)[0], len(self.kept)
        products = self._gate_kernels.input(halves)
        weights: list[Tensor] = []
        for gate, constant, choice in zip(self._gates, self._constant, self._choices, strict=True):
            if constant is None:
                with tf.name_scope(f"gate_{len(weights)}"):
                    x = products if gate.reads_products else gate_input()
                    found = gate.route(x, training=False, ids=ids).weights
                    weights.append(spread(found, choice, E))
            else:
                weights.append(tf.broadcast_to(constant, [N, E]))
        return tf.stack(weights)

    def _mix_constant(self, results: list[Tensor]) -> list[Tensor]:
        """Constant mixes of S results (N, U); a task with one expert takes its result unchanged."""
        weights = self.constant_weights
        assert weights is not None
        if (np.count_nonzero(weights, axis=1) == 1).all():
            chosen = [(int(row.argmax()), row.max()) for row in weights]
            return [results[s] if w == 1 else results[s] * w for s, w in chosen]
        N, U = tf.shape(results[0])[0], results[0].shape[-1]
        flat = tf.reshape(tf.stack(results), [len(results), -1])  # (S, N * U)
        mixed = tf.matmul(tf.constant(weights), flat)
        return tf.unstack(tf.reshape(mixed, [len(weights), N, U]))

    def _dispatch(self, halves: Halves, weights: Tensor) -> list[Tensor]:
        """Run each expert on the rows where some task weights it: P (row, expert) pairs in all."""
        T, N, E = len(self._gates), tf.shape(weights)[1], len(self.kept)
        pairs = tf.where(_used(weights))  # (P, 2): row, expert; sorted by row
        row, expert = tf.unstack(tf.cast(pairs, tf.int32), axis=1)
        groups = tf.dynamic_partition(tf.range(tf.size(row)), expert, E)  # each expert's pairs
        order = tf.concat(groups, axis=0)  # (P,) pairs, expert by expert
        sizes = tf.stack([tf.size(group) for group in groups])
        results = tf.concat(self._experts(halves, Groups(tf.gather(row, order), sizes)), axis=0)
        place = tf.math.invert_permutation(order)  # (P,) each pair's row of the results (P, U)

        # One sparse product mixes for all tasks: row t * N + b takes its experts' results.  A
        # matrix in compressed rows multiplies several times as fast as one in coordinates.
        flat = tf.reshape(weights, [T, -1])
        of_pairs = tf.gather(flat, pairs[:, 0] * E + pairs[:, 1], axis=1)  # (T, P)
        entries = tf.where(of_pairs > 0)  # (Z, 2): task, pair; sorted by task and row
        wide = tf.cast(N, tf.int64)
        target = entries[:, 0] * wide + tf.gather(pairs[:, 0], entries[:, 1])
        source = tf.cast(tf.gather(place, entries[:, 1]), tf.int64)
        # One row more than needed: TensorFlow's kernel divides by the number of rows, and without
        # rows the process would end in a floating-point exception.
        mix = tf.raw_ops.SparseTensorToCSRSparseMatrix(
            indices=tf.stack([target, source], axis=1),
            values=tf.gather_nd(of_pairs, entries),
            dense_shape=tf.stack([T * wide + 1, tf.shape(results, tf.int64)[0]]),
        )
        mixed = tf.raw_ops.SparseMatrixMatMul(a=mix, b=results)  # (T * N + 1, U)
        return tf.unstack(tf.reshape(mixed[: T * N], [T, N, results.shape[-1]]))


class Groups(NamedTuple):
    """P (row, expert) pairs, grouped by expert.

    Attributes:
        row: (P,) int32, the rows of the first expert, then of the second, and so on.
        sizes: (E,) int32, number of rows of each expert.
    """

    row: Tensor
    sizes: Tensor

    def take(self, x: Tensor, experts: int) -> list[Tensor]:
        """Each expert's rows (n, ...) of x (N, ...)."""
        return tf.split(tf.gather(x, self.row), self.sizes, num=experts)


class _FrozenExperts:
    """S experts, with first layers that multiply users and items separately."""

    def __init__(
        self,
        experts: Sequence[Expert],
        numbers: Sequence[int],
        columns: np.ndarray,
        user_width: int,
        stored_as: StoredAs,
        static_shapes: bool,
    ) -> None:
        self._static_shapes = static_shapes
        self._numbers = list(numbers)
        self._first: list[SplitKernel] = []  # (D, U1)
        self._biases: list[tf.Variable] = []  # (U1,)
        self._later: list[list[tuple[StoredMatrix, tf.Variable, Any]]] = []
        for expert in experts:
            first, *later = [d for d in expert.stack if isinstance(d, keras.layers.Dense)]
            self._first.append(SplitKernel(_value(first.kernel)[columns], user_width, stored_as))
            self._biases.append(_constant(_value(first.bias)))
            self._later.append(
                [
                    (
                        StoredMatrix(_value(d.kernel), stored_as, 0),
                        _constant(_value(d.bias)),
                        d.activation,
                    )
                    for d in later
                ]
            )
            self._activation = first.activation

    def precompute_items(self, items: np.ndarray) -> int:
        """`SplitKernel.precompute_items` of every expert; return the size in bytes."""
        return sum(first.precompute_items(items) for first in self._first)

    def __call__(self, halves: Halves, groups: Groups | None) -> list[Tensor]:
        """Run every expert.

        Args:
            halves: the experts' input, N rows.
            groups: the rows that each expert runs on; None for all rows.

        Returns:
            S tensors (n, U).
        """
        S = len(self._numbers)

        def each(x: Tensor) -> list[Tensor]:
            return [x] * S if groups is None else groups.take(x, S)

        if halves.user_index is None:
            whole = each(tf.concat([halves.user, halves.item], axis=1))  # (N, D)
            return [self._run_rows(s, whole[s]) for s in range(S)]
        items, user_index = each(halves.item), halves.user_index
        pairs: list[Tensor | None] = [None] * S if halves.pair is None else [*each(halves.pair)]
        once = [self._user_half(s, halves.user) for s in range(S)]  # (M, U1) each

        def one_user() -> list[Tensor]:
            # One row for all items: added as a bias, fused with the matrix product.
            return [
                self._run_items(s, items[s], pairs[s], tf.reshape(once[s], [-1])) for s in range(S)
            ]

        def many_users() -> list[Tensor]:
            users = each(user_index)
            return [
                self._run_items(s, items[s], pairs[s], tf.gather(once[s], users[s]))
                for s in range(S)
            ]

        if self._static_shapes:
            return many_users()
        return tf.cond(tf.shape(halves.user)[0] == 1, one_user, many_users)

    def _user_half(self, s: int, user: Tensor) -> Tensor:
        """User half of the first layer of expert s, with its bias: (m, Du) to (m, U1)."""
        with tf.name_scope(f"user_half_{self._numbers[s]}"):
            return tf.nn.bias_add(self._first[s].user(user), self._biases[s])

    def _run_rows(self, s: int, x: Tensor) -> Tensor:
        """Run expert s on whole rows (n, D)."""
        # Not the sum of two products: TensorFlow's graph rewriting tries to fuse that with the
        # activation, and fails.
        with tf.name_scope(f"expert_{self._numbers[s]}"):
            return self._finish(s, tf.nn.bias_add(self._first[s].both(x), self._biases[s]))

    def _run_items(self, s: int, item: Tensor, pair: Tensor | None, user_half: Tensor) -> Tensor:
        """Run expert s on items and pairs with user halves (n, U1), or one (U1,) for all."""
        with tf.name_scope(f"expert_{self._numbers[s]}"):
            x = self._first[s].item(item, pair)
            x = tf.nn.bias_add(x, user_half) if len(user_half.shape) == 1 else x + user_half
            return self._finish(s, x)

    def _finish(self, s: int, x: Tensor) -> Tensor:
        """The output (n, U) of expert s, from the sums (n, U1) of its first layer."""
        x = self._activation(x)
        for kernel, bias, activation in self._later[s]:
            x = activation(tf.nn.bias_add(tf.matmul(x, kernel.read()), bias))
        return x


def _used(weights: Tensor) -> Tensor:
    """For weights (T, N, E) >= 0: whether some task uses the expert on the row, (N, E)."""
    return tf.reduce_max(weights, axis=0) > 0


def _constant(value: np.ndarray) -> tf.Variable:
    return tf.Variable(value, trainable=False)


def _constant_weights(
    gate: Gate, choice: Sequence[int], experts: int, width: int
) -> np.ndarray | None:
    """Weights (E,) of a static gate for all experts; None for other gates."""
    if not gate.static:
        return None
    weights = gate.route(keras.ops.zeros((1, width)), training=False, ids=None).weights
    weights = spread(weights, choice, experts)
    return np.asarray(keras.ops.convert_to_numpy(weights), np.float32)


def _value(variable: Any) -> np.ndarray:
    return variable.value.numpy()
