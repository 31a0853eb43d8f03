"""The gates of all tasks as an exported graph computes them: gates of one kind run as one.

At inference a gate's weights of a row depend on that row alone.  So T gates of one kind, with the
same settings, are one gate on N * T rows: row n * T + t holds what gate t reads of row n.  Their
kernels stand side by side in one kernel, and one top-k selects for all tasks.

A gate that reads its input in another way than by `linear.product`, or has weights beside kernels
and their biases, runs on its own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multigate.model.backend import unchecked
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.gates.parts.base import Gate
from multigate.model.moe.own import spread

Tensor = Any


class FrozenGates:
    """Weights of all experts for all tasks.

    Attributes:
        kernel: (D, W) kernels of all gates that read products, side by side.
        bias: (W,) what to add to the products.

    Args:
        gates: T trained gates, as they are to be exported.
        choices: which experts each gate chooses among.
        experts: E.
        constant: (E,) weights of each static gate; None for the others.
        columns: (D,) the column of the gates' input for each row of `kernel`.
    """

    def __init__(
        self,
        gates: Sequence[Gate],
        choices: Sequence[Sequence[int]],
        experts: int,
        constant: Sequence[np.ndarray | None],
        columns: np.ndarray,
    ) -> None:
        self._experts = experts
        self._groups = _groups(
            [None if c is not None else g for g, c in zip(gates, constant, strict=True)]
        )
        self._choices = choices
        self._constant = constant
        kernels, biases = [np.zeros((len(columns), 0), np.float32)], [np.zeros(0, np.float32)]
        for group in self._groups:
            found = group.kernels()
            kernels += [kernel[columns] for kernel, _ in found]
            biases += [bias for _, bias in found]
        self.kernel = np.concatenate(kernels, axis=1)
        self.bias = np.concatenate(biases)

    def __call__(
        self,
        products: Tensor | None,
        rows: Tensor,
        gate_input: Callable[[], Tensor],
        ids: Tensor | None,
    ) -> Tensor:
        """Weights (N, T, E).

        Args:
            products: (N, W) of the input with `kernel`, `bias` included; None if W = 0.
            rows: (), N.
            gate_input: returns the gates' input (N, D), columns in the mixture's order; called only
                if a gate reads it.
            ids: (N,) int32, for gates that route by id; None where none does.
        """
        T, E = len(self._choices), self._experts
        parts: list[Tensor] = []
        order: list[int] = []
        for task, weights in enumerate(self._constant):
            if weights is not None:
                parts.append(tf.broadcast_to(weights[None, None], [rows, 1, E]))
                order.append(task)
        widths = [width for group in self._groups for width in group.widths]
        pieces = iter(tf.split(products, widths, axis=1) if len(widths) > 1 else [products])
        for group in self._groups:
            with tf.name_scope(f"gate_{group.tasks[0]}"), unchecked():
                taken = [next(pieces) for _ in group.widths]
                found = group.route(taken, gate_input, ids)  # (N, G, e)
                parts.append(self._spread(found, group.tasks))
                order += group.tasks
        weights = parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)
        if order == list(range(T)):
            return weights
        return tf.gather(weights, np.argsort(order), axis=1)

    def _spread(self, weights: Tensor, tasks: Sequence[int]) -> Tensor:
        """Weights (N, G, e) over the experts that each gate chooses among, as (N, G, E)."""
        choices = [list(self._choices[task]) for task in tasks]
        if all(choice == choices[0] for choice in choices):
            return spread(weights, choices[0], self._experts)
        own = [spread(weights[:, g], choice, self._experts) for g, choice in enumerate(choices)]
        return tf.stack(own, axis=1)


class _Group:
    """Gates that run as one.

    Attributes:
        tasks: their numbers.
        widths: columns of the products of each linear map, for all gates together.
    """

    def __init__(self, tasks: Sequence[int], gates: Sequence[Gate]) -> None:
        self.tasks = list(tasks)
        self._gates = list(gates)
        self._maps = [maps_that_are_read(gate) for gate in gates]
        self._gate = gates[0] if len(gates) == 1 else _without_biases(gates[0], self._maps[0])
        self._read = self._maps[0] if len(gates) == 1 else maps_that_are_read(self._gate)
        self.widths = [
            len(gates) * int(kernel.shape[1]) for kernel, _ in (self._maps[0] if self._maps else [])
        ]

    def kernels(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each linear map the kernels of all gates side by side, and what to add."""
        found = []
        for of_gates in zip(*self._maps, strict=True):
            kernels = [to_numpy(kernel) for kernel, _ in of_gates]
            biases = [
                np.zeros(kernel.shape[1], np.float32)
                if bias is None or len(self._gates) == 1  # a gate of its own adds its bias itself
                else to_numpy(bias)
                for kernel, (_, bias) in zip(kernels, of_gates, strict=True)
            ]
            found.append((np.concatenate(kernels, axis=1), np.concatenate(biases)))
        return found

    def route(
        self, products: Sequence[Tensor], gate_input: Callable[[], Tensor], ids: Tensor | None
    ) -> Tensor:
        """Weights (N, G, e) from the products (N, G * w) of each linear map."""
        count = len(self._gates)
        if not self._gate.reads_products:
            return self._gate.route(gate_input(), training=False, ids=ids).weights[:, None]
        given = {
            id(kernel): tf.reshape(x, [-1, int(kernel.shape[1])]) if count > 1 else x
            for (kernel, _), x in zip(self._read, products, strict=True)
        }
        weights = self._gate.route(_Products(given), training=False, ids=ids).weights
        return tf.reshape(weights, [-1, count, weights.shape[-1]])


