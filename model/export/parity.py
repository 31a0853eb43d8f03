"""Parity: a version is published only if it scores rows as the Keras model does.

A probability p is compared relative to p * max(1, -ln p).  For small p, ln p is a sum, which has
the relative precision of float32: that of 0.001 is -7, so that p itself has a seventh of it.  Any
other score is compared relative to the larger of itself and the standard deviation of the scores: a
sum near zero has no relative precision.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import keras
import numpy as np
import pyarrow as pa

from multigate.configs.contract import Contract
from multigate.configs.errors import ExportError
from multigate.model.data.encoding import Encoded, Encoder
from multigate.model.data.raw import Raw, feature_of, raw_values, take
from multigate.model.evaluation import calibration as calibrations
from multigate.model.evaluation.calibration import Calibration
from multigate.model.evaluation.combine import combine
from multigate.model.export.frozen.item_table import ItemTable
from multigate.model.export.graph import RANK, RANK_ITEMS, ROWS
from multigate.model.ranker import scores
from multigate.model.ranker.ranker import Ranker
from multigate.runtime.signature import Signature

MARGIN = 1e-5
"""A row is undecided if a relative change of this size in the gate's input changes its experts."""

_BATCH = 512
_TRIALS = 16


class Parity(TypedDict):
    """Result of the comparison, over all signatures together.

    `undecided` rows differ because a tiny change of the gate's input changes their experts;
    `largest_difference` is that of the other rows.
    """

    rows: int
    undecided: int
    largest_difference: float


def expected_scores(
    ranker: Ranker, encoder: Encoder, encoded: Encoded, calibration: Calibration | None = None
) -> dict[str, np.ndarray]:
    """The Keras model's calibrated score per task, and the combined score, (N,) float64."""
    contract = encoder.contract
    logits = ranker.forward(encoded, training=False).logits
    logits = calibrations.apply(calibration or {}, logits)
    found = {
        name: _numpy(value).astype(np.float64)
        for name, value in scores.scores(contract, encoder.statistics, logits).items()
    }
    return found | {"score": combine(contract, found)}


def relative_differences(
    contract: Contract, expected: Mapping[str, np.ndarray], received: Mapping[str, Any]
) -> np.ndarray:
    """Largest relative difference over tasks and combined score, (N,); see the module docstring."""
    worst = np.zeros(len(expected["score"]))
    if not len(worst):  # nor a standard deviation
        return worst
    for name, value in expected.items():
        difference = np.abs(np.asarray(received[name], np.float64) - value)
        with np.errstate(divide="ignore", invalid="ignore"):
            if name in contract.tasks and contract.tasks[name].type == "binary":
                scale = value * np.maximum(1, -np.log(value))
            else:
                scale = np.maximum(np.abs(value), value.std())
            ratio = np.where(difference == 0, 0.0, difference / scale)
        worst = np.maximum(worst, np.where(np.isnan(ratio), np.inf, ratio))
    return worst


def check_parity(
    signatures: Mapping[str, Signature],
    ranker: Ranker,
    encoder: Encoder,
    table: pa.Table,
    tolerance: float,
    calibration: Calibration | None = None,
    items: ItemTable | None = None,
) -> Parity:
    """Compare the signatures of a loaded SavedModel with the Keras model.

    `serving_default` gets the rows as they are, `rank` the item of each row for the user of another
    row, `rank_items` the same with the features of the item table.

    Args:
        signatures: of the loaded SavedModel.
        ranker: the exported Keras model.
        encoder: of its contract.
        table: rows to compare, with the features as columns.
        tolerance: largest relative difference.
        calibration: exported with it.
        items: item table exported with it.

    Raises:
        ExportError: a row differs by more than the tolerance and is not undecided.
    """
    compared, undecided, largest = 0, 0, 0.0
    for start in range(0, table.num_rows, _BATCH):
        part = table.slice(start, _BATCH)
        trials = [_rows(encoder, part), _pairs(encoder, part)]
        if items is not None:
            trials.append(_known_items(encoder, part, items))
        for name, raw, encoded in trials:
            received = signatures[name](raw)
            expected = expected_scores(ranker, encoder, encoded, calibration)
            worst = relative_differences(encoder.contract, expected, received)
            wrong = np.flatnonzero(worst > tolerance)
            excused = wrong[changes_experts(ranker, {k: v[wrong] for k, v in encoded.items()})]
            compared += len(worst)
            undecided += len(excused)
            worst[excused] = 0.0
            largest = max(largest, float(worst.max(initial=0.0)))
            if largest > tolerance:
                row = int(worst.argmax())
                values = ", ".join(
                    f"{k} {float(received[k][row]):.9g} for {float(v[row]):.9g}"
                    for k, v in expected.items()
                )
                raise ExportError(
                    f"parity: test row {start + row} differs by {largest:.2g} from the Keras "
                    f"model through {name} ({values}); export.parity_tolerance allows "
                    f"{tolerance:g}; nothing was published: this is a fault of the export, "
                    "please report it with the checkpoint's config.json"
                )
    return {"rows": compared, "undecided": undecided, "largest_difference": largest}


