"""A loaded version of a candidate model: finds the items that a ranker then ranks."""

from pathlib import Path
from typing import Self

import numpy as np

from multigate.configs.contract import Contract
from multigate.configs.errors import ServingError
from multigate.serving.core.layout import (
    COUNT,
    ITEMS,
    KNOWN,
    RETRIEVE,
    Arrays,
    Layout,
    retrieve_layout,
)
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.versions.folders import POPULAR
from multigate.serving.versions.loaded_version import LoadedVersion
from multigate.serving.versions.popular import ItemId, read_popular
from multigate.serving.versions.saved_model import SavedModel


class CandidateVersion(LoadedVersion):
    """A loaded version of a candidate model."""

    def __init__(self, model: str, saved_model: SavedModel, popular: list[ItemId]) -> None:
        super().__init__(model, saved_model)
        self.popular = popular
        """Items to recommend where retrieval fails."""

    @staticmethod
    def layouts(contract: Contract) -> dict[str, Layout]:
        """`retrieve`."""
        return {RETRIEVE: retrieve_layout(contract)}

    @classmethod
    def open(
        cls,
        model: str,
        folder: Path,
        saved_model: SavedModel,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Read the popular items; a version without any has an empty catalogue and is refused."""
        popular = read_popular(folder, saved_model.contract)
        if not popular:
            raise ServingError(
                f"{folder / POPULAR}: expected at least one item, received none: the catalogue is "
                "empty; export from examples that name items"
            )
        return cls(model, saved_model, popular)

    def close(self) -> None:
        """Nothing to release beside the graph."""

    def retrieve(self, user: Arrays, count: int) -> tuple[list[ItemId], bool]:
        """The best items for one user.

        Args:
            user: inputs of the ranker's `rank` signature for its user and context features, M = 1.
            count: how many; a smaller catalogue gives fewer.

        Returns:
            Raw ids, best first, and whether the model knows the user: the id is in the vocabulary,
            or a history has an item.
        """
        signature = self.saved_model.signatures[RETRIEVE]
        inputs = {name: user[name] for name in signature.inputs if name != COUNT}
        outputs = signature(inputs | {COUNT: np.array(count, np.int32)})
        return outputs[ITEMS][0].tolist(), bool(outputs[KNOWN][0])
