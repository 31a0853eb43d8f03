"""Parity: a version is published only if it scores rows as the Keras model does.

A row is compared relative to its own score where that is a probability, else relative to the
larger of its score and the scores' standard deviation: a sum near zero has no relative precision.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pyarrow as pa

from multigate.configs.contract import PRESENT, Contract
from multigate.configs.errors import ExportError
from multigate.model.data.encoding import Encoded, Encoder
from multigate.model.data.raw import Raw, feature_of, raw_values, take
from multigate.model.evaluation.combine import combine
from multigate.model.export import calibration as calibrations
from multigate.model.export.calibration import Calibration
from multigate.model.export.graph import RANK, RANK_ITEMS, ROWS
from multigate.model.export.item_table import ItemTable
from multigate.model.ranker import scores
from multigate.model.ranker.ranker import Ranker

MARGIN = 1e-5
"""Relative change of a gate's input under which a row that changes its experts is undecided."""

_BATCH = 512
_TRIALS = 16


def expected_scores(
    ranker: Ranker, encoder: Encoder, encoded: Encoded, calibration: Calibration | None = None
) -> dict[str, np.ndarray]:
    """The Keras model's score per task, calibrated, and the combined one, (N,) float64."""
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
    """Largest relative difference over tasks and combined score, (N,); see the module's text."""
    worst = np.zeros(len(expected["score"]))
    if not len(worst):  # no deviation either
        return worst
    for name, value in expected.items():
        scale = np.abs(value)
        if name not in contract.tasks or contract.tasks[name].type == "regression":
            scale = np.maximum(scale, value.std())
        difference = np.abs(np.asarray(received[name], np.float64) - value)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(difference == 0, 0.0, difference / scale)
        worst = np.maximum(worst, np.where(np.isnan(ratio), np.inf, ratio))
    return worst


def check_parity(
    signatures: Mapping[str, Any],
    ranker: Ranker,
    encoder: Encoder,
    table: pa.Table,
    tolerance: float,
    calibration: Calibration | None = None,
    items: ItemTable | None = None,
) -> dict[str, Any]:
    """Compare the signatures of a loaded SavedModel with the Keras model.

    `serving_default` gets the rows as they are, `rank` every row's item for another row's user,
    `rank_items` the same with the item table's features.

    Args:
        signatures: of the loaded SavedModel.
        ranker: what was exported.
        encoder: of its contract.
        table: rows to compare on, with the features as columns.
        tolerance: largest relative difference.
        calibration: that was exported with it.
        items: the item table that was exported with it.

    Returns:
        rows (compared, all signatures together), undecided (rows that differ because tiny
        changes of the gate's input change their experts), largest_difference (of the others).

    Raises:
        ExportError: a row differs by more.
    """
    compared, undecided, largest = 0, 0, 0.0
    for start in range(0, table.num_rows, _BATCH):
        part = table.slice(start, _BATCH)
        trials = [_rows(encoder, part), _pairs(encoder, part)]
        if items is not None:
            trials.append(_known(encoder, part, items))
        for name, raw, encoded in trials:
            received = {k: v.numpy() for k, v in signatures[name](**raw).items()}
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
    """Rows (N,) bool whose experts change when the gates' input changes by `MARGIN` (seeded)."""
    x = _numpy(ranker.embedder(encoded))
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
    """The same for `rank`: each row's item for the user and context of one of a few rows."""
    contract, N = encoder.contract, table.num_rows
    user_names = [name for name, _ in contract.of_side("user", "context")]
    item_names = [name for name, _ in contract.of_side("item")]
    M = max(1, N // 8)
    index = np.random.default_rng(N).integers(0, M, N).astype(np.int32)
    raw = take(raw_values(contract, table, user_names), slice(M))
    raw |= raw_values(contract, table, item_names)
    weights = [task.score_weight for task in contract.tasks.values()]
    raw |= {"user_index": index, "task_weights": np.tile(np.array(weights, np.float32), (M, 1))}
    encoded = {
        name: values if name.removesuffix(PRESENT) in item_names else values[index]
        for name, values in encoder(table).items()
    }
    return RANK, raw, encoded


def _known(encoder: Encoder, table: pa.Table, items: ItemTable) -> tuple[str, Raw, Encoded]:
    """The same for `rank_items`: the items are the table's, where it is complete."""
    contract = encoder.contract
    kind = items.ids.type
    codes = encoder(table, [contract.item])[contract.item]
    rows = items.rows_of(table[contract.item].combine_chunks().cast(kind), codes)
    complete = np.flatnonzero(items.complete[rows])
    table, rows = table.take(complete), rows[complete]
    _, raw, encoded = _pairs(encoder, table)
    others = {name for name in items.encoded if name.removesuffix(PRESENT) != contract.item}
    raw = {name: v for name, v in raw.items() if feature_of(name) not in items.names} | {
        name: v for name, v in raw.items() if feature_of(name) == contract.item
    }
    return RANK_ITEMS, raw, encoded | {name: items.encoded[name][rows] for name in others}


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
