"""A loaded version of a ranker: its batchers, request reader and feature store."""

from pathlib import Path
from typing import Any, Self

from multigate.configs.contract import Contract
from multigate.runtime.cores import cores
from multigate.serving.core.layout import Layout, ranker_layouts
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG
from multigate.serving.feature_store.backends import open_feature_store
from multigate.serving.feature_store.online_features import OnlineFeatures
from multigate.serving.request.rank_request import RequestReader
from multigate.serving.versions.batching import Batcher, turns_on
from multigate.serving.versions.loaded_version import LoadedVersion
from multigate.serving.versions.popular import ItemId, read_popular
from multigate.serving.versions.reference import Reference
from multigate.serving.versions.run_slots import RunSlots
from multigate.serving.versions.saved_model import SavedModel, ServedSignature

_LARGE = 1 << 17
"""Bytes.  Reading a larger request takes milliseconds; this is about a thousand candidates."""


class RankerVersion(LoadedVersion):
    """A loaded version of a ranker, with a batcher for each signature."""

    def __init__(
        self,
        model: str,
        saved_model: SavedModel,
        options: ServerOptions,
        metrics: ServerMetrics,
        store: OnlineFeatures | None = None,
        reference: Reference | None = None,
        popular: list[ItemId] | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__(model, saved_model)
        self.folder = folder
        self._metrics = metrics
        self.store = store
        self.reference = reference
        """The test split's statistics, which drift is measured against; None where it has none."""
        self.popular = popular or []
        """Items to recommend where no version of the candidate model is available."""
        self.max_rows = options.max_candidates
        """Most rows of one call."""
        self.reader = RequestReader(saved_model.contract, options.max_candidates, store)
        turns = turns_on(cores() / options.workers)
        self.batchers = {
            name: Batcher(
                signature,
                signature.layout,
                (model, name),
                metrics,
                max_rows=options.max_batch_rows,
                slots=options.batch_slots,
                max_queued=options.max_queued_calls,
                turns=turns,
            )
            for name, signature in saved_model.signatures.items()
            if signature.layout is not None
        }
        self.run_slots = RunSlots(model, options.batch_slots, options.max_queued_calls)
        """For the other signatures."""

    @staticmethod
    def layouts(contract: Contract) -> dict[str, Layout]:
        """`serving_default` and `rank`."""
        return ranker_layouts(contract)

    @classmethod
    def open(
        cls,
        model: str,
        folder: Path,
        saved_model: SavedModel,
        options: ServerOptions,
        metrics: ServerMetrics,
    ) -> Self:
        """Open the version's feature store, and read its popular items and drift reference."""
        popular = read_popular(folder, saved_model.contract)
        store = open_feature_store(
            model,
            folder,
            saved_model.contract,
            saved_model.schema,
            options.feature_store,
            options.feature_store_timeout_ms / 1e3,
            options.feature_clock,
            metrics,
        )
        return cls(model, saved_model, options, metrics, store, _reference(folder), popular, folder)

    def signature(self, name: str) -> ServedSignature | None:
        """A signature by name."""
        return self.saved_model.signatures.get(name)

    def is_slow_to_read(self, request: Any) -> bool:
        """Whether reading this request would block the event loop for too long."""
        remote = self.store is not None and self.store.remote
        return remote or bool(request.ByteSize() > _LARGE)

    def close(self) -> None:
        """Close the feature store, whose age no longer matters."""
        if self.store is not None:
            self.store.close()
        self._metrics.features_at.forget(self.model, str(self.number))


def _reference(folder: Path) -> Reference | None:
    """The version's drift reference; a version serves without it as well."""
    try:
        return Reference.read(folder)
    except (OSError, ValueError) as error:
        LOG.warning("%s; drift is not measured", error)
        return None
