"""The mixture as an exported graph computes it: experts run on the rows that select them.

Three ways, decided once from the gates' properties:

    constant  every gate is static: experts that no task selects are absent, the others run on all
              rows and are mixed with constant weights
    dispatch  every gate that is not static is k-sparse at inference: an expert runs on the rows
              where some task's weight for it is not zero
    dense     some gate weights every expert on every row (softmax): all run on all rows

An expert's first layer is linear in its input, which is a user's columns beside an item's, so that
its user half is computed once per user and added to the item half of each of the user's rows.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from configs.errors import ExportError
from model.experts import Expert
from model.gates.base import Gate
from model.mixture import Mixture

Tensor = Any


class Halves(NamedTuple):
    """The experts' input, users and items apart.

    Attributes:
        user: (M, Du) columns of user and context features.
        item: (N, Di) columns of item features.
        user_index: (N,) int32, each item's row of `user`; None: M = N, row by row.
    """

    user: Tensor
    item: Tensor
    user_index: Tensor | None


class FrozenMixture:
    """Gates and experts of a trained mixture, for inference only.

    Attributes:
        mode: see the module's text.
        kept: numbers of the experts in the graph.
        user_width: Du.
        constant_weights: (T, S) over the kept experts where every gate is static, else None.

    Args:
        mixture: the trained mixture; its gates as they are to be exported, hardened or not.
        tasks: names of the tasks, for messages.
        columns: (D,) which column of the mixture's input each column of `Halves` is, the user's
            first.
        user_width: Du.

    Raises:
        ExportError: a task's gate selects no expert at all.
    """

    def __init__(
        self, mixture: Mixture, tasks: Sequence[str], columns: np.ndarray, user_width: int
    ) -> None:
        self.user_width = user_width
        self._gates = mixture.gates
        self._constant = [_constant_weights(gate, len(columns)) for gate in mixture.gates]
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
        elif not all(g.static or g.properties.sparse_at_inference for g in mixture.gates):
            self.mode = "dense"
        self._experts = _FrozenExperts([mixture.experts[e] for e in self.kept], columns, user_width)

    def __call__(self, halves: Halves, gate_input: Tensor, ids: Tensor) -> list[Tensor]:
        """Mix the experts for every task.

        Args:
            halves: the experts' input.
            gate_input: (N, D) the gates' input, its columns in the mixture's order.
            ids: (N,) int32, for gates that route by id.

        Returns:
            T tensors (N, U).
        """
        if self.mode == "constant":
            return self._mix_constant(self._on_all_rows(halves))
        weights = self._route(gate_input, ids)  # (T, N, E)
        if self.mode == "dense":
            results = tf.stack(self._on_all_rows(halves))  # (E, N, U)
            return tf.unstack(tf.einsum("tne,enu->tnu", weights, results))
        return self._dispatch(halves, weights)

    def _route(self, gate_input: Tensor, ids: Tensor) -> Tensor:
        """Weights (T, N, E) of all gates."""
        N, E = tf.shape(gate_input)[0], len(self.kept)
        weights: list[Tensor] = []
        for gate, constant in zip(self._gates, self._constant, strict=True):
            if constant is None:
                with tf.name_scope(f"gate_{len(weights)}"):
                    weights.append(gate.route(gate_input, training=False, ids=ids).weights)
            else:
                weights.append(tf.broadcast_to(constant, [N, E]))
        return tf.stack(weights)

    def _on_all_rows(self, halves: Halves) -> list[Tensor]:
        """Every kept expert on every row: S tensors (N, U)."""
        users = self._experts.user_halves(halves.user)  # (S, M, U1)
        results = []
        for s, number in enumerate(self.kept):
            with tf.name_scope(f"expert_{number}"):
                user = users[s]
                if halves.user_index is not None:
                    user = tf.gather(user, halves.user_index)
                results.append(self._experts.run(s, user, halves.item))
        return results

    def _mix_constant(self, results: list[Tensor]) -> list[Tensor]:
        """Constant mixes of S results (N, U); a task of one expert takes its result as it is."""
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
        """Each expert on the rows that some task weights; P (expert, row) pairs in all."""
        T, N, E = len(self._gates), tf.shape(weights)[1], len(self.kept)
        by_expert = tf.transpose(weights, [0, 2, 1])  # (T, E, N)
        used = tf.reduce_any(by_expert != 0, axis=0)  # (E, N)
        pairs = tf.cast(tf.where(used), tf.int32)  # (P, 2), sorted by expert
        expert, row = pairs[:, 0], pairs[:, 1]
        counts = tf.reduce_sum(tf.cast(used, tf.int32), axis=1)  # (E,)

        if halves.user_index is None:
            users = [
                tf.matmul(rows, self._experts.user_kernels[s]) + self._experts.first_bias[s]
                for s, rows in enumerate(tf.split(tf.gather(halves.user, row), counts, num=E))
            ]
        else:
            once = self._experts.user_halves(halves.user)  # (E, M, U1)
            M, U1 = tf.shape(halves.user)[0], once.shape[-1]
            place = expert * M + tf.gather(halves.user_index, row)
            users = tf.split(tf.gather(tf.reshape(once, [-1, U1]), place), counts, num=E)
        items = tf.split(tf.gather(halves.item, row), counts, num=E)
        results = []
        for s, number in enumerate(self.kept):
            with tf.name_scope(f"expert_{number}"):
                results.append(self._experts.run(s, users[s], items[s]))

        # One sparse product mixes for all tasks: row t * N + b takes its experts' results.
        entries = tf.cast(tf.where(by_expert != 0), tf.int32)  # (Z, 3): task, expert, row
        pair_of = tf.cumsum(tf.reshape(tf.cast(used, tf.int32), [-1])) - 1  # (E * N,)
        target = entries[:, 0] * N + entries[:, 2]
        source = tf.gather(pair_of, entries[:, 1] * N + entries[:, 2])
        P = tf.shape(row)[0]
        mix = tf.SparseTensor(
            tf.cast(tf.stack([target, source], axis=1), tf.int64),
            tf.gather_nd(by_expert, entries),
            tf.cast(tf.stack([T * N, P]), tf.int64),
        )
        mixed = tf.sparse.sparse_dense_matmul(mix, tf.concat(results, axis=0))  # (T * N, U)
        U = results[0].shape[-1]
        return tf.unstack(tf.reshape(mixed, [T, N, U]))


class _FrozenExperts:
    """Weights of S experts, the first layer's kernel split into its user and item half."""

    def __init__(self, experts: Sequence[Expert], columns: np.ndarray, user_width: int) -> None:
        stacks = [
            [layer for layer in expert.stack if isinstance(layer, keras.layers.Dense)]
            for expert in experts
        ]
        kernels = np.stack([_value(stack[0].kernel)[columns] for stack in stacks])  # (S, D, U1)
        self.user_kernels = tf.Variable(kernels[:, :user_width], trainable=False)
        self.item_kernels = tf.Variable(kernels[:, user_width:], trainable=False)
        biases = np.stack([_value(stack[0].bias) for stack in stacks])[:, None]
        self.first_bias = tf.Variable(biases, trainable=False)  # (S, 1, U1)
        self._later = [
            [
                (
                    tf.Variable(_value(layer.kernel), trainable=False),
                    tf.Variable(_value(layer.bias), trainable=False),
                    layer.activation,
                )
                for layer in stack[1:]
            ]
            for stack in stacks
        ]
        self._activation = stacks[0][0].activation

    def user_halves(self, user: Tensor) -> Tensor:
        """First layer's user half of every expert, bias included: (M, Du) to (S, M, U1)."""
        with tf.name_scope("user_half"):
            return tf.matmul(user[None], self.user_kernels) + self.first_bias

    def run(self, s: int, user_half: Tensor, item: Tensor) -> Tensor:
        """Expert s on rows given by their user half (n, U1) and item columns (n, Di): (n, U)."""
        x = self._activation(tf.matmul(item, self.item_kernels[s], name="first") + user_half)
        for kernel, bias, activation in self._later[s]:
            x = activation(tf.nn.bias_add(tf.matmul(x, kernel, name="later"), bias))
        return x


def _constant_weights(gate: Gate, width: int) -> np.ndarray | None:
    """Weights (E,) of a static gate, else None."""
    if not gate.static:
        return None
    weights = gate.route(keras.ops.zeros((1, width)), training=False, ids=None).weights
    return np.asarray(keras.ops.convert_to_numpy(weights), np.float32)


def _value(variable: Any) -> np.ndarray:
    return variable.value.numpy()
