"""What an export does to a model's scores, for a model of another library: calibration, smearing.

A version is calibrated on the validation split, and may be smeared (`model.export.links`).  Beside
it, raw scores of another library would lose in log loss and in own units for their scale alone.
"""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.files import TIME
from multigate.configs.sections.model import CalibrationMethod
from multigate.configs.statistics import Statistics
from multigate.model.data.rows import Rows
from multigate.model.evaluation import calibration
from multigate.model.evaluation.smearing import smear, smearing_factor
from multigate.model.ranker import scores

_SMALLEST = 1e-7  # of a probability, whose logit is to be finite


class Corrected(NamedTuple):
    """Scores (N,) in own units.

    Attributes:
        scores: by task, calibrated.
        means: by task, smeared as well where that lowers the error on validation.
        factors: of the smeared tasks.
    """

    scores: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    factors: dict[str, float]


def corrected(
    contract: Contract,
    statistics: Statistics,
    validation: Rows,
    held_out: Mapping[str, np.ndarray],
    measured: Mapping[str, np.ndarray],
    method: CalibrationMethod = "auto",
) -> Corrected:
    """Calibrate scores and smear them.

    Args:
        contract: tasks; those without scores are left out.
        statistics: of the training split.
        validation: V rows.
        held_out: their scores (V,) by task, probabilities or on the label's transform.
        measured: scores (N,) by task, likewise.
        method: of calibration (`export.calibration`); with `none` they are smeared alone.
    """
    contract = contract.model_copy(
        update={"tasks": {n: task for n, task in contract.tasks.items() if n in held_out}}
    )
    labels = validation.labels(contract)
    times = None
    if TIME in validation.table.column_names:
        times = np.asarray(validation.table[TIME].cast("int64").fill_null(0))
    logits = {
        split: {name: _logit(contract, statistics, name, of[name]) for name in contract.tasks}
        for split, of in (("held out", held_out), ("measured", measured))
    }
    curves: calibration.Calibration = {}
    if method != "none":
        fitted = calibration.fit(contract, statistics, method, logits["held out"], labels, times)
        curves = fitted.curves
    right = {
        split: {
            name: np.asarray(keras.ops.convert_to_numpy(z), np.float64)
            for name, z in calibration.apply(curves, of).items()
        }
        for split, of in logits.items()
    }
    found = Corrected({}, {}, {})
    for t, (name, task) in enumerate(contract.tasks.items()):
        of_task, z = statistics.tasks[name], right["measured"][name]
        score = scores.score(task, of_task, z.astype(np.float32))
        found.scores[name] = np.asarray(keras.ops.convert_to_numpy(score), np.float64)
        found.means[name] = found.scores[name]
        if task.type == "binary":
            continue
        known = ~np.isnan(labels[:, t])
        predicted = right["held out"][name][known] * of_task.std + of_task.mean
        factor = smearing_factor(task, predicted, labels[known, t].astype(np.float64))
        if factor is not None:
            found.factors[name] = factor
            found.means[name] = smear(task, z * of_task.std + of_task.mean, factor)
    return found


def _logit(contract: Contract, statistics: Statistics, name: str, values: np.ndarray) -> np.ndarray:
    """The logit (N,) float64 whose score is `values`."""
    values = np.asarray(values, np.float64)
    if contract.tasks[name].type == "binary":
        p = np.clip(values, _SMALLEST, 1 - _SMALLEST)
        return np.log(p / (1 - p))
    of_task = statistics.tasks[name]
    return (values - of_task.mean) / of_task.std
