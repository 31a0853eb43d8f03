"""A model's scores of rows: of a checkpoint, or of an exported version as it is served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError
from multigate.configs.files import ExamplesFolder
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import Examples
from multigate.model.data.raw import raw_values
from multigate.model.data.rows import Rows
from multigate.model.evaluation.combine import combine
from multigate.model.evaluation.evaluate import Predictions

EXTRA = "assets.extra"
_BATCH = 4096


@dataclass(frozen=True)
class Scored:
    """A model's scores of N rows.

    Attributes:
        contract: the model's own.
        scores: by task, (N,) float64 in the label's own units.
        combined: (N,) float64.
        predictions: these scores with the gates' decisions; None of a version, which does not
            tell them.
    """

    contract: Contract
    scores: dict[str, NDArray[np.float64]]
    combined: NDArray[np.float64]
    predictions: Predictions | None = None

    def __post_init__(self) -> None:
        for name, values in (self.scores | {"score": self.combined}).items():
            wrong = int((~np.isfinite(values)).sum())
            if wrong:
                raise ModelError(
                    f"{name}: {wrong} of {len(values)} scores {'is' if wrong == 1 else 'are'} not "
                    "a finite number, expected none; look for extreme values among number "
                    "features and labels, and train anew"
                )


def is_version(folder: Path) -> bool:
    """Whether a folder is an exported version rather than a checkpoint.

    Raises:
        ModelError: it is neither.
    """
    if (folder / "saved_model.pb").is_file():
        return True
    if (folder / checkpoints.CONFIG).is_file():
        return False
    raise ModelError(
        f"{folder}: expected a checkpoint (with {checkpoints.CONFIG}) or an exported version (with "
        "saved_model.pb), found neither; give the folder that train or export wrote, with the "
        "version's number"
    )


def read_contract(folder: Path) -> FrozenContract:
    """The contract of a checkpoint or a version.

    Raises:
        ModelError: it is neither.
        DataError: the contract is missing or damaged.
    """
    extra = folder / EXTRA if is_version(folder) else folder
    return FrozenContract.read(ExamplesFolder(extra).contract)


def score(folder: Path, rows: Rows) -> Scored:
    """Score rows, positions left out, as when serving.

    Args:
        folder: of a checkpoint or of a version.
        rows: with the columns of the model's features.

    Raises:
        ModelError: the folder is neither, or a file in it is damaged.
        DataError: a column is missing.
    """
    return score_version(folder, rows) if is_version(folder) else score_checkpoint(folder, rows)


def score_checkpoint(folder: Path, rows: Rows) -> Scored:
    """Score rows with the Keras model, see `score`."""
    loaded = checkpoints.load(folder)
    contract = loaded.config.contract
    rows.check_columns(list(contract.features))
    labels = np.full((len(rows), len(contract.tasks)), np.nan, np.float32)
    predictions = Predictions(
        loaded.ranker,
        contract,
        loaded.encoder.statistics,
        Examples(loaded.encoder(rows.table), labels),
    )
    scores = {name: found.astype(np.float64) for name, found in predictions.scores.items()}
    return Scored(contract, scores, combine(contract, scores), predictions)


def score_version(folder: Path, rows: Rows) -> Scored:
    """Score rows through the signature that is served, see `score`."""
    import tensorflow as tf

    contract = read_contract(folder).contract
    names = [name for name, _ in contract.of_side("user", "item", "context")]
    rows.check_columns(names)
    try:
        # Keep the module: without it, its variables are freed.
        model = tf.saved_model.load(str(folder))
        signature = model.signatures["serving_default"]
    except (OSError, KeyError, tf.errors.OpError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{folder}: cannot be loaded: {reason}; export anew") from None
    parts: list[dict[str, Any]] = []
    for start in range(0, len(rows), _BATCH):
        raw = raw_values(contract, rows.table.slice(start, _BATCH), names)
        parts.append({name: value.numpy() for name, value in signature(**raw).items()})
    found = {
        name: np.concatenate([part[name] for part in parts]).astype(np.float64)
        for name in [*contract.tasks, "score"]
    }
    return Scored(contract, {name: found[name] for name in contract.tasks}, found["score"])
