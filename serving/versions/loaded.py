"""Loaded versions: what the manager needs of any, and what a ranker's has besides."""

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

from multigate.configs.contract import Contract
from multigate.serving.core.layout import Layout, ranker_layouts
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG
from multigate.serving.feature_store.backends import open_feature_store
from multigate.serving.feature_store.interface import OnlineFeatures
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.versions.batching import Batcher
from multigate.serving.versions.popular import Id, read_popular
from multigate.serving.versions.reference import Reference
from multigate.serving.versions.saved_model import Servable, Signature

_LARGE = 1 << 17
"""Bytes of a request that takes some milliseconds to read: about a thousand candidates."""


class Version(ABC):
    """A loaded version of a model, whatever the model is for."""

    def __init__(self, model: str, servable: Servable) -> None:
        self.model = model
        self.servable = servable
        self.loaded_at = time.time()
        self.exported_at = 0.0
        """When its file was written, in seconds since 1970."""
        self.experts: float | None = None
        """Experts per row, as export measured."""

    def report(self, metrics: ServerMetrics) -> None:
        """Let the gauges of the model tell of this version."""
        metrics.version.set(self.servable.version, self.model)
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
        servable: Servable,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Read what a version has beside its graph.

        Raises:
            ServingError: it is damaged; the version cannot serve.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what is held beside the graph."""


class Served(Version):
    """A ranker's version, with the queues of its signatures."""

    def __init__(
        self,
        model: str,
        servable: Servable,
        options: ServerOptions,
        metrics: ServerMetrics,
        store: OnlineFeatures | None = None,
        reference: Reference | None = None,
        popular: list[Id] | None = None,
    ) -> None:
        super().__init__(model, servable)
        self.store = store
        self.reference = reference
        """What the test split looked like, where the version says so."""
        self.popular = popular or []
        """Items that stand in where the candidate model has none to name."""
        self.max_rows = options.max_candidates
        """Of one call's inputs."""
        self.reader = RequestReader(servable.contract, options.max_candidates, store)
        self.batchers = {
            name: Batcher(
                signature,
                signature.layout,
                (model, name),
                metrics,
                max_rows=options.max_batch_rows,
                slots=options.batch_slots,
                max_queued=options.max_queued_calls,
            )
            for name, signature in servable.signatures.items()
            if signature.layout is not None
        }

    @staticmethod
    def layouts(contract: Contract) -> dict[str, Layout]:
        """`serving_default` and `rank`."""
        return ranker_layouts(contract)

    @classmethod
    def open(
        cls,
        model: str,
        folder: Path,
        servable: Servable,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Open the version's feature store, and read what else it carries."""
        popular = read_popular(folder, servable.contract)
        store = open_feature_store(
            model,
            folder,
            servable.contract,
            servable.schema,
            options.feature_store,
            options.feature_store_timeout_ms / 1e3,
            options.feature_clock,
            metrics,
        )
        return cls(model, servable, options, metrics, store, _reference(folder), popular)

    def signature(self, name: str) -> Signature | None:
        """A signature by name."""
        return self.servable.signatures.get(name)

    def apart(self, request: Any) -> bool:
        """Whether reading a request takes long enough to be done beside the loop."""
        remote = self.store is not None and self.store.remote
        return remote or bool(request.ByteSize() > _LARGE)

    def close(self) -> None:
        """Close the queues and the feature store."""
        for batcher in self.batchers.values():
            batcher.close()
        if self.store is not None:
            self.store.close()


def _reference(folder: Path) -> Reference | None:
    """What the test split looked like; a version serves without it as well."""
    try:
        return Reference.read(folder)
    except (OSError, ValueError) as error:
        LOG.warning("%s; nothing is compared with the test split", error)
        return None
