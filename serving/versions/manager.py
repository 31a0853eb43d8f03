"""Keeps one model's versions up to date: polls a base path, loads, swaps and unloads versions.

TensorFlow Serving's manager does this in C++; its Python package holds the messages alone.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from multigate.configs.difference import difference
from multigate.configs.errors import ServingError
from multigate.configs.files import in_use
from multigate.configs.storage import Address
from multigate.configs.version_folders import Trial, read_trial
from multigate.runtime.memory import FreedMemory
from multigate.serving.core.background import SupervisedThread, lower_priority
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import LOG, InvalidRequestError, NotServedError
from multigate.serving.mirror.mirror import Mirror
from multigate.serving.versions.folders import (
    GRAPH,
    Stamp,
    experts_per_row,
    require_versions,
    scan,
    stamp,
)
from multigate.serving.versions.loaded_version import LoadedVersion
from multigate.serving.versions.model_config import ModelConfig
from multigate.serving.versions.saved_model import LoadError, SavedModel
from multigate.serving.versions.warmup import warm_up

State = Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]
KEPT_GONE = 16
"""Versions that have ended whose states and metrics stay: a rollback may bring one back, and some
minutes may pass until Prometheus has read the last calls of the others."""


@dataclass
class VersionRecord:
    """State of a version, and its failed loads."""

    state: State
    error: str = ""
    """Why it could not be loaded."""
    tries: int = 0
    """Failed loads since the files last changed."""
    failed_at: float = 0.0
    """Monotonic seconds."""
    files: Stamp = ()
    """The folder's files at the last failed load."""


V = TypeVar("V", bound=LoadedVersion)


