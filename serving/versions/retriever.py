"""A candidate model's version: finds the items that a ranker then ranks."""

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
from multigate.serving.versions.loaded import Version
from multigate.serving.versions.popular import Id, read_popular
from multigate.serving.versions.saved_model import Servable


class Retriever(Version):
    """A loaded candidate model."""

    def __init__(self, model: str, servable: Servable, popular: list[Id]) -> None:
        super().__init__(model, servable)
        self.popular = popular
        """Items that stand in where retrieval fails."""

    @staticmethod
    def layouts(contract: Contract) -> dict[str, Layout]:
        """`retrieve`."""
        return {RETRIEVE: retrieve_layout(contract)}

    @classmethod
    def open(
        cls,
        model: str,
        folder: Path,
        servable: Servable,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Read the popular items, of which every catalogue has at least one."""
        popular = read_popular(folder, servable.contract)
        if not popular:
            raise ServingError(
                f"{folder / POPULAR}: expected at least one item, received none: the catalogue is "
                "empty; export from examples that name items"
            )
        return cls(model, servable, popular)

    def close(self) -> None:
        """Nothing is held beside the graph."""

    def find(self, user: Arrays, count: int) -> tuple[list[Id], bool]:
        """The best items for one user.

        Args:
            user: inputs of the ranker's `rank` signature for its user and context features, M = 1.
            count: how many; fewer come where the catalogue has no more.

        Returns:
            Raw ids, best first, and whether anything is known of the user: an id of the
            vocabulary, or an item in a history.
        """
        signature = self.servable.signatures[RETRIEVE]
        inputs = {name: user[name] for name in signature.inputs if name != COUNT}
        outputs = signature(inputs | {COUNT: np.array(count, np.int32)})
        return outputs[ITEMS][0].tolist(), bool(outputs[KNOWN][0])
