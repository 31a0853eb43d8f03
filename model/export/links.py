"""From a model's logits to the served scores: corrections for known errors, then calibration.

Each is a rising curve on a task's logit (`model.evaluation.calibration.Curve`), so that the graph
holds one curve per task.

Downsampled negatives.  Where training held the share s of a task's negatives, the odds that it
learnt are 1/s times too high: p / (p + (1 - p) / s) is right, which is the logit plus log(s).
`statistics.json` has the share of the impressions without a positive label that training kept.
Negatives of one task that are positives of another were all kept, and a task that is masked on the
dropped impressions lost none; so s is counted for each task on the validation split, which is not
downsampled.  With a single task, s is the share itself and the correction is exact; with several it
is exact on average.  Sampled negatives, of items that the log does not show, are not logged
impressions; no correction is known for them.

Smearing (`model.evaluation.smearing`).  A task trained on log(1 + y) predicts the mean of that, and
its inverse is near y's median.  The mean of y is estimated by S * exp(c * prediction) - 1, with S
and c from the validation split: a line on the logit.

Calibration is fitted to logits that are corrected for downsampling.  Because the validation split
is not downsampled, it would correct downsampled negatives by itself; fitted this way, it does not
correct them twice.  Smearing comes after calibration: calibration makes the mean right on the scale
of training, and S, measured on calibrated logits, then makes the mean right in the label's units.
"""

from pathlib import Path
from typing import Any, TypedDict

import keras
import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.files import SAMPLED, TIME
from multigate.configs.statistics import Statistics
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import Examples, encode
from multigate.model.data.rows import read_rows
from multigate.model.evaluation import calibration as calibrations
from multigate.model.evaluation import smearing as smearings
from multigate.model.evaluation.calibration import Calibration, CalibrationReport, Curve
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.evaluation.negatives import negative_shares
from multigate.model.ranker import scores


class NegativesReport(TypedDict):
    """The correction of downsampled negatives.

    `kept` is the share of the impressions without a positive label that training held, and
    `positive_by` the tasks whose labels make one positive; `tasks` has each task's share, and log
    loss and calibration error on test rows before and after.
    """

    kept: float
    positive_by: list[str]
    tasks: dict[str, dict[str, Any]]


class SmearingReport(TypedDict):
    """Factor and power of one task, and its RMSE on test rows; None where none has a label."""

    factor: float
    power: float
    before: float | None
    after: float | None


class LinkReport(TypedDict, total=False):
    """What metrics.json says of the links; each entry only where it takes part.

    `row_weight` is the column of the rows' weights, by which all of them are fitted.
    """

    row_weight: str
    negatives: NegativesReport
    calibration: CalibrationReport
    smearing: dict[str, SmearingReport]


