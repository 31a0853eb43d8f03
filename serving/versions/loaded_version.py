"""The base class of loaded versions: what the version manager needs, whatever the model is for."""

import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from multigate.configs.contract import Contract
from multigate.serving.core.layout import Layout
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.versions.saved_model import SavedModel


class LoadedVersion(ABC):
    """A version of a model that is loaded and can answer calls."""

    def __init__(self, model: str, saved_model: SavedModel) -> None:
        self.model = model
        """Name of the model."""
        self.saved_model = saved_model
        self.folder: Path | None = None
        """Where its files lie; None where it has none."""
        self.loaded_at = time.time()
        """Seconds since 1970."""
        self.exported_at = 0.0
        """When its file was written, in seconds since 1970."""
        self.experts: float | None = None
        """Experts evaluated per row, as measured at export."""
        self.files = ExitStack()
        """Closed with the version: until then its files stay, where they are a copy."""

    @property
    def number(self) -> int:
        """The version's number, which is its folder's name."""
        return self.saved_model.version

    @property
    def contract(self) -> Contract:
        """The contract that the version was trained for."""
        return self.saved_model.contract

    @property
    def schema(self) -> str:
        """The contract's fingerprint."""
        return self.saved_model.schema

    def report(self, metrics: ServerMetrics) -> None:
        """Set the model's gauges to this version."""
        metrics.version.set(self.number, self.model)
        metrics.loaded_at.set(self.loaded_at, self.model)
        metrics.exported_at.set(self.exported_at, self.model)
        if self.experts is None:
            metrics.experts.forget(self.model)
        else:
            metrics.experts.set(self.experts, self.model)

    @staticmethod
    @abstractmethod
    def layouts(contract: Contract) -> dict[str, Layout]:
        """The signatures that such a version must have, by name."""

    @classmethod
    @abstractmethod
    def open(
        cls,
        model: str,
        folder: Path,
        saved_model: SavedModel,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Make a version from its loaded graph and the other files of its folder.

        Raises:
            ServingError: a file is damaged; the version cannot serve.
        """

    @abstractmethod
    def close(self) -> None:
        """Release what the version holds beside the graph."""
