"""The checkpoint folder: a trained ranker with all that is needed to use it again.

config.json           the whole configuration
contract.json         the contract with both fingerprints
statistics.json       of the training split
vocabularies/         as in the examples folder
weights.h5            of the best epoch
history.json          losses, qualities and gate diagnostics of each epoch; training's warnings
logs/                 TensorBoard
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from multigate.configs.config import Config, parse_stored
from multigate.configs.contract import Contract, FrozenContract, IdFeature, PositionFeature
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder, write_json
from multigate.configs.lineage import check_contract
from multigate.configs.sections.model import ModelConfig, Ranking
from multigate.model.checkpoints import weights
from multigate.model.checkpoints.history import Epoch
from multigate.model.data.encoding import Encoder
from multigate.model.ranker.ranker import Ranker
from multigate.model.ranker.wide import Counts

CONFIG = "config.json"
WEIGHTS = "weights.h5"
HISTORY = "history.json"
LOGS = "logs"


class Checkpoint(NamedTuple):
    """What a checkpoint folder holds, ready to use."""

    ranker: Ranker
    encoder: Encoder
    config: Config
    contract: FrozenContract


def create(folder: Path, config: Config, examples: Path) -> FrozenContract:
    """Write all files that are known before training.

    Args:
        folder: exists and is empty.
        config: of the run.
        examples: folder of examples; its vocabularies and statistics are copied.

    Returns:
        The configuration's contract with the examples' fingerprints.  Task weights may differ from
        those that the examples were built with.

    Raises:
        ModelError: the examples were built with other features, labels or tasks.
    """
    source, target = ExamplesFolder(examples), ExamplesFolder(folder)
    frozen = check_contract(config.contract, examples)
    frozen = frozen.model_copy(update={"contract": config.contract})
    write_json(folder / CONFIG, config.model_dump(mode="json"))
    write_json(target.contract, frozen.model_dump(mode="json"))
    shutil.copyfile(source.statistics, target.statistics)
    vocabularies = source.root / "vocabularies"
    if vocabularies.is_dir():
        shutil.copytree(vocabularies, target.root / "vocabularies")
    return frozen


def make_ranker(
    contract: Contract,
    config: ModelConfig,
    encoder: Encoder,
    seed: int,
    precision: str = "float32",
    id_dropout: Mapping[str, float] | None = None,
    ranking: Ranking | None = None,
) -> Ranker:
    """Make a ranker with tables that fit the encoder's vocabularies.

    The weights of a checkpoint are float32, whatever precision it was trained in.

    Args:
        contract: features and tasks.
        config: the architecture.
        encoder: of the contract.
        seed: of the initial weights and of all that is random in training.
        precision: see `Ranker`.
        id_dropout: see `Ranker`; for training.
        ranking: see `Ranker`; for training.
    """
    rows = table_rows(contract, encoder)
    counts = wide_counts(contract, encoder)
    statistics = encoder.statistics
    return Ranker(contract, config, rows, statistics, seed, precision, counts, id_dropout, ranking)


def wide_counts(contract: Contract, encoder: Encoder) -> Counts:
    """The features that have weights in the wide term, see `Wide`."""
    return {
        name: (1 + unknown, encoder.counts[contract.vocabulary_of(name)])
        for name, feature in contract.features.items()
        if isinstance(feature, IdFeature) and (unknown := contract.unknown_codes(name)) is not None
    }


def table_rows(contract: Contract, encoder: Encoder) -> dict[str, int]:
    """Number of rows of each embedding table, by the feature that owns it."""
    return {
        contract.vocabulary_of(name): encoder.rows(name)
        for name, feature in contract.features.items()
        if not isinstance(feature, PositionFeature)
        and getattr(feature, "scale", "buckets") == "buckets"
    }


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint folder.

    Raises:
        ModelError: the folder is not a checkpoint, or a file in it is damaged.
    """
    config, frozen = read_config(folder)
    encoder = Encoder.read(folder)
    ranker = make_ranker(config.contract, config.model, encoder, config.train.seed)
    weights.load(ranker, folder / WEIGHTS)
    return Checkpoint(ranker, encoder, config, frozen)


def read_config(folder: Path) -> tuple[Config, FrozenContract]:
    """Read a checkpoint's configuration and contract, without its weights.

    Raises:
        ModelError: the folder is not a checkpoint, or a file in it is damaged.
    """
    path = folder / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{path}: no such file; expected a folder that `multigate train` wrote"
        ) from None
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}; train again") from None
    config = parse_stored(values, str(path))
    return config, FrozenContract.read(ExamplesFolder(folder).contract)


def read_history(folder: Path) -> list[Epoch]:
    """The epochs of `history.json`, oldest first; empty where there is none.

    Raises:
        ModelError: the file is damaged.
    """
    path, found = folder / HISTORY, _read_history(folder)
    if found is None:
        return []
    history = found.get("epochs") if isinstance(found, dict) else None
    if not isinstance(history, list) or not all(isinstance(epoch, dict) for epoch in history):
        raise ModelError(f'{path}: expected {{"epochs": [...]}} as training writes; train again')
    return cast(list[Epoch], history)


def read_warnings(folder: Path) -> list[str]:
    """What training warned of, see `training.advice`; empty where there is no history.

    Raises:
        ModelError: the file is damaged.
    """
    found = _read_history(folder)
    return list(found.get("warnings", [])) if isinstance(found, dict) else []


def _read_history(folder: Path) -> Any:
    """The JSON of `history.json`; None where there is none."""
    path = folder / HISTORY
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}; train again") from None
