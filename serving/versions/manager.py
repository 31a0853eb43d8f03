"""Which versions of a model serve: polls a base path, loads what is new, swaps, unloads."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from multigate.configs.errors import ServingError
from multigate.serving.core.background import lower_priority
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, InvalidRequestError, NotServedError
from multigate.serving.versions.folders import GRAPH, Stamp, experts_per_row, scan, stamp
from multigate.serving.versions.loaded import Version
from multigate.serving.versions.model_config import ModelConfig
from multigate.serving.versions.saved_model import LoadError, Servable
from multigate.serving.versions.warmup import prepare

State = Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]


@dataclass
class Record:
    """What became of a version."""

    state: State
    error: str = ""
    """Why it does not serve."""
    tries: int = 0
    """Failed attempts with the files as they are."""
    failed_at: float = 0.0
    """On the monotonic clock."""
    files: Stamp = ()
    """Of the folder at the last attempt."""


V = TypeVar("V", bound=Version)


class Manager(Generic[V]):
    """Keeps the good versions of one model ready that its policy asks for."""

    def __init__(
        self,
        config: ModelConfig,
        kind: type[V],
        options: ServerOptions,
        metrics: ServerMetrics,
        schema: str = "",
        stopping: threading.Event | None = None,
    ) -> None:
        """Make a manager that has not started.

        Args:
            config: of the model.
            kind: what its versions are.
            options: of the server.
            metrics: where loads are counted.
            schema: of a candidate model, that of its ranker, which every version must have.
            stopping: once set, loads are given up.
        """
        self.name = config.name
        self.ranker = config.ranker
        """Of a candidate model, the ranker that it finds candidates for."""
        self.labels = dict(config.labels)
        """Version of each label; replaced whole by a reload."""
        self._policy = config.policy
        self._base = config.base_path
        self._kind = kind
        self._options = options
        self._metrics = metrics
        self._schema = schema
        self._lock = threading.Lock()
        self._serving: dict[int, V] = {}
        self._records: dict[int, Record] = {}
        self._stop = threading.Event()
        self._stopping = stopping or threading.Event()
        self._poller = threading.Thread(target=self._follow, name="versions", daemon=True)

    def start(self) -> None:
        """Load the versions of the policy that can serve, then follow the base path.

        A candidate model may start without any: popular items stand in until there is one.

        Raises:
            ServingError: there is no version, or none that can serve.
        """
        if self.ranker:
            self.poll()
            if not self._serving:
                LOG.warning(
                    "model %s: no version of %s serves yet; popular items stand in for it",
                    self.name,
                    self._base,
                )
            self._poller.start()
            return
        if not self._base.is_dir():
            raise ServingError(f"{self._base}: expected a folder of versions, there is none")
        if not scan(self._base):
            raise ServingError(
                f"{self._base}: expected numbered version folders such as {self._base / '1'}, "
                "there are none; export a model first"
            )
        self.poll()
        if not self._serving:
            reasons = "; ".join(record.error for record in self._records.values())
            if not reasons:
                reasons = f"its policy asks for {sorted(self._policy.specific)} only"
            raise ServingError(f"{self._base}: no version can serve: {reasons}")
        self._poller.start()

    def close(self) -> None:
        """Follow no longer, and unload everything when its calls have ended."""
        self._stop.set()
        if self._poller.is_alive():
            self._poller.join()
        with self._lock:
            served, self._serving = self._serving, {}
        for version, one in served.items():
            self._retire(version, one)

    def acquire(self, version: int | None = None, label: str = "") -> V:
        """A version for one call, which must release its servable.

        Args:
            version: a number, or None for the newest that serves.
            label: a version label.

        Raises:
            InvalidRequestError: an unknown label.
            NotServedError: unknown version, or it is not ready.
        """
        number = self.number(version, label)
        with self._lock:
            if number is None:
                number = max(self._serving, default=0)
            served = self._serving.get(number)
            # Acquired under the lock, so that a swap cannot retire it in between.
            if served is None or not served.servable.acquire():
                ready = ", ".join(map(str, sorted(self._serving))) or "none"
                raise NotServedError(
                    f"model {self.name!r}: version {number} does not serve; ready: {ready}"
                )
            return served

    def number(self, version: int | None, label: str) -> int | None:
        """The version that a call asks for; None is the newest.

        Raises:
            InvalidRequestError: an unknown label.
        """
        if not label:
            return version
        if label not in self.labels:
            known = ", ".join(map(repr, sorted(self.labels))) or "no labels"
            raise InvalidRequestError(f"version label {label!r}: model {self.name!r} has {known}")
        return self.labels[label]

    def keeps(self, config: ModelConfig, schema: str = "") -> bool:
        """Whether a configuration asks for what is here already, labels aside.

        Args:
            config: of the model of this name.
            schema: as when the manager was made.
        """
        wanted = (config.base_path, config.policy, config.ranker, schema)
        return wanted == (self._base, self._policy, self.ranker, self._schema)

    def schema(self) -> str:
        """Of the versions that serve, which share it; empty where none does."""
        with self._lock:
            return next((one.servable.schema for one in self._serving.values()), "")

    def check_labels(self, labels: Mapping[str, int]) -> None:
        """Refuse a label for a version that does not serve.

        Raises:
            ServingError: names the label.
        """
        ready = self.serving()
        for label, version in labels.items():
            if version not in ready:
                raise ServingError(
                    f"model {self.name!r}: label {label!r}: version {version} does not serve; "
                    f"ready: {', '.join(map(str, ready))}"
                )

    def serving(self) -> list[int]:
        """Versions that serve, lowest first."""
        with self._lock:
            return sorted(self._serving)

    def records(self) -> dict[int, Record]:
        """State of every version that was ever tried, by number."""
        with self._lock:
            return dict(sorted(self._records.items()))

    def poll(self) -> None:
        """Look at the base path once: load what is new, retire what is replaced."""
        wanted: set[int] = set()
        for version, folder in scan(self._base).items():
            if len(wanted) == self._policy.latest:
                break
            if self._policy.offers(version) and (
                version in self._serving
                or (self._due(version, folder) and self._load(version, folder))
            ):
                wanted.add(version)
        if not wanted:
            return  # nothing there can serve: what serves goes on
        with self._lock:
            replaced = {n: self._serving.pop(n) for n in list(self._serving) if n not in wanted}
        self.report()
        for number, served in replaced.items():
            self._retire(number, served)

    def report(self) -> None:
        """Let the model's gauges tell of the newest version that serves."""
        with self._lock:
            newest = self._serving.get(max(self._serving, default=0))
        if newest is not None:  # a candidate model may have none yet
            newest.report(self._metrics)

    def _follow(self) -> None:
        lower_priority()
        while not self._stop.wait(self._options.file_system_poll_wait_seconds):
            try:
                self.poll()
            except Exception:
                LOG.exception("looking for versions in %s failed; trying again", self._base)

    def _due(self, version: int, folder: Path) -> bool:
        """Whether a version that does not serve should be tried now."""
        record = self._records.get(version)
        if record is None or record.files != stamp(folder):
            return True
        waited = time.monotonic() - record.failed_at
        return (
            record.tries <= self._options.max_num_load_retries
            and waited >= self._options.load_retry_interval_micros / 1e6
        )

    def _load(self, version: int, folder: Path) -> bool:
        """Load, warm up and check a version off the serving path, then let it serve."""
        files = stamp(folder)
        before = self._records.get(version)
        tries = before.tries if before is not None and before.files == files else 0
        self._record(version, Record("LOADING"))
        started = time.monotonic()
        try:
            served = self._ready(version, folder)
        except Exception as error:
            message = str(error)
            if not isinstance(error, LoadError):  # a bug of ours, which keeps no other version out
                LOG.exception("model %s version %d cannot be loaded", self.name, version)
                message = f"{folder}: {error!r}"
            self._record(version, Record("END", message, tries + 1, time.monotonic(), files))
            self._metrics.loads.add(self.name, "failed")
            LOG.error("model %s version %d does not serve: %s", self.name, version, message)
            return False
        with self._lock:
            self._serving[version] = served
            self._records[version] = Record("AVAILABLE")
        self._metrics.loads.add(self.name, "loaded")
        LOG.info(
            "model %s version %d serves after %.1f s",
            self.name,
            version,
            time.monotonic() - started,
        )
        return True

    def _ready(self, version: int, folder: Path) -> V:
        options = self._options
        parallelism = (
            options.tensorflow_intra_op_parallelism,
            options.tensorflow_inter_op_parallelism,
        )
        try:
            servable = Servable.load(
                version, folder, parallelism, self._kind.layouts, self._refuse_when_stopping
            )
        except OSError as error:
            raise LoadError(f"{folder}: cannot be read: {error}") from None
        try:
            self._check_schema(folder, servable.schema)
            prepare(servable, folder, options.enable_model_warmup, self._refuse_when_stopping)
            served = self._kind.open(self.name, folder, servable, options, self._metrics)
            served.experts = experts_per_row(folder)
            served.exported_at = (folder / GRAPH).stat().st_mtime
            return served
        except (ServingError, OSError) as error:  # a folder may go while it is read
            servable.retire()
            raise LoadError(str(error)) from None

    def _refuse_when_stopping(self) -> None:
        """Give a load up between its steps, so that a server that stops need not wait for it."""
        if self._stop.is_set() or self._stopping.is_set():
            raise LoadError("given up: the server stops, or the model is no longer served")

    def _check_schema(self, folder: Path, schema: str) -> None:
        if self._schema:
            if schema != self._schema:
                raise LoadError(
                    f"{folder}: schema {schema} differs from {self._schema} of model "
                    f"{self.ranker!r}, which would rank its candidates; export both from the same "
                    "examples"
                )
            return
        serves = self.schema()
        if serves and schema != serves:
            raise LoadError(
                f"{folder}: schema {schema} differs from {serves} of the version that serves, "
                "whose clients would break; restart the server to change features or tasks"
            )

    def _retire(self, version: int, served: V) -> None:
        self._record(version, Record("UNLOADING"))

        def closed() -> None:
            served.close()
            self._record(version, Record("END"))

        served.servable.retire(closed)
        LOG.info("model %s version %d is retired", self.name, version)

    def _record(self, version: int, record: Record) -> None:
        with self._lock:
            self._records[version] = record
