"""Training: examples to a checkpoint, with early stopping on the validation split.

The same seed gives the same weights, bit for bit on a CPU: initial weights, noise and dropout
derive their seeds from it, and the order of the rows is a function of seed and epoch.
"""

import math
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

from configs.config import Config
from configs.contract import Contract
from configs.errors import ModelError
from configs.files import new_folder, write_json
from configs.statistics import Statistics
from model import backend, checkpoint, data, weights
from model.data import Examples, Feed
from model.encoding import Encoder
from model.evaluation import Predictions
from model.optimizers import Adam
from model.progress import Display
from model.ranker import Ranker
from model.tensorboard import Logs

_STEPS_AT_ONCE = 16  # that TensorFlow runs before it returns to Python
_VALIDATION_BATCH = 4096
_DIAGNOSED_ROWS = 16_384  # of the validation split, for the gates' diagnostics


def train(config: Config, examples: Path, out: Path, *, progress: bool = True) -> dict[str, Any]:
    """Train a ranker and write its checkpoint, whole or not at all.

    Args:
        config: contract, model and training.
        examples: folder of examples.
        out: the checkpoint's folder; must not exist. See `model.checkpoint` for what it holds.
        progress: whether to show a bar, or lines, on stderr.

    Returns:
        checkpoint, rows, epochs (trained), best_epoch, val_loss (of the best epoch), seconds.

    Raises:
        DataError: the examples cannot be read, or `out` exists.
        ModelError: the examples were built with another contract, or the loss is not finite.
    """
    started = time.perf_counter()
    with new_folder(out) as folder:
        checkpoint.start(folder, config, examples)
        encoder = Encoder.read(folder)
        rows = data.read_split(examples, "train", encoder)
        held_out = data.read_split(examples, "validation", encoder)
        ranker = checkpoint.make_ranker(config.contract, config.model, encoder, config.train.seed)
        history = fit(ranker, config, encoder.statistics, rows, held_out, folder, progress)
    best = min(history, key=lambda epoch: epoch["val_loss"])
    return {
        "checkpoint": str(out),
        "rows": len(rows),
        "epochs": len(history),
        "best_epoch": best["epoch"],
        "val_loss": best["val_loss"],
        "seconds": time.perf_counter() - started,
    }


def fit(
    ranker: Ranker,
    config: Config,
    statistics: Statistics,
    train: Examples,
    validation: Examples,
    folder: Path,
    progress: bool,
) -> list[dict[str, Any]]:
    """Train until the validation loss stops falling; leave the best epoch's weights in `ranker`.

    The validation loss is the weighted sum over tasks of each one's mean over its rows, without
    the gates' regularisation, dropout, noise and positions: the loss of the model as served.

    Args:
        ranker: fresh.
        config: of the run.
        statistics: of the training split.
        train: rows to train on.
        validation: rows to stop by.
        folder: where weights, history and logs are written after each epoch.
        progress: whether to show it.

    Returns:
        One entry per epoch: epoch (from 1), loss, val_loss, regularisation, tasks (name -> loss,
        val_loss), experts_per_row, gates (task -> diagnostics at inference), seconds (of training
        steps), rows_per_second.
    """
    options, contract = config.train, config.contract
    feed = _feed(train, contract, statistics, options.batch_size)
    held_out = _feed(validation, contract, statistics, _VALIDATION_BATCH)
    several = _STEPS_AT_ONCE if backend.name() == "tensorflow" else 1
    ranker.compile(
        optimizer=Adam(options.learning_rate, lazy=options.lazy_embeddings),
        steps_per_execution=min(several, feed.steps),
    )
    history: list[dict[str, Any]] = []
    best = math.inf
    logs = Logs(folder / checkpoint.LOGS)
    with Display(progress, options.epochs, feed.steps) as display:
        for number in range(1, options.epochs + 1):
            display.begin(number)
            started = time.perf_counter()
            order = data.shuffled(feed.rows, options.seed, number)
            train_metrics = _run_epoch(ranker, feed, order, number, display, config)
            seconds = time.perf_counter() - started
            val_metrics = ranker.evaluate(
                held_out.epoch(), steps=held_out.steps, verbose=0, return_dict=True
            )
            epoch = _entry(number, contract, train_metrics, val_metrics) | {
                "seconds": seconds,
                "rows_per_second": feed.rows / seconds,
                **_diagnose(ranker, contract, statistics, validation),
            }
            if not math.isfinite(epoch["val_loss"]):
                raise _not_finite(f"epoch {number}: the validation loss", config)
            history.append(epoch)
            improved = epoch["val_loss"] < best
            if improved:
                best = epoch["val_loss"]
                weights.save(ranker, folder / checkpoint.WEIGHTS)
            write_json(folder / checkpoint.HISTORY, {"epochs": history})
            _log(logs, epoch)
            display.line(epoch, improved)
            best_number = min(history, key=lambda e: e["val_loss"])["epoch"]
            if number - best_number >= options.patience:
                break
    logs.close()
    weights.load(ranker, folder / checkpoint.WEIGHTS)
    return history


def _feed(rows: Examples, contract: Contract, statistics: Statistics, size: int) -> Feed:
    return Feed(rows.features, data.targets(rows, contract, statistics), size)


def _run_epoch(
    ranker: Ranker, feed: Feed, order: np.ndarray, number: int, display: Display, config: Config
) -> dict[str, float]:
    """Run one epoch's steps; the means of the losses over it."""
    watch = _Watch(number, display, config)
    try:
        ranker.fit(
            feed.epoch(order),
            steps_per_epoch=feed.steps,
            epochs=1,
            verbose=0,
            shuffle=False,
            callbacks=[watch],
        )
    except Exception as error:
        # The gates' own check, in the graph (see `backend.check_finite`).
        if "expected finite values" in str(error):
            raise _not_finite(f"epoch {number}: a gate's input or logit", config) from error
        raise
    return {name: float(value) for name, value in ranker.get_metrics_result().items()}


class _Watch(keras.callbacks.Callback):
    """Shows the progress, and stops training as soon as the loss is not finite."""

    def __init__(self, number: int, display: Display, config: Config) -> None:
        super().__init__()
        self.number, self.display, self.config = number, display, config

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = float((logs or {})["loss"])
        if not math.isfinite(loss):
            where = f"epoch {self.number}, step {batch + 1}: the training loss"
            raise _not_finite(where, self.config)
        self.display.advance(batch + 1, loss)


def _not_finite(what: str, config: Config) -> ModelError:
    return ModelError(
        f"{what} is not finite. Lower train.learning_rate (now {config.train.learning_rate:g}) "
        "or the gates' regularisation, and look for extreme values among number features without "
        "scale: standardise and among regression labels without clip or transform: log1p"
    )


def _entry(
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


def _diagnose(
    ranker: Ranker, contract: Contract, statistics: Statistics, validation: Examples
) -> dict[str, Any]:
    """What the gates do at inference, on some validation rows spread over the split."""
    step = -(-len(validation) // _DIAGNOSED_ROWS)
    found = Predictions(ranker, contract, statistics, validation.take(slice(None, None, step)))
    gates = {
        name: {
            "experts_per_row": found.used[name],
            "load": [float(share) for share in found.load[name]],
            **found.diagnostics[name],
        }
        for name in contract.tasks
    }
    return {"experts_per_row": found.experts_per_row, "gates": gates}


def _log(logs: Logs, epoch: dict[str, Any]) -> None:
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
