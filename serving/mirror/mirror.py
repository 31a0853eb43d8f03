"""Keeps a copy of a base path that lies in an object store.

    CACHE/versions/HASH/7/                       like the address, complete versions only
    CACHE/versions/HASH/.trial/settings.json     of the trial; its version beside it

A process holds a lock on the copy of each version that it has loaded, and on the folder of the base
path: what the store no longer offers goes once nobody holds it, and the copy of a base path that
no process has served for a week goes as a whole.

A thread of its own looks at the store, so that a store that is slow or gone holds up nothing: the
versions that are here go on.  A version is copied under a temporary name, each file's size and
SHA-256 are compared with the manifest, and a rename makes it visible.  Workers of one server share
the copy.  What fails is tried again after a pause that doubles.
"""

import fcntl
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from multigate.configs.errors import DataError, ServingError, one_line
from multigate.configs.files import (
    in_use,
    put_away,
    remove_abandoned,
    remove_unused,
    sync_folder,
    temporary_folder,
    unused,
)
from multigate.configs.storage import Address, cache_folder
from multigate.configs.version_folders import (
    MANIFEST,
    SETTINGS,
    TRIAL,
    Trial,
    VersionFile,
    read_manifest,
    read_trial,
)
from multigate.serving.core.background import SupervisedThread, lower_priority
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import LOG

_AT_ONCE = 8  # files that are copied at the same time
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
"""Seconds after which what failed is tried again; doubled each time."""
_CLOSING_SECONDS = 5.0
"""How long a server that stops waits for the thread, whose store may hang."""


@dataclass
class _Failed:
    """A version that could not be copied."""

    manifest: dict[str, VersionFile]
    pause: float
    again: float
    """Monotonic seconds."""


