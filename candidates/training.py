"""Trains the two-tower model on pairs; stops early by recall on the validation split.

The same seed gives the same weights: bit for bit on a CPU, if TensorFlow's op determinism is on, as
in `multigate candidates train`.
"""

import json
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from multigate.candidates.batches import Batches, hidden_shares
from multigate.candidates.keras2 import tf
from multigate.candidates.pairs import (
    Catalogue,
    Pairs,
    catalogue_of_splits,
    positive_task,
    read_pairs,
)
from multigate.candidates.retrieval import Retrieval, recall_of_pairs
from multigate.configs import progress
from multigate.configs.config import Config, parse_stored
from multigate.configs.contract import (
    PRESENT,
    FrozenContract,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.configs.errors import ModelError, one_line
from multigate.configs.files import ExamplesFolder, new_folder, write_json
from multigate.configs.lineage import check_contract
from multigate.model.data.encoding import Encoder

CONFIG, WEIGHTS, HISTORY = "config.json", "weights.npz", "history.json"


class TrainingResult(TypedDict):
    """What `train` returns."""

    checkpoint: str
    pairs: int
    items: int
    epochs: int
    best_epoch: int
    recall: float
    """On the validation split."""
    seconds: float


class Epoch(TypedDict):
    """One epoch in `history.json`."""

    epoch: int
    loss: float
    recall: float
    """On the validation split."""
    seconds: float


def train(config: Config, examples: Path, out: Path, *, show: Any = print) -> TrainingResult:
    """Train a two-tower model and write its checkpoint, whole or not at all.

    Args:
        config: contract and section `candidates`.
        examples: folder of examples.
        out: the checkpoint's folder; must not exist.
        show: called with a line per epoch.

    Raises:
        DataError: the examples cannot be read or have no positives, or `out` exists.
        ModelError: the examples were built with another contract.
    """
    started = time.perf_counter()
    task = positive_task(config)
    with new_folder(out) as folder:
        _write_inputs(folder, config, examples)
        encoder = Encoder.read(folder)
        pairs = read_pairs(examples, "train", encoder, task)
        held_out = read_pairs(examples, "validation", encoder, task)
        items = catalogue_of_splits(examples, encoder, ("train",))
        model = make(encoder, config)
        history = _fit(model, pairs, held_out, items, folder, show)
        write_json(folder / HISTORY, {"epochs": history})
    best = max(history, key=lambda epoch: epoch["recall"])
    return {
        "checkpoint": str(out),
        "pairs": len(pairs),
        "items": len(items),
        "epochs": len(history),
        "best_epoch": best["epoch"],
        "recall": best["recall"],
        "seconds": time.perf_counter() - started,
    }


def make(encoder: Encoder, config: Config) -> Retrieval:
    """A new model with initial weights."""
    tf.keras.utils.set_random_seed(config.candidates.seed)
    model = Retrieval(encoder, config.candidates)
    row = _empty_row(encoder)  # a first call creates the variables
    model.user_tower(row)
    model.item_tower(row)
    return model


def load(folder: Path) -> tuple[Retrieval, Config, FrozenContract]:
    """Read a checkpoint.

    Raises:
        ModelError: the folder is not a checkpoint of this package, or a file in it is damaged.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        # NumPy leaves a damaged file open that it has opened itself.
        with (folder / WEIGHTS).open("rb") as content, np.load(content) as file:
            arrays = dict(file)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        reason = one_line(error)
        raise ModelError(
            f"{folder}: {reason}; expected a folder that `multigate candidates train` wrote"
        ) from None
    config = parse_stored(values, str(folder / CONFIG))
    frozen = FrozenContract.read(ExamplesFolder(folder).contract)
    encoder = Encoder.read(folder)
    model = make(encoder, config)
    for name, variable in _variables(model).items():
        if name not in arrays or arrays[name].shape != tuple(variable.shape):
            raise ModelError(f"{folder / WEIGHTS}: {name} is not as expected; train again")
        variable.assign(arrays[name])
    return model, config, frozen


def _write_inputs(folder: Path, config: Config, examples: Path) -> None:
    """Write what is known before training: configuration, contract, statistics, vocabularies."""
    source, target = ExamplesFolder(examples), ExamplesFolder(folder)
    frozen = check_contract(config.contract, examples)
    write_json(folder / CONFIG, config.model_dump(mode="json"))
    write_json(target.contract, frozen.model_dump(mode="json"))
    shutil.copyfile(source.statistics, target.statistics)
    vocabularies = source.root / "vocabularies"
    if vocabularies.is_dir():
        shutil.copytree(vocabularies, target.root / "vocabularies")


def _fit(
    model: Retrieval, pairs: Pairs, held_out: Pairs, items: Catalogue, folder: Path, show: Any
) -> list[Epoch]:
    """Train until the validation recall stops rising; write the best epoch's weights."""
    config = model.config
    model.compile(optimizer=tf.keras.optimizers.Adam(config.learning_rate))
    if len(items) <= config.softmax_items:
        model.against(items)
    hidden = hidden_shares(model.encoder.contract, config, held_out)
    batches = Batches(pairs, items, config, hidden)
    history: list[Epoch] = []
    k = config.recall_at
    epochs = range(1, config.epochs + 1)
    for number in progress.track(epochs, "train", len(epochs), "epochs"):
        started = time.perf_counter()
        loss = model.fit(batches.epoch(number), verbose=0).history["loss"][0]
        if not np.isfinite(loss):
            raise ModelError(
                f"epoch {number}: the loss is not finite; lower candidates.learning_rate (now "
                f"{config.learning_rate:g}) or raise candidates.temperature"
            )
        recall = recall_of_pairs(model, items, held_out, (k,))[k]
        epoch: Epoch = {
            "epoch": number,
            "loss": float(loss),
            "recall": recall,
            "seconds": time.perf_counter() - started,
        }
        history.append(epoch)
        best = max(history, key=lambda one: one["recall"])
        if best is epoch:
            arrays = {name: v.numpy() for name, v in _variables(model).items()}
            np.savez(folder / WEIGHTS, **arrays)
        show(
            f"epoch {number}: loss {loss:.4f}, validation recall@{k} {recall:.4f}, "
            f"{epoch['seconds']:.0f} s"
        )
        if number - best["epoch"] >= config.patience:
            break
    return history


def _empty_row(encoder: Encoder) -> dict[str, np.ndarray]:
    """Encoded features of one row in which every value is missing."""
    contract = encoder.contract
    row: dict[str, np.ndarray] = {}
    for name, feature in contract.features.items():
        if isinstance(feature, IdListFeature | TextFeature):
            row[name] = np.zeros((1, feature.as_list.max_length), np.int32)
        elif isinstance(feature, VectorFeature):
            row[name] = np.zeros((1, feature.size), np.float32)
        elif isinstance(feature, NumberFeature) and feature.scale != "buckets":
            row[name] = np.zeros(1, np.float32)
        else:
            row[name] = np.zeros(1, np.int32)
        row[name + PRESENT] = np.zeros(1, np.float32)
    return row


def _variables(model: Retrieval) -> dict[str, Any]:
    """The weights by name."""
    found = {f"tables/{name}": table for name, table in model.tables.tables.items()}
    for tower in (model.user_tower, model.item_tower):
        for place, layer in enumerate(tower.layers):
            found[f"{tower.name}/{place}/kernel"] = layer.kernel
            found[f"{tower.name}/{place}/bias"] = layer.bias
        found[f"{tower.name}/all/kernel"] = tower.all.kernel
        found[f"{tower.name}/all/bias"] = tower.all.bias
    return found
