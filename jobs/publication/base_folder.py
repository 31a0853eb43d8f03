"""A model's base folder: which version is in production, and how that changes.

    BASE/<number>/        versions; the highest number is in production, the next one below it is
                          what a rollback returns to
    BASE/.withdrawn/      versions that were taken back, by the same numbers
    BASE/.checkpoints/    what each version was exported from; a later run may start from it
    BASE/.history.jsonl   what was published, withdrawn, restored and removed, and when
    BASE/.lock

Servers follow the highest number, TensorFlow Serving as well as ours, and ignore names that are no
numbers. So a version is published by renaming a whole folder to its number, and withdrawn by
renaming it away: no server needs to be told, started again or to know of this module. A number is
never used twice. What is in production is what the folder holds; the history is for people.
"""

import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multigate.configs.errors import RunError
from multigate.configs.files import new_folder, write_json
from multigate.jobs.lock import locked
from multigate.serving.versions.folders import EXTRA, missing_files, scan

_log = logging.getLogger(__name__)

LINEAGE = f"{EXTRA}/run.json"
_WAIT = 60.0  # s for another publication or rollback to end
_ABANDONED = 86_400.0  # s after which an unfinished folder is nobody's any more


class Base:
    """The base folder of one model's versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._withdrawn = root / ".withdrawn"
        self._checkpoints = root / ".checkpoints"
        self._history = root / ".history.jsonl"

    def versions(self) -> dict[int, Path]:
        """Versions that servers are offered, highest number first."""
        return scan(self.root)

    def withdrawn(self) -> dict[int, Path]:
        """Versions that were taken back, highest number first."""
        return scan(self._withdrawn)

    def production(self) -> int | None:
        """The version that servers follow."""
        return next(iter(self.versions()), None)

    def rollback_target(self) -> int | None:
        """The version that would be in production after a rollback."""
        return next(iter(list(self.versions())[1:]), None)

    def lineage(self, version: int) -> dict[str, Any] | None:
        """What the run that published a version wrote into it; None where no run did.

        Raises:
            RunError: the record is damaged.
        """
        path = {**self.withdrawn(), **self.versions()}[version] / LINEAGE
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RunError(
                f"{path}: not valid JSON: {error}; withdraw version {version}, or publish its run "
                "anew"
            ) from None
        return found

    def checkpoint(self, version: int) -> Path | None:
        """The checkpoint that a version was exported from, where a run published it."""
        path = self._checkpoints / str(version)
        return path if path.is_dir() else None

    def history(self) -> list[dict[str, Any]]:
        """What happened here, oldest first; a line that was cut off by a full disk is left out."""
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
        lineage: dict[str, Any],
        over: int | None,
        *,
        least: int = 1,
        last: Callable[[int], object] | None = None,
    ) -> int:
        """Make an exported version the one in production; what was published already stays.

        Args:
            export: a whole version folder; it is copied.
            checkpoint: what it was exported from; kept beside it.
            lineage: written into the version; its `candidate` says which export it is.
            over: the version in production that it was compared with.
            least: the lowest number that it may have.
            last: called with the number when nothing is left to do but the rename; its failure
                publishes nothing.

        Returns:
            Its number.

        Raises:
            RunError: another version went into production meanwhile, or this one was withdrawn or
                replaced.
        """
        missing = missing_files(export)
        if missing:
            raise RunError(
                f"{export}: {missing[0]}: no such file; repeat the run with --force export"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked("publish"):
            number = self.number_of(lineage["candidate"])
            if number in self.withdrawn():
                raise RunError(
                    f"{self.root}: this candidate was published as version {number} and withdrawn; "
                    f"multigate publish --version {number} brings it back"
                )
            production = self.production()
            if number not in (None, production) and production == over:
                raise RunError(
                    f"{self.root}: this candidate was published as version {number}, which version "
                    f"{production} replaced; multigate publish --version {number} returns to it"
                )
            if number is not None:  # a run was killed between this and its record
                return number
            if production != over:
                raise RunError(
                    f"{self.root}: version {production} is in production, and the decision was "
                    f"about version {over}; start the run again to decide anew"
                )
            number = max(least, self.following())
            beside = self._checkpoints / str(number)
            shutil.rmtree(beside, ignore_errors=True)  # of a publication that was cut off here
            with new_folder(beside) as folder:
                shutil.copytree(checkpoint, folder, dirs_exist_ok=True, copy_function=_link)
            with new_folder(self.root / str(number)) as folder:
                shutil.copytree(export, folder, dirs_exist_ok=True)
                write_json(folder / LINEAGE, lineage)
                if last is not None:
                    last(number)
            self._note("published", number, f"run {lineage['run']}")
            return number

    def following(self) -> int:
        """The lowest number that no version here ever had and none lies above."""
        return 1 + max([0, *self.versions(), *self.withdrawn()])

    def unpublish(self, version: int) -> None:
        """Take back what was published a moment ago, as if it had never been."""
        with self._locked("publish"):
            self._remove(version, self.versions()[version], "publication failed")

    def number_of(self, candidate: str) -> int | None:
        """The version that a candidate was published as, withdrawn or not."""
        for number in (*self.versions(), *self.withdrawn()):
            if (self.lineage(number) or {}).get("candidate") == candidate:
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
                f"{self._offer()}"
            )
        return self.choose(target, reason)

    def choose(self, version: int, reason: str = "chosen") -> int:
        """Make a version the one in production: higher ones are withdrawn, it is restored.

        Returns:
            The version.

        Raises:
            RunError: there is no such version.
        """
        if not self.root.is_dir():
            raise RunError(f"{self.root}: no such folder; expected a model's base folder")
        with self._locked("publish"):
            offered, away = self.versions(), self.withdrawn()
            if version not in offered and version not in away:
                raise RunError(f"{self.root}: no version {version}; {self._offer()}")
            if version not in offered:
                away[version].rename(self.root / str(version))
                self._note("restored", version, reason)
            # The highest last: until then servers stay with it, and load none in between.
            for number in sorted(n for n in offered if n > version):
                self._withdrawn.mkdir(exist_ok=True)
                offered[number].rename(self._withdrawn / str(number))
                self._note("withdrawn", number, reason)
        return version

    def tidy(self, keep: int, needed: Collection[int] = ()) -> list[int]:
        """Remove all but the newest versions, offered and withdrawn.

        Args:
            keep: how many stay of each kind; at least two, so that production and what a rollback
                returns to are among them.
            needed: numbers that stay however old they are.

        Returns:
            The numbers that were removed.
        """
        removed = []
        with self._locked("tidy"):
            for folders in (self.versions(), self.withdrawn()):
                for number, folder in list(folders.items())[max(keep, 2) :]:
                    if number not in needed:
                        self._remove(number, folder, f"{keep} are kept")
                        removed.append(number)
            for left in (*self.root.glob(".*.removed"), *self._withdrawn.glob(".*.removed")):
                shutil.rmtree(left, ignore_errors=True)
            for left in (*self.root.glob(".*.partial"), *self._checkpoints.glob(".*.partial")):
                # Of a publication that was killed, not of an export under way.
                if time.time() - left.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(left, ignore_errors=True)
        return removed

    def _remove(self, number: int, folder: Path, reason: str) -> None:
        """Remove a version; renamed first: nobody must see half of one."""
        doomed = folder.with_name(f".{number}.{secrets.token_hex(4)}.removed")
        folder.rename(doomed)
        for left in (doomed, self._checkpoints / str(number)):
            shutil.rmtree(left, ignore_errors=True)
        self._note("removed", number, reason)

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        with locked(self.root / ".lock", purpose, _WAIT):
            yield

    def _offer(self) -> str:
        def listed(folders: dict[int, Path]) -> str:
            return ", ".join(map(str, folders)) or "none"

        return f"versions: {listed(self.versions())}; withdrawn: {listed(self.withdrawn())}"

    def _note(self, action: str, version: int, reason: str) -> None:
        """Add a line to the history. A disk that is full must not be in a rollback's way."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"time": now, "action": action, "version": version, "reason": reason}
        try:
            with self._history.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            _log.error("%s: %s; not recorded: %s", self._history, error.strerror, entry)


def _link(source: str, target: str) -> None:
    """Give a file a second name instead of a copy where the file system can; it never changes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
