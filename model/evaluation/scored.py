"""A model's scores of rows: of a checkpoint, or of an exported version as it is served."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ModelError, one_line
from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.model import CalibrationMethod
from multigate.model.checkpoints import checkpoint as checkpoints
from multigate.model.data.examples import Examples
from multigate.model.data.raw import raw_values
from multigate.model.data.rows import Rows
from multigate.model.evaluation.combine import combine
from multigate.model.evaluation.evaluate import Predictions
from multigate.runtime.errors import ModelRuntimeError
from multigate.runtime.signature import load_signatures

EXTRA, METRICS = "assets.extra", "metrics.json"
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
        smeared: tasks learnt on a logarithm whose scores are means in the label's own units
            (`export.smearing`); others' are near the median.
        calibration: how an export calibrated them (`export.calibration`), where that helped.
        positive_by: of a version, the tasks whose labels make an impression positive where
            negatives are downsampled, which it is corrected for; empty for all binary tasks. None
            of a checkpoint, which is not corrected.
        weight: column of the rows' weights by which an export fitted its corrections.
    """

    contract: Contract
    scores: dict[str, NDArray[np.float64]]
    combined: NDArray[np.float64]
    predictions: Predictions | None = None
    smeared: frozenset[str] = frozenset()
    calibration: CalibrationMethod = "none"
    positive_by: tuple[str, ...] | None = None
    weight: str | None = None

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


class Scorer(Protocol):
    """A loaded model that scores rows, positions left out, as when serving.

    Attributes:
        contract: the model's own.
    """

    contract: Contract

    def __call__(self, rows: Rows) -> Scored:
        """Score rows with the columns of the model's features.

        Raises:
            DataError: a column is missing.
        """

    def experts(self, rows: Rows) -> dict[str, NDArray[np.float64]] | None:
        """Mean weights (E,) of the experts over rows, by task; None where the model has no gates.

        Of one row these are its own weights.
        """


def load(folder: Path) -> Scorer:
    """Load the model of a checkpoint or of a version.

    Raises:
        ModelError: the folder is neither, or a file in it is damaged.
    """
    return _Version(folder) if is_version(folder) else _Checkpoint(folder)


def score(folder: Path, rows: Rows) -> Scored:
    """Score rows once; see `load` and `Scorer`."""
    return load(folder)(rows)


class _Checkpoint:
    """The Keras model of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._loaded = checkpoints.load(folder)
        self.contract = self._loaded.config.contract

    def __call__(self, rows: Rows) -> Scored:
        predictions = self._predict(rows)
        scores = {name: found.astype(np.float64) for name, found in predictions.scores.items()}
        return Scored(self.contract, scores, combine(self.contract, scores), predictions)

    def experts(self, rows: Rows) -> dict[str, NDArray[np.float64]] | None:
        return {name: np.asarray(w) for name, w in self._predict(rows).weights.items()}

    def _predict(self, rows: Rows) -> Predictions:
        rows.check_columns(list(self.contract.features))
        labels = np.full((len(rows), len(self.contract.tasks)), np.nan, np.float32)
        encoder = self._loaded.encoder
        return Predictions(
            self._loaded.ranker,
            self.contract,
            encoder.statistics,
            Examples(encoder(rows.table), labels),
        )


def _metrics(version: Path) -> dict[str, Any]:
    """What the export measured; empty where an older version has nothing.

    Raises:
        ModelError: the metrics cannot be read.
    """
    path = version / EXTRA / METRICS
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; export anew") from None
    return found


class _Version:
    """The signatures of a version that is served."""

    def __init__(self, folder: Path) -> None:
        self.contract = read_contract(folder).contract
        self._names = [name for name, _ in self.contract.of_side("user", "item", "context")]
        self._metrics = _metrics(folder)
        try:
            self._signatures = load_signatures(folder)
            self._score = self._signatures["serving_default"]
        except (ModelRuntimeError, KeyError) as error:
            reason = one_line(error)
            raise ModelError(f"{folder}: cannot be loaded: {reason}; export anew") from None

    def __call__(self, rows: Rows) -> Scored:
        rows.check_columns(self._names)
        parts: list[dict[str, Any]] = []
        for start in range(0, len(rows), _BATCH):
            raw = raw_values(self.contract, rows.table.slice(start, _BATCH), self._names)
            parts.append(self._score(raw))
        found = {
            name: np.concatenate([part[name] for part in parts]).astype(np.float64)
            for name in [*self.contract.tasks, "score"]
        }
        scores = {name: found[name] for name in self.contract.tasks}
        return Scored(
            self.contract,
            scores,
            found["score"],
            smeared=frozenset(self._metrics.get("smearing", {})),
            calibration=self._metrics.get("calibration", {"method": "none"}).get("method", "auto"),
            positive_by=tuple(self._metrics.get("negatives", {}).get("positive_by", ())),
            weight=self._metrics.get("row_weight"),
        )

    def experts(self, rows: Rows) -> dict[str, NDArray[np.float64]] | None:
        if "gates" not in self._signatures:  # an older version
            return None
        found = self._signatures["gates"](raw_values(self.contract, rows.table, self._names))
        return {name: found[name].mean(axis=0) for name in self.contract.tasks}
