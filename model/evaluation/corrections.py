"""What an export does to a model's scores, for a model of another library.

A version is corrected for downsampled negatives, calibrated on the validation split, and may be
smeared (`model.export.links`), in this order.  Beside it, raw scores of another library would lose
in log loss and in own units for their scale alone, and in the order of the combined score, because
each task's scores are too high by another factor.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.files import SAMPLED, TIME
from multigate.configs.sections.model import CalibrationMethod
from multigate.configs.statistics import Statistics
from multigate.model.data.rows import Rows
from multigate.model.evaluation import calibration, smearing
from multigate.model.evaluation.negatives import negative_shares
from multigate.model.evaluation.smearing import Smearing
from multigate.model.ranker import scores

_SMALLEST = 1e-7  # of a probability, whose logit is to be finite


class Corrected(NamedTuple):
    """Scores (N,) in own units.

    Attributes:
        scores: by task, corrected for downsampled negatives and calibrated.
        means: by task, smeared as well where that lowers the error on validation.
        smeared: how, by task.
    """

    scores: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    smeared: dict[str, Smearing]


def corrected(
    contract: Contract,
    statistics: Statistics,
    validation: Rows,
    held_out: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
    method: CalibrationMethod = "auto",
    positive_by: Sequence[str] = (),
    weight: str | None = None,
) -> Corrected:
    """Correct scores for downsampled negatives, calibrate them and smear them.

    Args:
        contract: tasks; those without scores are left out.
        statistics: of the training split, with the share of negatives that it holds.
        validation: V rows, each impression once (`Rows.once`).
        held_out: their scores (V,) by task, probabilities or on the label's transform.
        measured: scores (N,) by task, likewise.
        method: of calibration (`export.calibration`); `none` leaves it out.
        positive_by: tasks whose labels make an impression positive where negatives are
            downsampled (`downsample.tasks`); all binary ones if empty.
        weight: column of the rows' weights in training; None if all are equal.

    Raises:
        DataError: the validation split lacks a column.
    """
    weights = None if weight is None else validation.weights(weight)
    sampled, times = validation.integers(SAMPLED), validation.integers(TIME)
    # Before tasks are left out: an impression is positive by their labels, too.
    shares = negative_shares(
        contract,
        statistics.negatives_kept,
        positive_by,
        validation.labels(contract),
        np.zeros(len(validation), bool) if sampled is None else sampled == 1,
        weights,
    )
    contract = contract.model_copy(
        update={"tasks": {n: task for n, task in contract.tasks.items() if n in held_out}}
    )
    labels = validation.labels(contract)
    logits = {
        split: {
            name: _logit(contract, statistics, name, of[name]) + np.log(shares.get(name, 1.0))
            for name in contract.tasks
        }
        for split, of in (("held out", held_out), ("measured", measured))
    }
    curves: calibration.Calibration = {}
    if method != "none":
        curves = calibration.fit(
            contract, statistics, method, logits["held out"], labels, times, weights
        ).curves
    right = {
        split: {
            name: np.asarray(keras.ops.convert_to_numpy(z), np.float64)
            for name, z in calibration.apply(curves, of).items()
        }
        for split, of in logits.items()
    }
    smeared = smearing.fit(contract, statistics, right["held out"], labels, times, weights)
    found = Corrected({}, {}, smeared)
    for name, task in contract.tasks.items():
        of_task, z = statistics.tasks[name], right["measured"][name]
        score = scores.score(task, of_task, z.astype(np.float32))
        found.scores[name] = np.asarray(keras.ops.convert_to_numpy(score), np.float64)
        found.means[name] = found.scores[name]
        if name in smeared:
            found.means[name] = smeared[name].scores(task, z * of_task.std + of_task.mean)
    return found


def _logit(contract: Contract, statistics: Statistics, name: str, values: np.ndarray) -> np.ndarray:
    """The logit (N,) float64 whose score is `values`."""
    values = np.asarray(values, np.float64)
    if contract.tasks[name].type == "binary":
        p = np.clip(values, _SMALLEST, 1 - _SMALLEST)
        return np.log(p / (1 - p))
    of_task = statistics.tasks[name]
    return (values - of_task.mean) / of_task.std
