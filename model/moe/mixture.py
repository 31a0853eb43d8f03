"""Multi-gate mixture of experts: T gates over experts, compute that follows the zeros.

Task t's representation of row b is the sum over e of w[t, b, e] * f_e(x_b).  An expert runs only
on the rows where some task's weight for it is not zero; tasks that pick the same expert for a row
share one evaluation.  Output and gradients equal those of the dense computation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras

from multigate.model import backend
from multigate.model.gates.parts.base import Gate, Routing, Tensor
from multigate.model.moe.dispatch import mix
from multigate.model.moe.experts import check_row_wise
from multigate.model.moe.own import spread_routing
from multigate.model.moe.stack import ExpertStack, can_stack


class Mixed(NamedTuple):
    """What a mixture computes for one batch.

    Attributes:
        outputs: T tensors (B, U), or (B, ...) as the experts' output; one per gate.
        routings: T routings, one per gate, each over all E experts.
        experts_per_row: scalar; mean number of distinct experts evaluated per row, the union over
            the tasks: between k and T * k for k-sparse gates.
    """

    outputs: list[Tensor]
    routings: list[Routing]
    experts_per_row: Tensor


@keras.saving.register_keras_serializable("multigate")
class Mixture(keras.layers.Layer):
    """T gates over E experts, each over all of them or over some.

    Call it inside the `call` of a layer or model: the names of its regularisation terms depend on
    `training`, which a functional model cannot express.

    Args:
        experts: E row-wise Keras layers (see `experts.check_row_wise`) of equal output shape.
        gates: T gates.
        choices: which experts each gate chooses among, in the gate's order; all E by default.

    Raises:
        ValueError: no expert or no gate, one given twice, a gate for another number of experts, an
            expert that no gate can choose, or an expert that mixes rows.
    """

    def __init__(
        self,
        experts: Sequence[keras.layers.Layer],
        gates: Sequence[Gate],
        choices: Sequence[Sequence[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not experts:
            raise ValueError("experts: expected at least one layer, received none")
        if not gates:
            raise ValueError("gates: expected at least one gate, received none")
        if choices is None:
            choices = [list(range(len(experts)))] * len(gates)
        _check_choices(choices, gates, len(experts))
        _check_distinct("experts", experts)
        _check_distinct("gates", gates)
        for expert in experts:
            check_row_wise(expert)
        self.experts = list(experts)
        self.gates = list(gates)
        self.choices = [list(choice) for choice in choices]
        self.stack: ExpertStack | None = None
        """The experts' variables, where they are stacked: alike dense experts on JAX."""
        if backend.name() == "tensorflow":
            self.supports_jit = False  # the number of rows per expert is dynamic

    def build(
        self,
        x_shape: tuple[int | None, ...],
        gate_input_shape: tuple[int | None, ...] | None = None,
        ids_shape: tuple[int | None, ...] | None = None,
    ) -> None:
        """Build the experts and gates.

        Raises:
            ValueError: an expert's output shape is unknown, or differs from the first expert's.
        """
        expected = None
        if can_stack(self.experts, x_shape):
            self.stack = ExpertStack(self.experts, x_shape[-1], name="stack")
        for expert in self.experts:
            if not expert.built:
                expert.build(x_shape)
            check_row_wise(expert)  # again: an expert may create its layers when it is built
            received = tuple(expert.compute_output_shape(x_shape))
            if expected is None:
                expected = received
            if None in received[1:]:
                raise ValueError(
                    "experts: expected a known output shape, apart from the batch; "
                    f"expert {expert.name!r} has {received} on input {tuple(x_shape)}"
                )
            if received != expected:
                raise ValueError(
                    f"experts: expected output shape {expected}, that of expert "
                    f"{self.experts[0].name!r}; expert {expert.name!r} has {received}"
                )
        for gate in self.gates:
            if not gate.built:
                gate.build(gate_input_shape or x_shape)

    @property
    def kernels(self) -> list[Any]:
        """The variables that hold the experts' kernels."""
        if self.stack is not None:
            return self.stack.kernels
        variables = [v for expert in self.experts for v in expert.trainable_variables]
        return [variable for variable in variables if len(variable.shape) > 1]

    def harden(self) -> None:
        """Switch every gate's inference to the form that is served, see `Gate.harden`."""
        for gate in self.gates:
            gate.harden()

    def call(
        self,
        x: Tensor,
        gate_input: Tensor | None = None,
        ids: Tensor | None = None,
        training: bool = False,
    ) -> Mixed:
        """Route a batch and evaluate the experts that the routing selects.

        Args:
            x: the experts' input, (B, D), or (B, ...) if the experts accept that.
            gate_input: (B, D'); the gates' input, `x` by default.
            ids: (B,) integers, for gates that route by id.
            training: whether gates draw noise and report regularisers, and whether dropout is on.

        Returns:
            `Mixed`.

        Raises:
            ValueError: x, gate_input and ids differ in their number of rows.
        """
        ops = keras.ops
        gate_input = x if gate_input is None else gate_input
        _check_rows("gate_input", gate_input, x)
        _check_rows("ids", ids, x)
        routings = [
            spread_routing(gate(gate_input, training=training, ids=ids), choice, len(self.experts))
            for gate, choice in zip(self.gates, self.choices, strict=True)
        ]
        rows = ops.shape(x)[0]
        weights = ops.stack(
            [ops.broadcast_to(r.weights, (rows, len(self.experts))) for r in routings]
        )  # (T, B, E)
        # In training, the zeros of a straight-through gate carry gradient.
        dense = bool(training) and any(gate.properties.straight_through for gate in self.gates)
        max_per_row = self._max_per_row(bool(training))
        outputs, experts_per_row = mix(self.experts, x, weights, bool(training), dense, max_per_row)
        return Mixed(outputs, routings, experts_per_row)

    def _max_per_row(self, training: bool) -> int:
        """The largest number of experts that a row can use, by what the gates promise."""
        soft: set[int] = set()
        selected = 0
        for gate, choice in zip(self.gates, self.choices, strict=True):
            found = gate.properties
            if found.sparse_in_training if training else found.sparse_at_inference:
                selected += gate.num_selected
            else:
                soft |= set(choice)
        return min(len(self.experts), len(soft) + selected)

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same layer."""
        serialize = keras.saving.serialize_keras_object
        return super().get_config() | {
            "experts": [serialize(expert) for expert in self.experts],
            "gates": [serialize(gate) for gate in self.gates],
            "choices": self.choices,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Mixture":
        """Build the layer from `get_config`'s dictionary."""
        deserialize = keras.saving.deserialize_keras_object
        config = dict(config)
        experts = [deserialize(expert) for expert in config.pop("experts")]
        gates = [deserialize(gate) for gate in config.pop("gates")]
        return cls(experts, gates, **config)


