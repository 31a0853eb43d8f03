"""What export reads of a trained ranker, as NumPy arrays.

The other modules of this room know nothing of how training lays out its variables.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from multigate.model.checkpoints.weights import to_numpy
from multigate.model.moe.experts import Expert
from multigate.model.ranker.embedder import Embedder
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.towers import Tower


class DenseLayer(NamedTuple):
    """activation(x @ kernel + bias).

    Attributes:
        kernel: (D, U) float32.
        bias: (U,) float32.
        activation: a Keras function.
    """

    kernel: np.ndarray
    bias: np.ndarray
    activation: Callable[[Any], Any]


def embedding_tables(embedder: Embedder) -> dict[str, np.ndarray]:
    """Rows (R, d) of each embedding table, by the feature that owns it."""
    return {owner: to_numpy(table.embeddings) for owner, table in embedder.tables.items()}


def wide_tables(ranker: Ranker) -> dict[str, np.ndarray]:
    """Weights (R, T) of the wide term by feature and cross; those of unknown ids are 0."""
    if ranker.wide is None:
        return {}
    return ranker.wide.weights_of(ranker.wide.tables)


def line_map(ranker: Ranker) -> DenseLayer | None:
    """Kernel (D, T) and bias (T,) of the linear term; None if no task has a line."""
    if ranker.linear is None or not to_numpy(ranker.linear.kernel).any():
        return None
    kernel, bias = to_numpy(ranker.linear.kernel), to_numpy(ranker.linear.bias)
    return DenseLayer(kernel, bias, lambda x: x)


def rescaled(embedder: Embedder) -> dict[str, np.ndarray]:
    """Scale and shift (2, size) of each number or vector that has them."""
    return {name: to_numpy(variable) for name, variable in embedder.rescaled.items()}


def expert_layers(expert: Expert) -> list[DenseLayer]:
    """Layers of an expert, without dropout."""
    return [_dense(layer) for layer in expert.dense_layers]


def tower_layers(tower: Tower) -> list[DenseLayer]:
    """Layers of a tower; the last gives its K outputs."""
    hidden = [] if tower.hidden is None else expert_layers(tower.hidden)
    return [*hidden, _dense(tower.head)]


def _dense(layer: Any) -> DenseLayer:
    return DenseLayer(to_numpy(layer.kernel), to_numpy(layer.bias), layer.activation)
