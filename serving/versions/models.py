"""All models of a server: finds the version for a call, and changes the set of models whole."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from multigate.serving.core.background import lower_priority
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, InvalidRequestError, NotServedError, WrongStateError
from multigate.serving.versions.loaded import Served
from multigate.serving.versions.manager import Manager, Record
from multigate.serving.versions.model_config import ModelConfig
from multigate.serving.versions.retriever import Retriever


class Models:
    """One manager per model."""

    def __init__(self, options: ServerOptions, metrics: ServerMetrics) -> None:
        self._options = options
        self._metrics = metrics
        self._lock = threading.Lock()  # of the dictionary
        self._changing = threading.Lock()  # one change at a time
        self._managers: dict[str, Manager[Any]] = {}
        self._stopping = threading.Event()

    def apply(self, configs: Sequence[ModelConfig]) -> None:
        """Serve these models and no others; a failure changes nothing.

        Raises:
            ServingError: a model cannot serve, or a label names a version that does not.
        """
        with self.change(configs):
            pass

    @contextmanager
    def change(self, configs: Sequence[ModelConfig]) -> Iterator[None]:
        """Serve these models and no others once the block has ended; its failure changes nothing.

        What is new is loaded, warmed and checked before anything is replaced, and calls of a
        model that goes end on it.  A model whose folder and policy stay keeps its versions.

        Raises:
            ServingError: a model cannot serve, or a label names a version that does not.
        """
        with self._changing:
            with self._lock:
                before = dict(self._managers)
            after: dict[str, Manager[Any]] = {}
            started: list[Manager[Any]] = []
            try:
                # Rankers first: a candidate model must have its ranker's schema.
                for config in sorted(configs, key=lambda config: bool(config.ranker)):
                    schema = after[config.ranker].schema() if config.ranker else ""
                    manager = before.get(config.name)
                    if manager is None or not manager.keeps(config, schema):
                        kind = Retriever if config.ranker else Served
                        manager = Manager(
                            config, kind, self._options, self._metrics, schema, self._stopping
                        )
                        started.append(manager)
                        _start(manager, aside=bool(before))
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
                    after[name].report()  # the old one may have had the last word
                else:
                    self._metrics.forget_model(name)
                    LOG.info("model %s is no longer served", name)

    def stop_loading(self) -> None:
        """Give up loads that are under way; what serves goes on."""
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        """Whether loads are given up."""
        return self._stopping.is_set()

    def close(self) -> None:
        """Unload everything when its calls have ended."""
        self.stop_loading()
        with self._changing:
            with self._lock:
                managers, self._managers = self._managers, {}
            for manager in managers.values():
                manager.close()

    @contextmanager
    def use(self, name: str, version: int | None = None, label: str = "") -> Iterator[Served]:
        """A ranker's version for one call; it stays open until the block ends.

        Args:
            name: the model's name as the caller gave it.
            version: a number, or None for the newest that serves.
            label: a version label.

        Raises:
            InvalidRequestError: no model name, or an unknown label.
            NotServedError: unknown model or version, or the version is not ready.
            WrongStateError: the model finds candidates, and does not rank.
        """
        with self._lock:
            manager = self._manager(name)
            if manager.ranker:
                raise WrongStateError(
                    f"model {name!r}: finds candidates for {manager.ranker!r} and does not rank; "
                    f"call Recommend of {manager.ranker!r}"
                )
            # Acquired under the lock, so that a reload cannot close the model in between.
            served = manager.acquire(version, label)
        try:
            yield served
        finally:
            served.servable.release()

    def candidates(self, ranker: str) -> Manager[Retriever]:
        """The candidate model of a ranker.

        Raises:
            WrongStateError: it has none.
        """
        with self._lock:
            for manager in self._managers.values():
                if manager.ranker == ranker:
                    return manager
        raise WrongStateError(
            f"model {ranker!r}: has no candidate model, so that there is nothing to recommend "
            "from; start the server with --candidates_base_path, or call Rank"
        )

    def records(self, name: str, version: int | None = None, label: str = "") -> dict[int, Record]:
        """State of a model's versions that were ever tried, or of one.

        Raises:
            InvalidRequestError: no model name, or an unknown label.
            NotServedError: unknown model or version.
        """
        with self._lock:
            manager = self._manager(name)
            version = manager.number(version, label)
        records = manager.records()
        if version is None:
            return records
        if version not in records:
            raise NotServedError(f"model {name!r}: version {version} is not known")
        return {version: records[version]}

    def known(self, name: str) -> dict[int, Record]:
        """State of a model's versions that were ever tried; none of an unknown model."""
        with self._lock:
            manager = self._managers.get(name)
        return manager.records() if manager is not None else {}

    def manager(self, name: str) -> Manager[Any]:
        """One model's manager.

        Raises:
            InvalidRequestError: no model name.
            NotServedError: unknown model.
        """
        with self._lock:
            return self._manager(name)

    def serving(self) -> dict[str, list[int]]:
        """Versions that serve, by model."""
        with self._lock:
            return {name: manager.serving() for name, manager in self._managers.items()}

    def _manager(self, name: str) -> Manager[Any]:
        if (manager := self._managers.get(name)) is not None:
            return manager
        names = ", ".join(repr(one) for one in self._managers) or "none"
        if not name:
            raise InvalidRequestError(f"model name: required; this server has {names}")
        raise NotServedError(f"model {name!r}: not served here; this server has {names}")


def _start(manager: Manager[Any], aside: bool) -> None:
    """Load a model; `aside` from others that serve meanwhile."""
    if not aside:
        manager.start()
        return
    with ThreadPoolExecutor(1, "load", lower_priority) as pool:
        pool.submit(manager.start).result()