def _check_choices(choices: Sequence[Sequence[int]], gates: Sequence[Gate], experts: int) -> None:
    """Refuse choices that do not fit the gates and the experts."""
    if len(choices) != len(gates):
        raise ValueError(f"choices: expected one per gate, {len(gates)}; received {len(choices)}")
    for choice, gate in zip(choices, gates, strict=True):
        if gate.num_experts != len(choice):
            raise ValueError(
                f"gates: expected num_experts={len(choice)}, the number of experts; "
                f"gate {gate.name!r} has {gate.num_experts}"
            )
        if len(set(choice)) < len(choice) or not set(choice) <= set(range(experts)):
            raise ValueError(
                f"choices: expected different numbers from 0 to {experts - 1}, received "
                f"{list(choice)}"
            )
    if lost := set(range(experts)) - {number for choice in choices for number in choice}:
        raise ValueError(f"choices: no gate can choose expert {min(lost)}")


def _check_distinct(argument: str, layers: Sequence[keras.layers.Layer]) -> None:
    """Refuse a layer that is given twice.

    Saving and loading would make two of it, and a gate would draw, and count steps, once per task.
    """
    for index, layer in enumerate(layers):
        if any(layer is earlier for earlier in layers[:index]):
            raise ValueError(
                f"{argument}: expected different layers, received {layer.name!r} twice; "
                "make one layer for each place"
            )


def _check_rows(argument: str, given: Tensor | None, x: Tensor) -> None:
    """Refuse an input that has not as many rows as x: a single row would broadcast."""
    if given is None or None in (given.shape[0], x.shape[0]):
        return
    if given.shape[0] != x.shape[0]:
        raise ValueError(
            f"{argument}: expected {x.shape[0]} rows, as x has, received {given.shape[0]}"
        )
