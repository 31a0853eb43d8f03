"""Experts: the layers that a mixture chooses between, and what they must not do.

The mixture runs an expert on a subset of the batch.  So any Keras layer can be an expert if each
output row depends on its own input row only.  `Expert` is the usual one, a stack of dense layers.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import keras

from multigate.model.gates.parts.base import Gate, Tensor, derive_seed

# Layers that always mix rows.  Layers with an `axis` are judged by that axis.
_MIXING = (keras.layers.BatchNormalization, keras.layers.MixUp, keras.layers.CutMix)


class ExpertDense(keras.layers.Dense):
    """A dense layer that may use a part of a stacked variable, see `stack.ExpertStack`."""

    def build_on(self, kernel: Any, bias: Any) -> None:
        """Build the layer on a kernel (D, U) and a bias (U,), instead of variables of its own."""
        self._kernel, self.bias = kernel, bias
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: kernel.shape[0]})
        self.built = True


@keras.saving.register_keras_serializable("multigate")
class Expert(keras.layers.Layer):
    """Dense layers of the given widths, each followed by dropout.

    Args:
        units: width of each layer; the last is U.
        activation: activation of every layer.
        dropout: rate in [0, 1) of the dropout after every layer.
        seed: seed of the initial weights and dropout masks; each layer derives its own.  Experts
            with the same seed are equal: see `make_experts`.
    """

    def __init__(
        self,
        units: Sequence[int],
        activation: str = "relu",
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not units or min(units) < 1:
            raise ValueError(f"units: expected at least one width >= 1, received {list(units)}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout: expected a rate in [0, 1), received {dropout}")
        self.units = list(units)
        self.activation = activation
        self.dropout = dropout
        self.seed = seed
        self.stack: list[keras.layers.Layer] = []
        for index, width in enumerate(self.units):
            initializer = keras.initializers.GlorotUniform(
                seed=derive_seed(seed, f"weights {index}")
            )
            self.stack.append(
                ExpertDense(
                    width,
                    activation=activation,
                    kernel_initializer=initializer,
                    dtype=self.dtype_policy,
                    name=f"dense_{index}",
                )
            )
            if dropout:
                self.stack.append(
                    keras.layers.Dropout(
                        dropout,
                        seed=derive_seed(seed, f"dropout {index}"),
                        dtype=self.dtype_policy,
                        name=f"dropout_{index}",
                    )
                )

    @property
    def dense_layers(self) -> list[ExpertDense]:
        """The layers that have weights."""
        return [layer for layer in self.stack if isinstance(layer, ExpertDense)]

    def named_weights(self) -> list[Any]:
        """Kernel (D, U) and bias (U,) of each layer: variables, or parts of stacked ones."""
        return [weight for layer in self.dense_layers for weight in (layer.kernel, layer.bias)]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Build the layers in order."""
        shape = input_shape
        for layer in self.stack:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Map x (B, D) to (B, U)."""
        for layer in self.stack:
            x = layer(x, training=training) if isinstance(layer, keras.layers.Dropout) else layer(x)
        return x

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Shape (B, U)."""
        return (*input_shape[:-1], self.units[-1])

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same layer."""
        return super().get_config() | {
            "units": self.units,
            "activation": self.activation,
            "dropout": self.dropout,
            "seed": self.seed,
        }


def make_experts(
    num_experts: int,
    units: Sequence[int],
    activation: str = "relu",
    dropout: float = 0.0,
    seed: int | None = None,
    dtype: str | None = None,
    name: str = "expert",
) -> list[Expert]:
    """Make E different experts: each derives its own seed from `seed` and its number.

    Their names are `name` and the number.

    Raises:
        ValueError: an argument is out of its range.
    """
    if num_experts < 1:
        raise ValueError(f"num_experts: expected at least 1, received {num_experts}")
    return [
        Expert(
            units,
            activation,
            dropout,
            seed=derive_seed(seed, f"expert {number}"),
            dtype=dtype,
            name=f"{name}_{number}",
        )
        for number in range(num_experts)
    ]


def are_alike(experts: Sequence[keras.layers.Layer]) -> bool:
    """Whether all are `Expert`s that differ in their weights alone, so that they can be stacked."""
    if any(type(expert) is not Expert for expert in experts):
        return False
    kinds = {(tuple(e.units), e.stack[0].activation, e.dropout, e.compute_dtype) for e in experts}
    return len(kinds) == 1


def call_expert(expert: keras.layers.Layer, x: Tensor, training: bool) -> Tensor:
    """Call an expert, with `training` if it has that argument."""
    if "training" in inspect.signature(expert.call).parameters:
        return expert(x, training=training)
    return expert(x)


def check_row_wise(expert: keras.layers.Layer) -> None:
    """Refuse an expert in which a row's output depends on the batch's other rows.

    An expert sees only the rows that are routed to it, so such a layer would not compute what it
    computes on the whole batch.  Layers, and the operations of functional models, are judged by
    what they declare.  The code of custom layers and lambdas cannot be inspected; it is assumed to
    be row-wise.

    Raises:
        ValueError: the expert is, or contains, a layer that mixes rows, keeps state from batch to
            batch, or adds a loss computed over the batch.
    """
    layers = list(expert._flatten_layers())
    operations = [operation for layer in layers for operation in getattr(layer, "operations", ())]
    for layer in dict.fromkeys(layers + operations):
        reason = ""
        if isinstance(layer, _MIXING) or 0 in _axes(layer):
            reason = "mixes the rows of its batch"
        elif isinstance(layer, Gate) and layer.properties.batch_dependent:
            reason = "routes a row by the other rows of its batch"
        elif getattr(layer, "stateful", False):
            reason = "keeps state by position in the batch"
        elif getattr(layer, "activity_regularizer", None) is not None:
            reason = "has an activity regulariser, a loss over the rows of its batch"
        if reason:
            raise ValueError(
                f"experts: expert {expert.name!r} contains {type(layer).__name__} "
                f"{layer.name!r}, which {reason}; expected row-wise layers, because an expert "
                "runs only on the rows routed to it; use LayerNormalization instead of batch "
                "normalisation, or put the layer before the mixture"
            )


def _axes(operation: Any) -> list[int]:
    """Axes along which a layer or operation says it works; axis 0 is the batch.

    A negative axis is converted only if the rank of the input is known, as in a functional or a
    built sequential model; otherwise it is returned unchanged.
    """
    if not hasattr(operation, "axis"):
        return []
    axis = operation.axis
    if axis is None:
        # For a layer None means its features, for an operation all axes.
        return [] if isinstance(operation, keras.layers.Layer) else [0]
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    try:
        rank = len(keras.tree.flatten(operation.input)[0].shape)
    except AttributeError:  # raised by Keras if the layer was never called symbolically
        return list(axes)
    return [one + rank if one < 0 else one for one in axes]
