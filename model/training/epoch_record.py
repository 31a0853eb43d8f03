"""What is recorded of each epoch, in `history.json` and for TensorBoard."""

from typing import Any

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.statistics import Statistics
from multigate.model.data.examples import Examples
from multigate.model.evaluation.evaluate import Predictions
from multigate.model.ranker.ranker import Ranker
from multigate.model.training.tensorboard import Logs


def entry(
    number: int, contract: Contract, train: dict[str, float], validation: dict[str, float]
) -> dict[str, Any]:
    """The history's losses of one epoch."""
    tasks = {
        name: {"loss": train[f"{name}_loss"], "val_loss": float(validation[f"{name}_loss"])}
        for name in contract.tasks
    }
    return {
        "epoch": number,
        "loss": train["loss"],
        "val_loss": sum(contract.tasks[name].weight * tasks[name]["val_loss"] for name in tasks),
        "regularisation": train["regularisation"],
        "tasks": tasks,
    }


def diagnose(
    ranker: Ranker, contract: Contract, statistics: Statistics, sample: Examples
) -> dict[str, Any]:
    """What the gates do at inference, on some validation rows spread over the split."""
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


def log(logs: Logs, epoch: dict[str, Any]) -> None:
    """Write one epoch to TensorBoard."""
    for split, key in (("train", "loss"), ("validation", "val_loss")):
        values = {"loss": epoch[key]}
        values |= {f"tasks/{name}": task[key] for name, task in epoch["tasks"].items()}
        logs.write(split, epoch["epoch"], values)
    logs.write(
        "train",
        epoch["epoch"],
        {"regularisation": epoch["regularisation"], "rows_per_second": epoch["rows_per_second"]},
    )
    values = {"experts_per_row": epoch["experts_per_row"]}
    for task, found in epoch["gates"].items():
        values |= {f"gates/{task}/{name}": np.asarray(value) for name, value in found.items()}
    logs.write("validation", epoch["epoch"], values)