def changes_experts(ranker: Ranker, encoded: Encoded) -> np.ndarray:
    """Whether each row's experts change if the gates' input changes by `MARGIN`, (N,) bool."""
    x = _numpy(ranker.mixture_input(encoded))
    rng = np.random.default_rng(0)
    ids = ranker.ids(encoded)
    changed = np.zeros(len(x), bool)
    for gate in ranker.mixture.gates:
        if gate.static or not len(x):
            continue
        selected = _numpy(gate(x, ids=ids).weights) != 0
        for _ in range(_TRIALS):
            noise = 1 + MARGIN * rng.uniform(-1, 1, x.shape).astype(np.float32)
            again = _numpy(gate(x * noise, ids=ids).weights) != 0
            changed |= (again != selected).any(axis=1)
    return changed


def _rows(encoder: Encoder, table: pa.Table) -> tuple[str, Raw, Encoded]:
    """Signature, raw inputs and the Keras model's input: the rows as they are."""
    names = [name for name, _ in encoder.contract.of_side("user", "item", "context")]
    return ROWS, raw_values(encoder.contract, table, names), encoder(table)


def _pairs(encoder: Encoder, table: pa.Table) -> tuple[str, Raw, Encoded]:
    """The same for `rank`: the item of each row, for the user and context of one of N / 8 rows."""
    contract, N = encoder.contract, table.num_rows
    user_names = [name for name, _ in contract.of_side("user", "context")]
    item_names = [name for name, _ in contract.of_side("item")]
    M = max(1, N // 8)
    index = np.random.default_rng(N).integers(0, M, N).astype(np.int32)
    raw = take(raw_values(contract, table, user_names), slice(M))
    raw |= raw_values(contract, table, item_names)
    weights = [task.score_weight for task in contract.tasks.values()]
    raw |= {"user_index": index, "task_weights": np.tile(np.array(weights, np.float32), (M, 1))}
    pairs = table
    for name in contract.features:
        if name not in item_names:
            column = table[name].take(pa.array(index))
            pairs = pairs.set_column(pairs.column_names.index(name), name, column)
    return RANK, raw, encoder(pairs)


def _known_items(encoder: Encoder, table: pa.Table, items: ItemTable) -> tuple[str, Raw, Encoded]:
    """The same for `rank_items`, for the items that are complete in the table."""
    contract = encoder.contract
    kind = items.ids.type
    codes = encoder(table, [contract.item])[contract.item]
    rows = items.rows_of(table[contract.item].combine_chunks().cast(kind), codes)
    complete = np.flatnonzero(items.complete[rows])
    table, rows = table.take(complete), rows[complete]
    # Raw values, because matches compare them too.
    for name in set(items.names) - {contract.item}:
        column = items.table[name].take(pa.array(rows))
        table = table.set_column(table.column_names.index(name), name, column)
    _, raw, encoded = _pairs(encoder, table)
    raw = {name: v for name, v in raw.items() if feature_of(name) not in items.names} | {
        name: v for name, v in raw.items() if feature_of(name) == contract.item
    }
    return RANK_ITEMS, raw, encoded


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