class _Products:
    """A gate's input that gives its products with kernels, not its values.

    Args:
        products: by the kernel's id.
    """

    def __init__(self, products: dict[int, Tensor]) -> None:
        self._products = products

    def product(self, kernel: Any) -> Tensor:
        """The input (n, D) times one of the gate's kernels (D, w), (n, w)."""
        return self._products[id(kernel)]


class _Recorder:
    """An input without rows that notes which products a gate asks for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def product(self, kernel: Any) -> Tensor:
        """No rows of products."""
        self.asked.append(id(kernel))
        return tf.zeros([0, int(kernel.shape[1])])


def _groups(gates: Sequence[Gate | None]) -> list[_Group]:
    """Gates that run as one, in the order of their first tasks."""
    alike: dict[Any, list[int]] = {}
    for task, gate in enumerate(gates):
        if gate is not None:
            alike.setdefault(_kind(gate, task), []).append(task)
    return [_Group(tasks, [gate for t in tasks if (gate := gates[t])]) for tasks in alike.values()]


def _kind(gate: Gate, task: int) -> Any:
    """What is equal for gates that can run as one; unique where a gate runs on its own."""
    maps = gate.linear_maps()
    mapped = {id(variable) for pair in maps for variable in pair if variable is not None}
    others = [to_numpy(v).tobytes() for v in gate.weights if id(v) not in mapped]
    if not gate.reads_products or gate.reads_ids or len(gate.levels()) > 1:
        return task
    settings = {
        key: repr(setting)
        for key, setting in gate.get_config().items()
        if key not in ("name", "seed")
    }
    shapes = tuple(tuple(kernel.shape) for kernel, _ in maps)
    return type(gate), tuple(sorted(settings.items())), shapes, gate.hardened, tuple(others)


def maps_that_are_read(gate: Gate) -> list[tuple[Any, Any]]:
    """The linear maps whose products inference reads: kernel and bias of each, in this order.

    None of a gate that does not read its input by products alone.
    """
    if not gate.reads_products:
        return []
    recorder = _Recorder()
    gate.route(recorder, training=False, ids=None)
    return [(kernel, bias) for kernel, bias in gate.linear_maps() if id(kernel) in recorder.asked]


def _without_biases(gate: Gate, maps: Sequence[tuple[Any, Any]]) -> Gate:
    """A gate of the same kind with biases of 0: the products of several gates hold theirs."""
    made = type(gate).from_config(gate.get_config())
    made.build((None, int(maps[0][0].shape[0])))
    biases = {id(bias) for _, bias in made.linear_maps() if bias is not None}
    for variable, trained in zip(made.weights, gate.weights, strict=True):
        variable.assign(to_numpy(trained) * (0 if id(variable) in biases else 1))
    if gate.hardened:
        made.harden()
    return made
