"""A model's base folder: which version is in production, and how that changes.

    BASE/<number>/        versions; the highest number is in production, a rollback returns to the
                          next one below it
    BASE/.withdrawn/      withdrawn versions, under the same numbers
    BASE/.trial/          the version that is tried beside the one in production (`trial`)
    BASE/.checkpoints/    the checkpoint that each version was exported from; a later run may start
                          from it
    BASE/.history.jsonl   what was published, withdrawn, restored and removed, and when
    BASE/.lock

Servers, TensorFlow Serving too, follow the highest number and ignore names that are no numbers. So
a rename publishes a version (a whole folder gets its number), and a rename withdraws it: servers
need neither a message nor a restart. A number is never used twice. The folder alone decides what is
in production; the history is for people. This is the layout of TensorFlow Serving; a model registry
such as MLflow's was considered, and would put a service between the nightly run and the servers.
"""

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from multigate.configs.errors import RunError
from multigate.configs.files import sync, sync_folder, temporary_folder, write_json
from multigate.configs.version_folders import TRIAL, Trial
from multigate.jobs.lock import locked
from multigate.serving.versions.folders import EXTRA, missing_files, scan

_log = logging.getLogger(__name__)

LINEAGE = f"{EXTRA}/run.json"
_WAIT = 60.0  # s to wait for another publication or rollback
_ABANDONED = 86_400.0  # s after which an unfinished folder belongs to no running process


class Lineage(TypedDict):
    """What a run writes into a version that it publishes (`assets.extra/run.json`)."""

    run: str
    """The run's date."""
    candidate: str
    """Identity of the export among all versions."""
    parent: int | None
    """The version in production when the run began."""
    compared_with: int | None
    """The version in production that the decision was about."""
    start: str
    """full (trained from scratch) or warm (from the parent's weights)."""
    full_since: str | None
    """Date of the last training from scratch that the weights go back to."""
    ranker: NotRequired[int]
    """In a candidate version: the ranker that it was published with."""
    candidates: NotRequired[int]
    """In a ranker that was published without a candidate version: the one that it goes on with."""


@dataclass(frozen=True)
class Copies:
    """Temporary copies in a base folder, which a publication renames."""

    version: Path
    checkpoint: Path


class HistoryEntry(TypedDict):
    """A line of `.history.jsonl`."""

    time: str
    action: str
    """published, withdrawn, restored, tried or removed."""
    version: int
    reason: str


