"""Atomic writes (a folder or file is complete or absent), and the layout of an examples folder.

The package atomicwrites was considered: it writes files only, no folders, and is not maintained.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from multigate.configs.errors import DataError

SPLITS = ("train", "validation", "test")

# Columns of the examples besides the features, whose columns have the features' names.
LABEL = "label/"  # label/<task>: float32, null where masked
TIME = "meta/time"  # timestamp[us, UTC] of the impression, null where unknown
REQUEST = (
    "meta/request"  # string; impressions shown together; a sampled negative's is its positive's
)
SAMPLED = "meta/sampled"  # bool; a sampled negative
IMPRESSION = "meta/impression"  # int64; unique within the folder

_PARTIAL = ".partial"
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
"""Names of temporary folders."""


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Write a folder under a temporary name and rename it when the block ends well.

    The writer holds a lock on the temporary folder; the system releases it however the process
    ends. Temporary folders without a lock were left by killed writers and are removed first.
    (Where the file system has no locks, none is removed.)

    Args:
        path: the folder's final name; must not exist.

    Yields:
        The temporary folder, in the same parent folder, so that the rename is atomic.

    Raises:
        DataError: `path` exists, or another run made it meanwhile.
    """
    exists = DataError(f"{path}: already exists; choose another output folder or remove it")
    if path.exists():
        raise exists
    created = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    temporary, lock = _locked_folder(path)
    try:
        yield temporary
        if path.exists():
            raise exists
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # stops at the first that holds something else
            for parent in created:
                parent.rmdir()
        raise
    finally:
        os.close(lock)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new temporary folder for `path`, and the descriptor that holds its lock."""
    while True:
        # Random, not the process id: in containers every run has the same id, and a killed run's
        # folder would be in the way.
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}"
        temporary.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(temporary, os.O_RDONLY)
            if _try_lock(lock) is not False and temporary.exists():
                return temporary, lock
            os.close(lock)  # another writer removed it as abandoned before it was locked


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders in `parent` whose writers are dead."""
    for folder in parent.glob(f".*{_PARTIAL}"):
        if not _TEMPORARY.fullmatch(folder.name):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _try_lock(descriptor: int) -> bool | None:
    """Whether this process got the lock; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def write_json(path: Path, values: Any) -> None:
    """Write indented JSON, atomically."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: complete, or not at all."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_bytes(content)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


class ExamplesFolder:
    """Paths inside a folder of examples.

    Layout: `train/`, `validation/` and `test/` with Parquet parts, `vocabularies/<feature>.parquet`
    (value, count; most frequent first), `snapshot/users/` and `snapshot/items/` with Parquet parts
    (features as of the cut-off), `statistics.json`, `contract.json`, `manifest.json`,
    `report.json`, `rejects/`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.statistics = root / "statistics.json"
        self.contract = root / "contract.json"
        self.manifest = root / "manifest.json"
        self.report = root / "report.json"
        self.rejects = root / "rejects"

    def split(self, name: str) -> Path:
        """Folder of one split's Parquet parts."""
        return self.root / name

    def snapshot(self, source: str) -> Path:
        """Folder of the Parquet parts that hold the features of all `users` or `items`."""
        return self.root / "snapshot" / source

    def vocabulary(self, feature: str) -> Path:
        """Vocabulary of a feature that keeps one."""
        return self.root / "vocabularies" / f"{feature}.parquet"
