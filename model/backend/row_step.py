"""A training step on JAX that never makes a gradient as large as an embedding table.

JAX differentiates with respect to arrays, so the gradient of a table is an array of all its rows.
Here the rows that a batch reads are differentiated instead (`rows.Taps`), and summed by row.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from multigate.model.backend.rows import RowGradient, Taps, merge

Tensor = Any
State = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def train_step(
    model: keras.Model, tables: Sequence[tuple[keras.Variable, int]], state: State, data: Any
) -> tuple[Any, State]:
    """`keras.Model.train_step`, with a `RowGradient` for each table.

    Args:
        model: compiled with an optimiser that takes these gradients.
        tables: the tables' variables, and how many rows K of each the model reads for one example,
            with a single call of `rows.gather_batch`.
        state: as Keras gives it.
        data: a batch of B examples.

    Returns:
        As Keras's.
    """
    trainable, fixed, moments, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    size = keras.tree.flatten(x)[0].shape[0]
    of_table = {id(variable): count for variable, count in tables}
    variables = model.trainable_variables
    zeros = [
        jnp.zeros((size, of_table[id(v)], v.shape[1])) if id(v) in of_table else None
        for v in variables
    ]

    def loss_of(free: list[Tensor]) -> tuple[Tensor, Any]:
        """The loss as a function of the zeros of tables, and of all other variables."""
        used = [
            whole if tap is not None else own
            for whole, own, tap in zip(trainable, free, zeros, strict=True)
        ]
        taps = [(v, own) for v, own in zip(variables, free, strict=True) if id(v) in of_table]
        with Taps(taps) as tapped:
            loss, aux = model.compute_loss_and_updates(
                used,
                fixed,
                metrics,
                x,
                y,
                sample_weight,
                training=True,
                optimizer_variables=moments,
            )
        return loss, (aux, tapped.rows)

    free = [v if tap is None else tap for v, tap in zip(trainable, zeros, strict=True)]
    (_, (aux, rows)), found = jax.value_and_grad(loss_of, has_aux=True)(free)
    loss, y_pred, fixed, metrics = aux
    gradients: list[Tensor | RowGradient] = []
    for variable, gradient in zip(variables, found, strict=True):
        if id(variable) in of_table:
            flat = gradient.reshape(-1, gradient.shape[-1])  # (B K, d)
            gradients.append(merge(rows[id(variable)].reshape(-1), flat, variable.shape[0]))
        else:
            gradients.append(gradient)
    trainable, moments = model.optimizer.stateless_apply(moments, gradients, trainable)
    logs, metrics = model._update_metrics_variables(metrics, loss, x, y, y_pred, sample_weight)
    return logs, (trainable, fixed, moments, metrics)
