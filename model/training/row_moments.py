"""Moments of the embeddings of features with `max_age`, from one training to the next.

Without them Adam would move the rows of a warm start as if it had never seen them, by a whole
learning rate for their first gradient.  With `train.embeddings: dense` there is no step count by
row, and nothing is carried over.
"""

from collections.abc import Mapping

import keras
import numpy as np

from multigate.model.backend.rows import VariablePart, chunks, write_part
from multigate.model.checkpoints import weights
from multigate.model.optimizer.row_adam import RowState, TableState
from multigate.model.ranker.ranker import Ranker
from multigate.model.training import admission

Moments = dict[str, np.ndarray]
"""By the name of the weights (n, d): each row's step count, m and v, (n, 1 + 2 d)."""


def names(ranker: Ranker) -> list[str]:
    """Weights whose moments are carried over."""
    carried = admission.features(ranker.contract)
    found = [f"{kind}/{name}" for name in carried for kind in ("embeddings", "wide")]
    return [name for name in found if name in weights.variables(ranker)]


def read(ranker: Ranker) -> Moments:
    """The moments of a compiled ranker; none under `embeddings: dense`."""
    found = {}
    for name, (part, state) in _parts(ranker).items():
        values = []
        for _, rows in chunks(part.first, part.shape[0]):
            now = state.read(rows)
            values.append(np.concatenate([np.asarray(x) for x in (now.steps, now.m, now.v)], 1))
        found[name] = np.concatenate(values)
    return found


def assign(ranker: Ranker, moments: Mapping[str, np.ndarray]) -> None:
    """Set the moments of a compiled ranker that has not made a step."""
    ops = keras.ops
    for name, (part, state) in _parts(ranker).items():
        if name not in moments:
            continue
        for start, rows in chunks(part.first, part.shape[0]):
            values = ops.convert_to_tensor(moments[name][start : start + len(rows)])
            steps, m, v = ops.split(values, [1, 1 + state.width], axis=1)
            before = state.read(rows)
            new = state.joined(RowState(steps, m, v, before.averaged, before.lag), 0, seed=0)
            write_part(state.variable, int(rows[0]), new)


def _parts(ranker: Ranker) -> dict[str, tuple[VariablePart, TableState]]:
    """Rows and optimiser state of each of `names`."""
    tables = getattr(ranker.optimizer, "tables", {})
    of_variable = {
        id(variable): tables[str(index)]
        for index, variable in enumerate(ranker.trainable_variables)
        if str(index) in tables
    }
    named = weights.variables(ranker)
    return {
        name: (named[name], of_variable[id(named[name].variable)])
        for name in names(ranker)
        if id(named[name].variable) in of_variable
    }
