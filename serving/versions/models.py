"""All models of a server: finds the version for a call, and replaces the set of models."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from multigate.configs.version_folders import Trial
from multigate.serving.core.background import lower_priority
from multigate.serving.core.logs import say
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, InvalidRequestError, NotServedError, WrongStateError
from multigate.serving.versions.candidate_version import CandidateVersion
from multigate.serving.versions.manager import VersionManager, VersionRecord
from multigate.serving.versions.model_config import ModelConfig
from multigate.serving.versions.ranker_version import RankerVersion


class Models:
    """The models of a server, each with a version manager."""

    def __init__(self, options: ServerOptions, metrics: ServerMetrics) -> None:
        self._options = options
        self._metrics = metrics
        self._lock = threading.Lock()  # guards the dictionary
        self._changing = threading.Lock()  # held during a change: one at a time
        self._managers: dict[str, VersionManager[Any]] = {}
        self._stopping = threading.Event()

    def apply(self, configs: Sequence[ModelConfig]) -> None:
        """Replace the models by these; a failure changes nothing.

        Raises:
            ServingError: a model cannot be loaded, or a label's version is not available.
        """
        with self.change(configs):
            pass

    @contextmanager
    def change(self, configs: Sequence[ModelConfig]) -> Iterator[None]:
        """Replace the models by these at the end of the block; a failure in it changes nothing.

        New models are loaded, checked and warmed up before the block.  Calls in flight finish on
        the model that they began on.  A model keeps its versions if its base path and policy stay
        the same.

        Raises:
            ServingError: a model cannot be loaded, or a label's version is not available.
        """
        with self._changing:
            with self._lock:
                before = dict(self._managers)
            after: dict[str, VersionManager[Any]] = {}
            started: list[VersionManager[Any]] = []
            try:
                # Rankers first: a candidate model must have its ranker's schema.
                for config in sorted(configs, key=lambda config: bool(config.ranker)):
                    schema = after[config.ranker].schema() if config.ranker else ""
                    manager = before.get(config.name)
                    if manager is None or not manager.matches(config, schema):
                        kind = CandidateVersion if config.ranker else RankerVersion
                        manager = VersionManager(
                            config, kind, self._options, self._metrics, schema, self._stopping
                        )
                        started.append(manager)
                        _start(manager, in_background=bool(before))
                    manager.check_labels(config.labels)
                    after[config.name] = manager
                yield
            except BaseException:
                for manager in started:
                    manager.close()
                    if manager.name not in before:
                        self._metrics.forget_model(manager.name)
                raise
            with self._lock:
                self._managers = after
                for config in configs:
                    after[config.name].labels = dict(config.labels)
            for name, manager in before.items():
                if after.get(name) is manager:
                    continue
                manager.close()
                if name in after:
                    after[name].report()  # the old manager may have set the gauges last
                else:
                    self._metrics.forget_model(name)
                    LOG.info("model %s is removed", name)

    def stop_loading(self) -> None:
        """Cancel loads in progress; available versions go on."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """Whether loads are cancelled."""
        return self._stopping.is_set()

    def close(self) -> None:
        """Unload every model once its calls have ended."""
        self.stop_loading()
        with self._changing:
            with self._lock:
                managers, self._managers = self._managers, {}
            for manager in managers.values():
                manager.close()

    @contextmanager
    def use(
        self, name: str, version: int | None = None, label: str = ""
    ) -> Iterator[RankerVersion]:
        """A ranker's version for one call, which its log line names; stays loaded in the block.

        Args:
            name: the model's name as the caller gave it.
            version: a number, or None for the newest available one.
            label: a version label.

        Raises:
            InvalidRequestError: no model name, or an unknown label.
            NotServedError: unknown model, or the version is not available.
            WrongStateError: the model is a candidate model, which does not rank.
        """
        with self._lock:
            manager = self._manager(name)
            if manager.ranker:
                raise WrongStateError(
                    f"model {name!r}: is the candidate model of {manager.ranker!r}, not a ranker; "
                    f"call Recommend of {manager.ranker!r}"
                )
            # Acquired under the lock, so that a reload cannot close the model in between.
            loaded: RankerVersion = manager.acquire(version, label)
        say(model=loaded.model, version=loaded.number)
        try:
            yield loaded
        finally:
            loaded.saved_model.release()

    def trial(self, name: str) -> tuple[Trial, RankerVersion] | None:
        """The trial of a ranker and its version, which is loaded; None where there is none."""
        with self._lock:
            manager = self._managers.get(name)
        return None if manager is None or manager.ranker else manager.trial()

    def candidates(self, ranker: str) -> VersionManager[CandidateVersion]:
        """The candidate model of a ranker.

        Raises:
            WrongStateError: the ranker has no candidate model.
        """
        with self._lock:
            for manager in self._managers.values():
                if manager.ranker == ranker:
                    return manager
        raise WrongStateError(
            f"model {ranker!r}: has no candidate model, which Recommend needs; start the server "
            "with --candidates_base_path, or call Rank"
        )

    def records(
        self, name: str, version: int | None = None, label: str = ""
    ) -> dict[int, VersionRecord]:
        """State of one version, or of all versions of a model that were ever tried.

        Raises:
            InvalidRequestError: no model name, or an unknown label.
            NotServedError: unknown model or version.
        """
        with self._lock:
            manager = self._manager(name)
            version = manager.resolve(version, label)
        records = manager.records()
        if version is None:
            return records
        if version not in records:
            raise NotServedError(f"model {name!r}: version {version} was never loaded or tried")
        return {version: records[version]}

    def known_records(self, name: str) -> dict[int, VersionRecord]:
        """As `records` for all versions, but empty for an unknown model."""
        with self._lock:
            manager = self._managers.get(name)
        return manager.records() if manager is not None else {}

    def manager(self, name: str) -> VersionManager[Any]:
        """The version manager of a model.

        Raises:
            InvalidRequestError: no model name.
            NotServedError: unknown model.
        """
        with self._lock:
            return self._manager(name)

    def managers(self) -> dict[str, VersionManager[Any]]:
        """The version managers of all models, by name."""
        with self._lock:
            return dict(self._managers)

    def available_versions(self) -> dict[str, list[int]]:
        """Numbers of the versions that answer calls, by model."""
        with self._lock:
            return {name: manager.available_versions() for name, manager in self._managers.items()}

    def _manager(self, name: str) -> VersionManager[Any]:
        if (manager := self._managers.get(name)) is not None:
            return manager
        names = ", ".join(map(repr, self._managers)) or "none"
        if not name:
            raise InvalidRequestError(f"model name: required; this server has {names}")
        raise NotServedError(f"model {name!r}: unknown; this server has {names}")


def _start(manager: VersionManager[Any], in_background: bool) -> None:
    """Load a model; in a thread of low priority where other models answer calls meanwhile."""
    if not in_background:
        manager.start()
        return
    with ThreadPoolExecutor(1, "load", lower_priority) as pool:
        pool.submit(manager.start).result()
