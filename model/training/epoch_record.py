"""Makes the record of one epoch, for `history.json` and TensorBoard."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.checkpoints.history import Diagnostics, Epoch, Losses, TaskLosses
from multigate.model.data.examples import Examples
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.ranker.ranker import Ranker
from multigate.model.training.tensorboard import Logs
from multigate.model.training.validation import Validated


def losses(
    number: int,
    weights: Mapping[str, float],
    train: dict[str, float],
    validated: Validated,
    monitor: str,
) -> Losses:
    """The losses of epoch `number`.

    Args:
        number: counted from 1.
        weights: of the tasks' mean losses, see `loss.task_weights`.
        train: Keras's metrics of the training split.
        validated: what validation found.
        monitor: what decides which epoch is kept.
    """
    tasks: dict[str, TaskLosses] = {
        name: {
            "loss": train[f"{name}_loss"],
            "val_loss": validated.losses[name],
            "val_quality": validated.qualities[name].value,
            "val_quality_error": validated.qualities[name].error,
        }
        for name in weights
    }
    found: Losses = {
        "epoch": number,
        "loss": train["loss"],
        "val_loss": sum(weight * tasks[name]["val_loss"] for name, weight in weights.items()),
        "val_quality": validated.quality,
        "monitor": monitor,
        "regularisation": train["regularisation"],
        "tasks": tasks,
    }
    if "ranking" in train:
        found["ranking"] = train["ranking"]
    return found


def diagnose(
    ranker: Ranker, contract: Contract, statistics: Statistics, sample: Examples
) -> Diagnostics:
    """What the gates do at inference on a sample of the validation split."""
    found = Predictions(ranker, contract, statistics, sample)
    gates = {
        name: {
            "experts_per_row": found.used[name],
            "load": [float(share) for share in found.load[name]],
            "weights": [float(weight) for weight in found.weights[name]],
            **found.diagnostics[name],
        }
        for name in contract.tasks
    }
    return {"experts_per_row": found.experts_per_row, "gates": gates}


def log_epoch(logs: Logs, epoch: Epoch) -> None:
    """Write one epoch to TensorBoard."""
    tasks = epoch["tasks"].items()
    train = {"loss": epoch["loss"]} | {f"tasks/{name}": task["loss"] for name, task in tasks}
    validation: dict[str, Any] = {"loss": epoch["val_loss"]}
    validation |= {f"tasks/{name}": task["val_loss"] for name, task in tasks}
    qualities = {f"quality/{name}": task.get("val_quality") for name, task in tasks}
    qualities["quality"] = epoch.get("val_quality")
    validation |= {key: value for key, value in qualities.items() if value is not None}
    train |= {key: epoch[key] for key in ("regularisation", "rows_per_second")}
    validation["experts_per_row"] = epoch["experts_per_row"]
    for name, found in epoch["gates"].items():
        validation |= {f"gates/{name}/{key}": np.asarray(value) for key, value in found.items()}
    logs.write("train", epoch["epoch"], train)
    logs.write("validation", epoch["epoch"], validation)
