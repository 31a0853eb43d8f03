"""From the mixture to the heads: one tower per task, and a position tower used in training."""

from collections.abc import Sequence
from typing import Any

import keras

from multigate.model.gates.parts.base import Tensor, derive_seed
from multigate.model.moe.experts import Expert


class Tower(keras.layers.Layer):
    """Hidden dense layers and K output units; without hidden layers, a linear layer.

    Args:
        width: U, columns of the input.
        units: widths of the hidden layers.
        activation: of the hidden layers.
        dropout: after each hidden layer.
        bias: (K,) initial outputs; with the logit of the label's base rate, training need not
            learn that first.
        seed: of initial weights and dropout.
        precision: dtype policy of the hidden layers; the output is float32.
    """

    def __init__(
        self,
        width: int,
        units: Sequence[int],
        activation: str,
        dropout: float,
        bias: Sequence[float],
        seed: int | None,
        precision: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"dtype": "float32"} | kwargs)
        self.hidden = None
        if units:
            self.hidden = Expert(
                units, activation, dropout, derive_seed(seed, "hidden"), dtype=precision
            )
            self.hidden.build((None, width))
        self.head = keras.layers.Dense(
            len(bias),
            kernel_initializer=keras.initializers.GlorotUniform(derive_seed(seed, "head")),
            bias_initializer=keras.initializers.Constant(list(bias)),
            dtype="float32",
            name="head",
        )
        self.head.build((None, units[-1] if units else width))
        self.built = True

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Map x (B, U) to outputs (B, K), which a head of `model.ranker.heads` reads."""
        if self.hidden is not None:
            x = self.hidden(x, training=training)
        return self.head(x)


class PositionTower(keras.layers.Layer):
    """The effect of the position at which an item was shown: one number per position and task.

    It is added to the logits in training only, so that the rest of the model learns the user's
    preference without it.  The effect is centred over the rows of the batch that have a position.
    Without that it would take over part of the towers' bias, and every score would be off at
    inference.  Centring also keeps it from separating rows with a position, which were shown, from
    sampled negatives, which were not.

    Args:
        positions: number of positions, index 0 (no position) included.
        tasks: T.
    """

    def __init__(self, positions: int, tasks: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = keras.layers.Embedding(
            positions, tasks, embeddings_initializer="zeros", name="effect"
        )
        self.table.build()
        self.built = True

    def call(self, position: Tensor) -> Tensor:
        """Effects (B, T) of positions (B,); exactly 0 where the position is 0."""
        ops = keras.ops
        effect = self.table(position)
        known = ops.cast(position != 0, effect.dtype)[:, None]  # (B, 1)
        count = ops.maximum(ops.sum(known), 1.0)
        mean = ops.sum(effect * known, axis=0, keepdims=True) / count  # (1, T)
        return (effect - mean) * known