class Base:
    """The base folder of one model's versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.withdrawn_root = root / ".withdrawn"
        self._checkpoints = root / ".checkpoints"
        self._history = root / ".history.jsonl"

    def versions(self) -> dict[int, Path]:
        """Versions that servers are offered, highest number first."""
        return scan(self.root)

    def withdrawn(self) -> dict[int, Path]:
        """Withdrawn versions, highest number first."""
        return scan(self.withdrawn_root)

    def tried(self) -> dict[int, Path]:
        """The version on trial; none, or one."""
        return scan(self.root / TRIAL)

    def production(self) -> int | None:
        """The version that servers follow."""
        return next(iter(self.versions()), None)

    def rollback_target(self) -> int | None:
        """The version that would be in production after a rollback."""
        return next(iter(list(self.versions())[1:]), None)

    def lineage(self, version: int) -> Lineage | None:
        """The lineage of a version; None where no run published it.

        Raises:
            RunError: the record is damaged.
        """
        path = {**self.withdrawn(), **self.tried(), **self.versions()}[version] / LINEAGE
        try:
            lineage = cast(Lineage, json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(
                f"{path}: not valid JSON: {error}; withdraw version {version}, or publish its run "
                "again"
            ) from None
        return lineage

    def checkpoint(self, version: int) -> Path | None:
        """The checkpoint that a version was exported from, where a run published it."""
        path = self._checkpoints / str(version)
        return path if path.is_dir() else None

    def history(self) -> list[HistoryEntry]:
        """What happened here, oldest first, without lines that a full disk cut off."""
        if not self._history.exists():
            return []
        found = []
        for line in self._history.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                _log.warning("%s: not valid JSON: %.80s", self._history, line)
        return found

    def publish(
        self,
        export: Path,
        checkpoint: Path,
        lineage: Lineage,
        replaces: int | None,
        *,
        lowest: int = 1,
        before_rename: Callable[[int], object] | None = None,
    ) -> int:
        """Copy an exported version and put it into production, unless it is there already.

        Args:
            export: a complete version folder.
            checkpoint: what it was exported from; a copy is kept.
            lineage: as in `publish_copies`, as are the others.
            replaces: the version in production that it was compared with.
            lowest: the lowest number that it may get.
            before_rename: called with the number before the rename.

        Returns:
            Its number.

        Raises:
            RunError: another version went into production meanwhile, or this one was withdrawn or
                replaced.
        """
        with self.copies(export, checkpoint) as copies:
            return self.publish_copies(
                copies, lineage, replaces, lowest=lowest, before_rename=before_rename
            )

    @contextmanager
    def copies(self, export: Path, checkpoint: Path) -> Iterator[Copies]:
        """Copies for `publish_copies`, on the disk; what is not published is removed at the end.

        Copying takes long, and holds no lock: a rollback does not wait for it.

        Args:
            export: a complete version folder.
            checkpoint: what it was exported from.

        Raises:
            RunError: the export is incomplete.
        """
        missing = missing_files(export)
        if missing:
            raise RunError(
                f"{export}: {missing[0]}: no such file; repeat the run with --force export"
            )
        with (
            temporary_folder(self.root / "publication") as version,
            temporary_folder(self._checkpoints / "publication") as kept,
        ):
            shutil.copytree(export, version, dirs_exist_ok=True)
            shutil.copytree(checkpoint, kept, dirs_exist_ok=True, copy_function=_link)
            for made in (version, kept):
                os.utime(made)  # `copytree` gave them the sources' times: see `remove_old`
                sync_folder(made)
            yield Copies(version, kept)

    def publish_copies(
        self,
        copies: Copies,
        lineage: Lineage,
        replaces: int | None,
        *,
        lowest: int = 1,
        before_rename: Callable[[int], object] | None = None,
        trial: tuple[float, float] | None = None,
    ) -> int:
        """Put a copied version into production or on trial, unless it is there already.

        Args:
            copies: from `copies`.
            lineage: written into the version; its `candidate` says which export it is.
            replaces: the version in production that it was compared with.
            lowest: the lowest number that it may get.
            before_rename: called with the number when only the rename is left to do; if it fails,
                nothing is published.
            trial: percentages of the users and of the calls; None: into production.

        Returns:
            Its number.

        Raises:
            RunError: another version went into production or on trial meanwhile, or this one was
                withdrawn or replaced.
        """
        with self.locked("publish"):
            number = self.number_of(lineage["candidate"])
            if number in self.withdrawn():
                raise RunError(
                    f"{self.root}: this candidate was published as version {number} and withdrawn; "
                    f"multigate publish --version {number} brings it back"
                )
            production, tried = self.production(), self.tried()
            if number not in (None, production, *tried) and production == replaces:
                raise RunError(
                    f"{self.root}: this candidate was published as version {number}, which version "
                    f"{production} replaced; multigate publish --version {number} returns to it"
                )
            if number is not None:  # an earlier start was killed before it recorded this
                return number
            if production != replaces:
                raise RunError(
                    f"{self.root}: version {production} is in production, and the decision was "
                    f"about version {replaces}; start the run again: it decides again"
                )
            if trial is not None and tried:
                raise RunError(f"{self.root}: {self.trial_under_way()}")
            number = max(lowest, self.next_number())
            write_json(copies.version / LINEAGE, lineage, durable=True)
            if before_rename is not None:
                before_rename(number)
            kept = self._checkpoints / str(number)
            shutil.rmtree(kept, ignore_errors=True)  # of a publication that was killed here
            copies.checkpoint.rename(kept)
            run = f"run {lineage['run']}"
            if trial is None:
                copies.version.rename(self.root / str(number))
                self.sync(self._checkpoints, self.root)
                self.note("published", number, run)
                return number
            shares = Trial(number, *trial)
            shares.write(self.root)  # says nothing until the version is there
            copies.version.rename(shares.folder(self.root))
            self.sync(self._checkpoints, self.root / TRIAL)
            self.note("tried", number, f"{run}: {shares.words()}")
            return number

    def trial_under_way(self) -> str:
        """That a version is on trial, and how that ends, in words."""
        (number,) = self.tried()
        return (
            f"version {number} is on trial already; multigate publish --base {self.root} --promote "
            "or --stop ends that"
        )

    def next_number(self) -> int:
        """The number after the highest that any version here has."""
        return 1 + max([0, *self.versions(), *self.withdrawn(), *self.tried()])

    def unpublish(self, version: int) -> None:
        """Remove a version whose publication failed a moment ago."""
        with self.locked("publish"):
            self._remove(version, self.versions()[version], "publication failed")
        self._delete_removed()

    def number_of(self, candidate: str) -> int | None:
        """The version that an export was published as, withdrawn or not; None where it was not."""
        for number in (*self.versions(), *self.withdrawn(), *self.tried()):
            lineage = self.lineage(number)
            if lineage is not None and lineage.get("candidate") == candidate:
                return number
        return None

    def rollback(self, reason: str = "rollback") -> int:
        """Withdraw the version in production.

        Returns:
            The version that is in production now.

        Raises:
            RunError: there is no version to return to.
        """
        target = self.rollback_target()
        if target is None:
            raise RunError(
                f"{self.root}: expected a version below the one in production to return to; "
                f"{self.listing()}"
            )
        return self.choose(target, reason)

    def choose(self, version: int, reason: str = "chosen") -> int:
        """Put a version into production: withdraw higher ones, restore it if it was withdrawn.

        Returns:
            The version.

        Raises:
            RunError: there is no such version.
        """
        if not self.root.is_dir():
            raise RunError(f"{self.root}: no such folder; expected a model's base folder")
        with self.locked("publish"):
            offered, away = self.versions(), self.withdrawn()
            if version in self.tried():
                raise RunError(
                    f"{self.root}: version {version} is on trial; multigate publish --promote puts "
                    "it into production, --stop withdraws it"
                )
            if version not in offered and version not in away:
                raise RunError(f"{self.root}: no version {version}; {self.listing()}")
            if version not in offered:
                away[version].rename(self.root / str(version))
                self.note("restored", version, reason)
            # The highest goes last: until then servers stay with it and load none in between.
            for number in sorted(n for n in offered if n > version):
                self.withdrawn_root.mkdir(exist_ok=True)
                offered[number].rename(self.withdrawn_root / str(number))
                self.note("withdrawn", number, reason)
            self.sync(self.withdrawn_root, self.root)
        return version

    def remove_old(self, keep: int, needed: Collection[int] = ()) -> list[int]:
        """Remove all but the newest versions, offered and withdrawn.

        Args:
            keep: how many stay of each kind; at least two, so that production and the version that
                a rollback returns to are among them.
            needed: numbers that stay, however old they are.

        Returns:
            The numbers that were removed.
        """
        removed = []
        with self.locked("remove old versions"):
            for folders in (self.versions(), self.withdrawn()):
                for number, folder in list(folders.items())[max(keep, 2) :]:
                    if number not in needed:
                        self._remove(number, folder, f"{keep} are kept")
                        removed.append(number)
        self._delete_removed()
        for path in (*self.root.glob(".*.partial"), *self._checkpoints.glob(".*.partial")):
            # Left by a publication that was killed, not by an export that is running.
            with suppress(FileNotFoundError):  # a publication that ends renames its own
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(path, ignore_errors=True)
        return removed

    def _remove(self, number: int, folder: Path, reason: str) -> None:
        """Rename a version and its checkpoint, so that no server sees half of it deleted.

        `_delete_removed` deletes them, which takes long and needs no lock.
        """
        for path in (folder, self._checkpoints / str(number)):
            with suppress(FileNotFoundError):  # a version made by hand has no checkpoint
                path.rename(path.with_name(f".{number}.{secrets.token_hex(4)}.removed"))
        self.note("removed", number, reason)

    def _delete_removed(self) -> None:
        """Delete what is renamed for it."""
        for folder in (self.root, self.withdrawn_root, self._checkpoints):
            for path in folder.glob(".*.removed"):
                shutil.rmtree(path, ignore_errors=True)

    def sync(self, *folders: Path) -> None:
        """Have the disk hold the new names; they hold already for all who look."""
        for folder in folders:
            try:
                if folder.is_dir():
                    sync(folder)
            except OSError as error:
                _log.error("%s: may not survive a power cut: %s", folder, error)

    @contextmanager
    def locked(self, purpose: str) -> Iterator[None]:
        """Hold the folder's lock: one change at a time."""
        with locked(self.root / ".lock", purpose, _WAIT):
            yield

    def listing(self) -> str:
        """Which versions there are, in words."""

        def text(folders: dict[int, Path]) -> str:
            return ", ".join(map(str, folders)) or "none"

        return f"versions: {text(self.versions())}; withdrawn: {text(self.withdrawn())}"

    def note(self, action: str, version: int, reason: str) -> None:
        """Add a line to the history. A full disk must not prevent a rollback."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"time": now, "action": action, "version": version, "reason": reason}
        try:
            with self._history.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            _log.error("%s: %s; not recorded: %s", self._history, error.strerror, entry)


def _link(source: str, target: str) -> None:
    """Hard-link a file, or copy it where the file system has no links; it never changes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