class VersionManager(Generic[V]):
    """Loads and unloads the versions of one model, as its policy asks."""

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
            kind: class of its versions.
            options: of the server.
            metrics: counts the loads.
            schema: for a candidate model, its ranker's schema, which every version must have.
            stopping: once set, loads are cancelled.
        """
        self.name = config.name
        self.ranker = config.ranker
        """For a candidate model, the name of its ranker; empty for a ranker."""
        self.labels = dict(config.labels)
        """Version of each label; a reload replaces the dictionary."""
        self._policy = config.policy
        self.base_path = config.base_path
        self._mirror: Mirror | None = None
        if isinstance(config.base_path, Address):
            self._mirror = Mirror(
                config.name,
                config.base_path,
                config.policy.name(),
                config.policy.latest,
                config.policy.offers,
                options.store_poll_wait_seconds,
                metrics,
            )
            self._base = self._mirror.folder
        else:
            self._base = config.base_path
        self._kind = kind
        self._options = options
        self._metrics = metrics
        self._schema = schema
        self._lock = threading.Lock()
        self._loaded: dict[int, V] = {}
        self._records: dict[int, VersionRecord] = {}
        self._trial: Trial | None = None
        """Of a version that is loaded, or about to be; it is never the newest one."""
        self._damaged = ""
        """Why the settings of a trial could not be read, once that is logged."""
        self._called: set[str] = set()
        """Signatures that the next version is warmed up in."""
        self._freed = FreedMemory()
        self._stop = threading.Event()
        self._stopping = stopping or threading.Event()
        self._poller = SupervisedThread("versions", self._poll_until_closed, metrics.thread_failed)

    def start(self) -> None:
        """Load the policy's versions, then poll the base path.

        A candidate model may start without any version: until one is loaded, Recommend answers with
        popular items.

        Raises:
            ServingError: a ranker has no version, or none that can be loaded.
        """
        if self._mirror is not None:
            self._mirror.start(required=not self.ranker)
        if self.ranker:
            self.poll()
            if not self._loaded:
                LOG.warning(
                    "model %s: no version in %s is available yet; popular items are recommended",
                    self.name,
                    self._base,
                )
            self._poller.start()
            return
        require_versions(self._base)
        self.poll()
        if not self._loaded:
            reasons = "; ".join(record.error for record in self._records.values())
            if not reasons:
                reasons = f"its policy allows only {sorted(self._policy.specific)}"
            raise ServingError(f"{self._base}: no version can be loaded: {reasons}")
        self._poller.start()

    def close(self) -> None:
        """Stop polling, and unload every version once its calls have ended."""
        self._stop.set()
        if self._mirror is not None:
            self._mirror.close()
        self._poller.join()
        with self._lock:
            loaded, self._loaded = self._loaded, {}
        for version in loaded.values():
            self._retire(version)

    def acquire(self, version: int | None = None, label: str = "") -> V:
        """A version for one call; the caller must release its `saved_model`.

        Args:
            version: a number, or None for the newest available one.
            label: a version label.

        Raises:
            InvalidRequestError: an unknown label.
            NotServedError: the version is not available.
        """
        number = self.resolve(version, label)
        with self._lock:
            if number is None:
                number = self._newest()
            loaded = None if number is None else self._loaded.get(number)
            # Acquired under the lock, so that a swap cannot retire it in between.
            if loaded is None or not loaded.saved_model.acquire():
                raise NotServedError(
                    f"model {self.name!r}: {_not_available(number, sorted(self._loaded))}"
                )
            return loaded

    def trial(self) -> tuple[Trial, V] | None:
        """The trial, and its version, which is loaded; None where none is on trial."""
        trial = self._trial
        if trial is None:  # as in nearly every call: without the lock
            return None
        with self._lock:
            loaded = self._loaded.get(trial.version)
        return None if loaded is None else (trial, loaded)

    def serving(self) -> int | None:
        """The version that answers calls that name none; None where none is available."""
        with self._lock:
            return self._newest()

    def _newest(self) -> int | None:
        """The highest number that is not on trial; the caller holds the lock."""
        trial = None if self._trial is None else self._trial.version
        return max((number for number in self._loaded if number != trial), default=None)

    def resolve(self, version: int | None, label: str) -> int | None:
        """The version number that a call names, by number or label; None is the newest.

        Raises:
            InvalidRequestError: an unknown label.
        """
        if not label:
            return version
        if label not in self.labels:
            known = ", ".join(map(repr, sorted(self.labels))) or "no labels"
            raise InvalidRequestError(
                f"version label {label!r}: expected a label of model {self.name!r}: {known}"
            )
        return self.labels[label]

    def matches(self, config: ModelConfig, schema: str = "") -> bool:
        """Whether this manager fits a configuration, apart from labels.

        Args:
            config: of the model of this name.
            schema: as in the constructor.
        """
        wanted = (config.base_path, config.policy, config.ranker, schema)
        return wanted == (self.base_path, self._policy, self.ranker, self._schema)

    def schema(self) -> str:
        """The schema that all available versions share; empty where there are none."""
        with self._lock:
            return next((version.schema for version in self._loaded.values()), "")

    def check_labels(self, labels: Mapping[str, int]) -> None:
        """Refuse a label of a version that is not available.

        Raises:
            ServingError: names the label.
        """
        available = self.available_versions()
        for label, version in labels.items():
            if version not in available:
                raise ServingError(
                    f"model {self.name!r}: label {label!r}: {_not_available(version, available)}"
                )

    def available_versions(self) -> list[int]:
        """Numbers of the versions that answer calls, lowest first."""
        with self._lock:
            return sorted(self._loaded)

    def records(self) -> dict[int, VersionRecord]:
        """State of the versions that were loaded or tried, by number; see `KEPT_GONE`."""
        with self._lock:
            return dict(sorted(self._records.items()))

    def poll(self) -> None:
        """Look at the base path once: load new versions, retire replaced ones."""
        # Before the scan: a promotion in between is then seen as a version in production.
        trial = self._read_trial()
        wanted: set[int] = set()
        for version, folder in scan(self._base).items():
            if len(wanted) == self._policy.latest:
                break
            if self._policy.offers(version) and (
                version in self._loaded
                or (self._should_try(version, folder) and self._load(version, folder))
            ):
                wanted.add(version)
                self._loaded[version].folder = folder  # a promotion moves it
        if not wanted:
            return  # keep the versions that there are, rather than none
        if trial is None:  # a trial that began between the two: its version is in neither
            trial = self._read_trial()
        if trial is not None and trial.version not in wanted:
            wanted.add(trial.version)
        else:
            trial = None
        self._try(trial)
        with self._lock:
            replaced = [self._loaded.pop(n) for n in list(self._loaded) if n not in wanted]
        self.report()
        for old in replaced:
            self._retire(old)
        self._forget_gone()

    def _forget_gone(self) -> None:
        """Drop state and metrics of all but the last versions that have ended.

        One whose files could not be loaded is tried again while they are there: its state counts
        the tries.
        """
        with self._lock:
            ended = [(n, one) for n, one in self._records.items() if one.state == "END"]
        gone = [n for n, one in ended if not one.error or not self._has_files(n)]
        for version in gone[:-KEPT_GONE]:
            with self._lock:
                del self._records[version]
            self._metrics.forget_version(self.name, version)

    def _has_files(self, version: int) -> bool:
        trial = Trial(version).folder(self._base)
        return (self._base / str(version)).exists() or trial.exists()

    def _read_trial(self) -> Trial | None:
        """The trial that the base path asks for, if its version is there; damage ends no trial."""
        if self.ranker:
            return None
        try:
            trial = read_trial(self._base)
        except (OSError, ValueError) as error:
            if str(error) != self._damaged:
                self._damaged = str(error)
                LOG.error("model %s: %s; the trial goes on as it is", self.name, error)
            trial = self._trial
        else:
            self._damaged = ""
        return trial if trial is not None and trial.folder(self._base).is_dir() else None

    def _try(self, trial: Trial | None) -> None:
        """Begin, change or end the trial; its version takes calls once it is loaded."""
        before = self._trial
        if trial != before:
            with self._lock:
                self._trial = trial
            if trial is None:
                LOG.info("model %s: the trial has ended", self.name)
        if trial is None:
            self._metrics.trial.forget(self.name)
            return
        version, folder = trial.version, trial.folder(self._base)
        if version not in self._loaded and not (
            self._should_try(version, folder) and self._load(version, folder)
        ):
            self._metrics.trial.forget(self.name)
            return
        self._loaded[version].folder = folder
        if trial != before:
            LOG.info(
                "model %s version %d is on trial: canary %g %% of the users, shadow %g %% of the "
                "calls",
                self.name,
                version,
                trial.canary,
                trial.shadow,
            )
        self._metrics.trial.set(trial.canary, self.name, str(version), "canary")
        self._metrics.trial.set(trial.shadow, self.name, str(version), "shadow")

    def report(self) -> None:
        """Set the model's gauges to the newest available version."""
        with self._lock:
            number = self._newest()
            newest = None if number is None else self._loaded[number]
        if newest is not None:  # a candidate model may have none yet
            newest.report(self._metrics)

    def _poll_until_closed(self) -> None:
        lower_priority()
        while not self._stop.wait(self._options.file_system_poll_wait_seconds):
            try:
                # Before a load: the version that the last one replaced is closed by now.
                self._freed.give_back()
                self.poll()
            except Exception as error:
                error.add_note(f"in a look at {self._base} for versions of model {self.name}")
                raise

    def _should_try(self, version: int, folder: Path) -> bool:
        """Whether to load a version now: it is new, its files changed, or a retry is due."""
        record = self._records.get(version)
        if record is None or record.files != stamp(folder):
            return True
        waited = time.monotonic() - record.failed_at
        return (
            record.tries <= self._options.max_num_load_retries
            and waited >= self._options.load_retry_interval_micros / 1e6
        )

    def _load(self, version: int, folder: Path) -> bool:
        """Load, check and warm up a version, then let it take calls; False where that fails."""
        files = stamp(folder)
        before = self._records.get(version)
        tries = before.tries if before is not None and before.files == files else 0
        self._record(version, VersionRecord("LOADING"))
        started = time.monotonic()
        try:
            loaded = self._open(version, folder)
        except Exception as error:
            message = str(error)
            if not isinstance(error, LoadError):  # a bug of ours; other versions still load
                LOG.exception("model %s version %d cannot be loaded", self.name, version)
                message = f"{folder}: {error!r}"
            # Put on trial, or promoted, meanwhile: the same files are elsewhere.
            if not folder.is_dir():
                files = ()
            self._record(version, VersionRecord("END", message, tries + 1, time.monotonic(), files))
            self._metrics.loads.add(self.name, "failed")
            # A load that a stopping server gives up is no failure.
            log = LOG.info if self._stops() else LOG.error
            log("model %s version %d is not available: %s", self.name, version, message)
            return False
        with self._lock:
            self._loaded[version] = loaded
            self._records[version] = VersionRecord("AVAILABLE")
        seconds = time.monotonic() - started
        self._metrics.loads.add(self.name, "loaded")
        self._metrics.load_time.observe(seconds, self.name)
        self._freed.change()
        LOG.info("model %s version %d is available after %.1f s", self.name, version, seconds)
        return True

    def _open(self, version: int, folder: Path) -> V:
        """Load, check and warm up a version, whose copy then stays as long as it is loaded.

        Raises:
            LoadError: the version is damaged, or of another schema.
        """
        with ExitStack() as files:
            if self._mirror is not None and not files.enter_context(in_use(folder)):
                raise LoadError(f"{folder}: removed meanwhile: the store no longer offers it")
            loaded = self._open_files(version, folder)
            loaded.files = files.pop_all()
            return loaded

    def _open_files(self, version: int, folder: Path) -> V:
        """As `_open`."""
        options = self._options
        parallelism = (
            options.tensorflow_intra_op_parallelism,
            options.tensorflow_inter_op_parallelism,
        )
        try:
            saved_model = SavedModel.load(
                version, folder, parallelism, self._kind.layouts, self._check_stop
            )
        except OSError as error:
            raise LoadError(f"{folder}: cannot be read: {error}") from None
        try:
            self._check_schema(folder, saved_model)
            first = not self._loaded  # nobody calls yet
            rest = (lambda seconds: None) if first else time.sleep
            only = None if first else self._in_use()
            warm_up(saved_model, folder, options.enable_model_warmup, self._check_stop, only, rest)
            loaded = self._kind.open(self.name, folder, saved_model, options, self._metrics)
            loaded.experts = experts_per_row(folder)
            loaded.exported_at = (folder / GRAPH).stat().st_mtime
            return loaded
        except (ServingError, OSError) as error:  # the folder may be removed meanwhile
            saved_model.retire()
            raise LoadError(str(error)) from None

    def _in_use(self) -> set[str]:
        """The signatures that a version must have, and those that calls have run until now."""
        with self._lock:
            loaded = [one.saved_model for one in self._loaded.values()]
        for one in loaded:
            self._called.update(self._kind.layouts(one.contract))
            self._called.update(name for name, each in one.signatures.items() if each.called)
        return set(self._called)

    def _stops(self) -> bool:
        return self._stop.is_set() or self._stopping.is_set()

    def _check_stop(self) -> None:
        """Cancel a load between its steps, so that a stopping server does not wait for it."""
        if self._stops():
            raise LoadError("cancelled: the server stops, or the model was removed")

    def _check_schema(self, folder: Path, saved_model: SavedModel) -> None:
        schema = saved_model.schema
        if self._schema:
            if schema != self._schema:
                raise LoadError(
                    f"{folder}: expected schema {self._schema} of its ranker {self.ranker!r}, "
                    f"received {schema}; export both from the same examples"
                )
            return
        with self._lock:
            current = next(iter(self._loaded.values()), None)
        if current is not None and schema != current.schema:
            changed = difference(current.saved_model.contract, saved_model.contract)
            raise LoadError(
                f"{folder}: expected schema {current.schema} of the version in use, received "
                f"{schema}: {changed}; to change features or tasks, restart the server or use "
                "another model name"
            )

    def _retire(self, version: V) -> None:
        """Send no more calls to a version, and close it once its calls have ended."""
        unloading = VersionRecord("UNLOADING")
        self._record(version.number, unloading)

        def closed() -> None:
            version.close()
            version.files.close()
            self._freed.change()
            with self._lock:
                # A rollback may have loaded this number again while its last call went on.
                if self._records[version.number] is unloading:
                    self._records[version.number] = VersionRecord("END")

        version.saved_model.retire(closed)
        LOG.info("model %s version %d is retired", self.name, version.number)

    def _record(self, version: int, record: VersionRecord) -> None:
        with self._lock:
            self._records.pop(version, None)  # the last to change stands last
            self._records[version] = record


def _not_available(version: int | None, available: list[int]) -> str:
    """Says that a version (None: any) is not available, and which ones are."""
    if not available:
        return "no version is available"
    return f"version {version} is not available; available: {', '.join(map(str, available))}"
