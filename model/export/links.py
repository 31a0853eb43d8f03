"""From a model's logits to the scores that are served: corrections first, then calibration.

Each is a rising curve on a task's logit (`model.export.calibration.Curve`), so that the graph
holds one curve a task, whatever it is made of.  The validation split is not downsampled, so a
calibration fitted on it puts downsampled negatives right by itself; it is fitted to corrected
logits all the same, and so adds nothing to what the correction has done.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from multigate.configs.contract import Contract
from multigate.configs.files import SAMPLED, ExamplesFolder
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import Examples, read_split
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.export import calibration as calibrations
from multigate.model.export import correction
from multigate.model.export.calibration import Calibration, Curve


def fit(
    loaded: checkpoints.Checkpoint, examples: Path, predictions: Predictions, rows: Examples
) -> tuple[Calibration, dict[str, Any]]:
    """Fit on the validation split, measure on the test split.

    Args:
        loaded: the ranker as it is exported.
        examples: the examples that it was trained on.
        predictions: of the test split.
        rows: the test split.

    Returns:
        The curves by task, and what metrics.json says about them: `negatives`, `smearing` and
        `calibration`, each where it takes part.
    """
    options = loaded.config.export
    ranker, encoder = loaded.ranker, loaded.encoder
    contract, statistics = encoder.contract, encoder.statistics
    kept = statistics.negatives_kept
    if options.calibration == "none" and kept == 1 and not options.smearing:
        return {}, {}
    validation = read_split(examples, "validation", encoder)
    logits = Predictions(ranker, contract, statistics, validation).logits
    report: dict[str, Any] = {}
    curves: dict[str, Curve] = {}
    if kept < 1:
        downsample = loaded.config.pipeline.downsample
        names = () if downsample is None else downsample.tasks
        shares = correction.shares(
            contract, kept, names, validation.labels, _sampled(examples, len(validation))
        )
        curves = {task: correction.shift(float(np.log(share))) for task, share in shares.items()}
        found = calibrations.measure(contract, curves, predictions.logits, rows.labels)
        report["negatives"] = {
            "kept": kept,
            "tasks": {
                task: {"share": share} | found.get(task, {}) for task, share in shares.items()
            },
        }
    if options.calibration != "none":
        method = options.calibration
        offsets = {task: float(curve.y[0]) for task, curve in curves.items()}
        corrected = {task: z + offsets.get(task, 0.0) for task, z in logits.items()}
        fitted, left = calibrations.fit(contract, method, corrected, validation.labels)
        shifted = {task: z + offsets.get(task, 0.0) for task, z in predictions.logits.items()}
        tasks = calibrations.measure(contract, fitted, shifted, rows.labels)
        report["calibration"] = {"method": method, "tasks": tasks, "left_as_they_are": left}
        for task, curve in fitted.items():
            curves[task] = correction.after(curve, offsets.get(task, 0.0))
    if options.smearing:
        factors = correction.smearing(contract, statistics, logits, validation.labels)
        report["smearing"] = {}
        for task, factor in factors.items():
            offset = float(np.log(factor)) / statistics.tasks[task].std
            curves[task] = correction.shift(offset)
            report["smearing"][task] = {"factor": factor} | _errors(
                contract, loaded, predictions, rows, task, offset
            )
    return curves, report


def _errors(
    contract: Contract,
    loaded: checkpoints.Checkpoint,
    predictions: Predictions,
    rows: Examples,
    task: str,
    offset: float,
) -> dict[str, float | None]:
    """RMSE of a task on test rows before and after its logit is shifted."""
    labels = rows.labels[:, list(contract.tasks).index(task)]
    known = ~np.isnan(labels)
    if not known.any():
        return {"before": None, "after": None}
    z, statistics = predictions.logits[task][known], loaded.encoder.statistics
    before, after = (
        correction.rmse(contract, statistics, task, z + shift, labels[known])
        for shift in (0.0, offset)
    )
    return {"before": before, "after": after}


def _sampled(examples: Path, rows: int) -> np.ndarray:
    """Which validation rows (N,) are sampled negatives; none where the folder does not say."""
    parts = [
        np.asarray(pq.read_table(path, columns=[SAMPLED])[SAMPLED].fill_null(False))
        for path in sorted(ExamplesFolder(examples).split("validation").glob("*.parquet"))
        if SAMPLED in pq.read_schema(path).names
    ]
    return np.concatenate(parts) if parts else np.zeros(rows, bool)
