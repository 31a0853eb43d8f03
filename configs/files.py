"""Folders that are complete or absent, and the names inside an examples folder."""

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

# Columns of the examples besides the features, which stand under their own names.
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

    Its writer holds a lock on the temporary folder, which the system gives back however the
    process ends. Temporary folders beside it that nobody holds are what killed writers left
    behind; they are removed first. (Where the file system has no locks, none is removed.)

    Args:
        path: the folder's final name; must not exist.

    Yields:
        The temporary folder, beside the final one so that the rename is atomic.

    Raises:
        DataError: `path` exists, or another run made it meanwhile.
    """
    exists = DataError(f"{path}: already exists; choose another output folder or remove it")
    if path.exists():
        raise exists
    made = [parent for parent in path.parents if not parent.exists()]
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
        with suppress(OSError):  # up to the first that holds something else
            for parent in made:
                parent.rmdir()
        raise
    finally:
        os.close(lock)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new temporary folder for `path`, and the descriptor that holds its lock."""
    while True:
        # Not the process's id: in containers every run has the same one, and a killed one leaves
        # it.
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}"
        temporary.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(temporary, os.O_RDONLY)
            if _try_lock(lock) is not False and temporary.exists():
                return temporary, lock
            os.close(lock)  # another writer took it for abandoned before it was locked


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders in `parent` whose writers are dead."""
    for left in parent.glob(f".*{_PARTIAL}"):
        if not _TEMPORARY.fullmatch(left.name):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
            try:
                if _try_lock(lock):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _try_lock(descriptor: int) -> bool | None:
    """Whether the lock could be had; None where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def write_json(path: Path, values: Any) -> None:
    """Write JSON that people can read and diff; whole or not at all."""
    write_text(path, json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file as UTF-8, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file, whole or not at all."""
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