class Mirror:
    """The copy of one base path."""

    def __init__(
        self,
        model: str,
        address: Address,
        policy: str,
        latest: int | None,
        offers: Callable[[int], bool],
        seconds: float,
        metrics: ServerMetrics,
    ) -> None:
        """Make a copy that is not kept up to date yet.

        Args:
            model: its name, for logs and metrics.
            address: of the base path.
            policy: which versions are wanted, in words; each policy has a copy of its own.
            latest: how many of the highest versions are wanted; None: all.
            offers: whether a version is wanted at all.
            seconds: between looks at the store.
            metrics: counts the looks.
        """
        self._model = model
        self._address = address
        self._latest = latest
        self._offers = offers
        self._seconds = seconds
        self._metrics = metrics
        name = hashlib.sha256(f"{address} {policy}".encode()).hexdigest()[:24]
        self.folder = cache_folder("versions") / name
        """The base path's copy."""
        self._use = ExitStack()
        """Held as long as this process serves the base path."""
        self._checked: set[int] = set()
        """Versions whose files this process has compared with their manifest."""
        self._failed: dict[int, _Failed] = {}
        self._problem = ""
        """Why the last look failed; empty after one that did not."""
        self._reported: set[str] = set()
        self._stop = threading.Event()
        self._thread = SupervisedThread("mirror", self._run, metrics.thread_failed)

    def start(self, required: bool) -> None:
        """Copy what is wanted, then look at the store from time to time.

        Args:
            required: whether there must be a version.

        Raises:
            ServingError: a version is required, the store has no complete one or cannot be read,
                and no copy of an earlier time is here.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while not self._use.enter_context(in_use(self.folder)):  # it has just been removed
                self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ServingError(f"{self.folder}: {error.strerror}; see MULTIGATE_CACHE") from None
        self.look()
        if required and not self._numbers(self.folder):
            problem = self._problem or (
                f"{self._address}: expected complete versions, such as {self._address / '1'} with "
                f"its {MANIFEST}, which multigate publish --to writes last; found none"
            )
            raise ServingError(problem)
        self._thread.start()

    def close(self) -> None:
        """Stop looking; what is being copied is left out."""
        self._stop.set()
        self._thread.join(_CLOSING_SECONDS)
        self._use.close()

    def look(self) -> bool:
        """Look at the store once; whatever fails leaves what is here.

        Returns:
            Whether the store could be read.
        """
        try:
            with self._alone() as held:
                if held:
                    os.utime(self.folder)
                    try:
                        self._look()
                    finally:
                        self._clean()
        except (DataError, OSError) as error:
            message = one_line(error)
            if message != self._problem:
                LOG.error("model %s: %s; the versions that are here go on", self._model, message)
            self._problem = message
            self._metrics.store_looks.add(self._model, "failed")
            return False
        self._problem = ""
        self._metrics.store_looks.add(self._model, "read")
        self._metrics.store_read_at.set(time.time(), self._model)
        return True

    def _run(self) -> None:
        lower_priority()
        pause = self._seconds
        while not self._stop.wait(pause):
            read = self.look()
            slower = min(max(2 * pause, _FIRST_PAUSE), max(_LONGEST_PAUSE, self._seconds))
            pause = self._seconds if read else slower

    def _look(self) -> None:
        # Before the versions: see `VersionManager.poll`.
        trial = self._trial()
        offered = [int(name) for name in self._address.names() if _is_number(name)]
        wanted: set[int] = set()
        for number in sorted(offered, reverse=True):
            if len(wanted) == self._latest:
                break
            if self._offers(number) and self._have(number, self._address / str(number), False):
                wanted.add(number)
        tried = (
            trial is not None
            and trial.version not in wanted
            and self._have(trial.version, trial_address(self._address, trial), True)
        )
        settings = self.folder / SETTINGS
        if trial is not None and tried:
            if _text(settings) != trial.text():
                trial.write(self.folder)
        else:
            settings.unlink(missing_ok=True)
        if wanted:
            self._put_away_all_but(wanted, trial.version if trial is not None and tried else None)

    def _trial(self) -> Trial | None:
        """The trial in the store; damaged settings change nothing here.

        Raises:
            DataError: the settings are damaged, or the store cannot be read.
        """
        try:
            return read_trial(self._address)
        except ValueError as error:
            raise DataError(str(error)) from None

    def _have(self, number: int, source: Address, tried: bool) -> bool:
        """Have a version here, intact: copy it where it is not; False where it is not complete."""
        here, there = self._place(number, tried), self._place(number, not tried)
        try:
            manifest = read_manifest(source)
        except ValueError as error:
            self._report(f"version {number}: {error}")
            return False
        if manifest is None:
            return False
        if not here.exists() and there.exists():  # it was promoted, or put on trial
            here.parent.mkdir(exist_ok=True)
            there.rename(here)
        if here.exists():
            if number in self._checked or not _differing(here, manifest):
                self._checked.add(number)
                return True
            LOG.error("model %s: %s differs from the store's; it is copied anew", self._model, here)
            put_away(here)
        failed = self._failed.get(number)
        if failed is not None and failed.manifest == manifest and time.monotonic() < failed.again:
            return False
        try:
            self._copy(source, here, manifest)
        except (DataError, OSError) as error:
            again = failed is not None and failed.manifest == manifest
            pause = min(2 * failed.pause, _LONGEST_PAUSE) if failed and again else _FIRST_PAUSE
            self._failed[number] = _Failed(manifest, pause, time.monotonic() + pause)
            self._metrics.store_copies.add(self._model, "failed")
            LOG.error(
                "model %s: version %d is not copied: %s; tried again in %g s",
                self._model,
                number,
                one_line(error),
                pause,
            )
            return False
        self._failed.pop(number, None)
        self._checked.add(number)
        self._metrics.store_copies.add(self._model, "copied")
        return True

    def _report(self, problem: str) -> None:
        """Log a problem that every look finds, once."""
        if problem not in self._reported:
            self._reported.add(problem)
            LOG.error("model %s: %s", self._model, problem)

    def _copy(self, source: Address, here: Path, manifest: dict[str, VersionFile]) -> None:
        """Copy a version, complete and intact or not at all.

        Raises:
            DataError: a file is missing, or differs from the manifest.
        """

        def download(name: str) -> None:
            if self._stop.is_set():
                raise DataError("the server stops")
            with (source / name).open() as file, (made / name).open("wb") as sink:
                shutil.copyfileobj(file, sink, 1 << 23)

        here.parent.mkdir(exist_ok=True)
        with temporary_folder(here) as made:
            for parent in {(made / name).parent for name in manifest}:
                parent.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for done in [pool.submit(download, name) for name in manifest]:
                    done.result()
            if differing := _differing(made, manifest):
                raise DataError(
                    f"{source / differing[0]}: expected the size and SHA-256 of its {MANIFEST}, "
                    "received others: publish the version again"
                )
            sync_folder(made)
            made.rename(here)

    def _put_away_all_but(self, wanted: Collection[int], tried: int | None) -> None:
        """Put copies away that the store no longer offers."""
        for folder, kept in ((self.folder, set(wanted)), (self.folder / TRIAL, {tried})):
            for number in self._numbers(folder):
                if number in kept:
                    continue
                # A version of the base path that is in use goes on until all managers have swapped,
                # but not under a number that would make it the newest again.
                stays = folder == self.folder and number < max(wanted)
                with unused(folder / str(number)) as free:
                    if free or not stays:
                        put_away(folder / str(number))
                        self._checked.discard(number)

    def _clean(self) -> None:
        """Remove what was put away and nobody uses, and what killed processes left."""
        with suppress(OSError):  # what another process removes meanwhile, or another user owns
            remove_unused(self.folder.parent)
            for copy in self.folder.parent.iterdir():
                remove_abandoned(copy)
                remove_abandoned(copy / TRIAL)

    def _place(self, number: int, tried: bool) -> Path:
        return (self.folder / TRIAL if tried else self.folder) / str(number)

    @staticmethod
    def _numbers(folder: Path) -> list[int]:
        try:
            return [int(path.name) for path in folder.iterdir() if _is_number(path.name)]
        except FileNotFoundError:
            return []

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the folder's lock; False once the server stops."""
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not self._stop.is_set():
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                self._stop.wait(0.1)
            yield not self._stop.is_set()
        finally:
            os.close(descriptor)


def trial_address(base: Address, trial: Trial) -> Address:
    """Where the version on trial lies in a store."""
    return base / TRIAL / str(trial.version)


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _differing(folder: Path, manifest: dict[str, VersionFile]) -> list[str]:
    """Files that are missing, or differ from the manifest."""
    found = []
    for name, expected in manifest.items():
        try:
            if (folder / name).stat().st_size != expected.size or VersionFile.of(
                folder / name
            ) != expected:
                found.append(name)
        except OSError:
            found.append(name)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
