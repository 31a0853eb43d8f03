"""The variables of alike experts, stacked: one kernel (E, D, U) and one bias (E, U) per layer.

Used on JAX, where one variable instead of E saves copies of all kernels, and most of the time to
compile the optimiser's update.  On TensorFlow each expert has variables of its own:
`dispatch_tensorflow` says why.  On both, an expert's layers have a `kernel` and a `bias` to read
and assign, and checkpoints name them by expert.  So each backend loads the other's checkpoints.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import keras
import numpy as np

from multigate.model import backend
from multigate.model.gates.parts.base import Tensor
from multigate.model.moe.experts import Expert, are_alike


class StackSlice:
    """One expert's part of a stacked variable, with the methods of a variable that are used here.

    Args:
        whole: the stacked variable (E, ...).
        index: the expert's number.
        name: that the variable would have by itself, such as `kernel`.
    """

    def __init__(self, whole: keras.Variable, index: int, name: str) -> None:
        self.whole, self.index, self.name = whole, index, name
        self.path = f"{whole.path}/{index}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without E."""
        return tuple(self.whole.shape[1:])

    @property
    def dtype(self) -> str:
        """Of the stacked variable."""
        return self.whole.dtype

    @property
    def trainable(self) -> bool:
        """Of the stacked variable."""
        return bool(self.whole.trainable)

    @property
    def value(self) -> Tensor:
        """The expert's part."""
        return self.whole.value[self.index]

    def assign(self, value: Any) -> None:
        """Set the expert's part, and no other."""
        value = keras.ops.convert_to_tensor(value, self.dtype)
        if tuple(value.shape) != self.shape:
            raise ValueError(
                f"{self.path}: expected shape {self.shape}, received {tuple(value.shape)}"
            )
        self.whole.assign(self.whole.value.at[self.index].set(value))

    def __array__(self, dtype: Any = None) -> np.ndarray:
        return np.asarray(keras.ops.convert_to_numpy(self.value), dtype)

    def __jax_array__(self) -> Tensor:
        return self.value


def can_stack(
    experts: Sequence[keras.layers.Layer], x_shape: Sequence[int | None]
) -> TypeGuard[Sequence[Expert]]:
    """Whether experts share stacked variables: on JAX, if they are alike and not built yet."""
    if backend.name() != "jax" or len(x_shape) != 2 or x_shape[-1] is None:
        return False
    return are_alike(experts) and not any(expert.built for expert in experts)


class ExpertStack(keras.layers.Layer):
    """Builds the layers of alike experts on stacked variables, with each one's own initial values.

    Attributes:
        kernels: (E, D, U) of each layer.
        biases: (E, U) of each layer.

    Args:
        experts: not built yet, see `experts.are_alike`.
        width: D of their input.
    """

    def __init__(self, experts: Sequence[Expert], width: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kernels: list[keras.Variable] = []
        self.biases: list[keras.Variable] = []
        for index, layers in enumerate(zip(*(e.dense_layers for e in experts), strict=True)):
            units = layers[0].units
            kernel = self._stack(
                f"kernel_{index}", (width, units), [d.kernel_initializer for d in layers]
            )
            bias = self._stack(f"bias_{index}", (units,), [d.bias_initializer for d in layers])
            for e, dense in enumerate(layers):
                dense.build_on(StackSlice(kernel, e, "kernel"), StackSlice(bias, e, "bias"))
            self.kernels.append(kernel)
            self.biases.append(bias)
            width = units
        for expert in experts:
            expert.built = True
        self.built = True

    def _stack(
        self, name: str, shape: tuple[int, ...], initializers: Sequence[Any]
    ) -> keras.Variable:
        def initial(shape: tuple[int, ...], dtype: Any) -> Tensor:
            return keras.ops.stack([each(shape[1:], dtype=dtype) for each in initializers])

        return self.add_weight(name=name, shape=(len(initializers), *shape), initializer=initial)
