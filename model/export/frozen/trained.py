"""What export reads of a trained ranker, as NumPy arrays.

The other modules of this room know nothing of how training lays out its variables.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from multigate.model.checkpoints.weights import to_numpy
from multigate.model.moe.experts import Expert
from multigate.model.ranker.embedder import Embedder
from multigate.model.ranker.factors.term import Pair, PairTables
from multigate.model.ranker.ranker import Ranker


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
    tables, shares = ranker.wide.weights_of(ranker.wide.tables), deep_shares(ranker)
    for name in tables:
        tables[name] *= shares
    return tables


def factor_tables(ranker: Ranker) -> dict[Pair, PairTables]:
    """The factors by pair of features; none if no task has some."""
    if ranker.factors is None:
        return {}
    pairs = ranker.factors.pairs.items()
    return {pair: PairTables(*map(to_numpy, tables)) for pair, tables in pairs}


class LineMap(NamedTuple):
    """What lines add to the outputs: clip(x @ kernel + bias, low, high).

    Attributes:
        kernel: (D, T) float32.
        bias: (T,) float32.
        low: (T,) float32.
        high: (T,) float32.
    """

    kernel: np.ndarray
    bias: np.ndarray
    low: np.ndarray
    high: np.ndarray


def line_map(ranker: Ranker) -> LineMap | None:
    """The lines with their shares; None if no task has a line."""
    linear = ranker.linear
    if linear is None or not linear.active:
        return None
    line, start = to_numpy(linear.line), to_numpy(linear.start)  # shares are not negative
    bias, low, high = (to_numpy(v) * line + start for v in (linear.bias, linear.low, linear.high))
    return LineMap(to_numpy(linear.kernel) * line, bias, low, high)


def deep_shares(ranker: Ranker) -> np.ndarray:
    """What the outputs of towers and wide term are multiplied by beside lines, (T,)."""
    if ranker.linear is None or not ranker.linear.active:
        return np.ones(len(ranker.contract.tasks), np.float32)
    return to_numpy(ranker.linear.deep)


def rescaled(embedder: Embedder) -> dict[str, np.ndarray]:
    """Scale and shift (2, size) of each number or vector that has them."""
    return {name: to_numpy(variable) for name, variable in embedder.rescaled.items()}


def expert_layers(expert: Expert) -> list[DenseLayer]:
    """Layers of an expert, without dropout."""
    return [_dense(layer) for layer in expert.dense_layers]


def tower_layers(ranker: Ranker) -> list[list[DenseLayer]]:
    """Layers of each task's tower; the last gives its K outputs."""
    found = []
    for tower, share in zip(ranker.towers.values(), deep_shares(ranker), strict=True):
        hidden = [] if tower.hidden is None else expert_layers(tower.hidden)
        last = _dense(tower.head)
        found.append([*hidden, last._replace(kernel=last.kernel * share, bias=last.bias * share)])
    return found


def _dense(layer: Any) -> DenseLayer:
    return DenseLayer(to_numpy(layer.kernel), to_numpy(layer.bias), layer.activation)