def fit(
    loaded: checkpoints.Checkpoint, examples: Path, predictions: Predictions, rows: Examples
) -> tuple[Calibration, LinkReport]:
    """Fit the curves on the validation split and measure them on the test split.

    Args:
        loaded: the ranker as it is exported.
        examples: the examples that it was trained on.
        predictions: of the test split.
        rows: the test split, with weights where training had them.

    Returns:
        The curves by task, and the report.
    """
    options, encoder = loaded.config.export, loaded.encoder
    contract, statistics = encoder.contract, encoder.statistics
    kept = statistics.negatives_kept
    if options.calibration == "none" and kept == 1 and not options.smearing:
        return {}, {}
    held_out = read_rows(examples, "validation").once()
    validation = encode(held_out, encoder, loaded.config.row_weight)
    weights, times = validation.weights, held_out.integers(TIME)
    logits = Predictions(loaded.ranker, contract, statistics, validation).logits
    report: LinkReport = {}
    if loaded.config.row_weight is not None:
        report["row_weight"] = loaded.config.row_weight
    curves: dict[str, Curve] = {}
    if kept < 1:
        names = loaded.config.downsampled_by()
        column = held_out.integers(SAMPLED)
        sampled = np.zeros(len(validation), bool) if column is None else column == 1
        shares = negative_shares(contract, kept, names, validation.labels, sampled, weights)
        curves = {task: shift(float(np.log(share))) for task, share in shares.items()}
        report["negatives"] = {
            "kept": kept,
            "positive_by": names,
            "tasks": {
                task: {"share": share} | _shifted(contract, curves[task], task, predictions, rows)
                for task, share in shares.items()
            },
        }
    offsets = {task: float(curve.y[0]) for task, curve in curves.items()}
    corrected = {task: z + offsets.get(task, 0.0) for task, z in logits.items()}
    shown = {task: z + offsets.get(task, 0.0) for task, z in predictions.logits.items()}
    if options.calibration != "none":
        method = options.calibration
        fitted = calibrations.fit(
            contract, statistics, method, corrected, validation.labels, times, weights
        )
        tasks = calibrations.measure(contract, statistics, fitted, shown, rows.labels, rows.weights)
        report["calibration"] = {"method": method, "tasks": tasks, "left_as_they_are": fitted.left}
        for task, curve in fitted.curves.items():
            curves[task] = shift_input(curve, offsets.get(task, 0.0))
    if options.smearing:
        calibrated, served = (
            {task: _numpy(z) for task, z in calibrations.apply(curves, found).items()}
            for found in (logits, predictions.logits)
        )
        smeared = smearings.fit(contract, statistics, calibrated, validation.labels, times, weights)
        report["smearing"] = {}
        for task, smearing in smeared.items():
            mean, std = statistics.tasks[task].mean, statistics.tasks[task].std
            # On the logit z, of which the prediction is z * std + mean.
            slope = smearing.power
            offset = ((slope - 1) * mean + float(np.log(smearing.factor))) / std
            curves[task] = line_of_output(curves.get(task, shift(0.0)), slope, offset)
            labels = rows.labels[:, list(contract.tasks).index(task)]
            before, after = (
                rmse(contract, statistics, task, z, labels, rows.weights)
                for z in (served[task], slope * served[task] + offset)
            )
            report["smearing"][task] = {
                "factor": smearing.factor,
                "power": smearing.power,
                "before": before,
                "after": after,
            }
    return curves, report


def _shifted(
    contract: Contract, curve: Curve, task: str, predictions: Predictions, rows: Examples
) -> dict[str, Any]:
    """Log loss and calibration error of a task before and after its curve; empty without labels."""
    labels = rows.labels[:, list(contract.tasks).index(task)]
    known = calibrations.counted(labels, rows.weights)
    if not known.any():
        return {}
    z, y = predictions.logits[task][known].astype(np.float64), labels[known].astype(np.float64)
    w = None if rows.weights is None else rows.weights[known]
    both = z, _numpy(curve(z))
    before, after = (calibrations.log_loss_and_ece(values, y, w) for values in both)
    return {"before": before, "after": after, "rows": int(known.sum())}


def shift(offset: float) -> Curve:
    """The logit plus an offset."""
    return Curve(np.zeros(1, np.float32), np.array([offset], np.float32), 1.0)


def shift_input(curve: Curve, offset: float) -> Curve:
    """The curve applied to the logit plus an offset."""
    return curve._replace(x=(curve.x - offset).astype(np.float32))


def line_of_output(curve: Curve, slope: float, offset: float) -> Curve:
    """The curve times a slope, plus an offset."""
    y = (slope * curve.y + offset).astype(np.float32)
    return curve._replace(y=y, slope=slope * curve.slope)


def rmse(
    contract: Contract,
    statistics: Statistics,
    task: str,
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
) -> float | None:
    """Root mean squared error in the label's own units; None without labels.

    Args:
        contract: tasks.
        statistics: of the training split.
        task: its name.
        logits: (N,).
        labels: (N,) in own units, NaN where masked.
        weights: (N,) of the rows; None if all are equal.
    """
    known = calibrations.counted(labels, weights)
    if not known.any():
        return None
    found: Any = scores.score(
        contract.tasks[task], statistics.tasks[task], logits[known].astype(np.float32)
    )
    errors = np.asarray(found, np.float64) - labels[known]
    w = None if weights is None else weights[known]
    return float(np.sqrt(np.average(errors**2, weights=w)))


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
