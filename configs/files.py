"""Atomic writes (a folder or file is complete or absent), and the layout of an examples folder.

The package atomicwrites was considered: it writes files only, no folders, and is not maintained.
"""

import fcntl
import glob
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, Self

from typing_extensions import TypeVar

from multigate.configs.errors import DataError
from multigate.configs.storage import Address, Place

SPLITS = ("train", "validation", "test")

# Columns of the examples besides the features, whose columns have the features' names.
LABEL = "label/"  # label/<task>: float32, null where masked
TIME = "meta/time"  # timestamp[us, UTC] of the impression, null where unknown
REQUEST = (
    "meta/request"  # string; impressions shown together; a sampled negative's is its positive's
)
SAMPLED = "meta/sampled"  # bool; a sampled negative
IMPRESSION = "meta/impression"  # int64; unique within the folder
WEIGHT = "meta/weight"  # float32; the row's weight in training, where the log has a column for it

_PARTIAL = ".partial"
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.partial")
"""Names of temporary folders."""
_UNUSED = 7 * 24 * 3600  # seconds
_ABANDONED = 3600  # seconds after which a temporary file of one write has no writer any more


def refuse_existing(path: Path) -> None:
    """Refuse to write where there is something already.

    Raises:
        DataError: `path` exists.
    """
    if path.exists():
        raise DataError(f"{path}: already exists; choose another output folder or remove it")


@contextmanager
def new_folder(path: Path, adopt: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Write a folder under a temporary name and rename it when the block ends well.

    Args:
        path: the folder's final name; must not exist.
        adopt: see `temporary_folder`.

    Yields:
        The temporary folder, in the same parent folder, so that the rename is atomic.

    Raises:
        DataError: `path` exists, or another run made it meanwhile.
    """
    refuse_existing(path)
    with temporary_folder(path, adopt) as temporary:
        yield temporary
        refuse_existing(path)
        temporary.rename(path)


@contextmanager
def temporary_folder(path: Path, adopt: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """A folder beside `path` that the block fills and renames; one that is not renamed is removed.

    The writer holds a lock on the temporary folder; the system releases it however the process
    ends. Temporary folders without a lock were left by killed writers and are removed first.
    (Where the file system has no locks, none is removed.)

    Args:
        path: the final name, or a name that says what the folder is for.
        adopt: whether to go on in a folder that a killed writer left for `path`.
    """
    created = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    adopted = None if adopt is None else _adopted_folder(path, adopt)
    remove_abandoned(path.parent)
    temporary, lock = adopted or _locked_folder(path)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # stops at the first that holds something
            for parent in created:
                parent.rmdir()
        os.close(lock)


def sync_folder(folder: Path) -> None:
    """Have the disk hold a folder and all that is in it, so that it survives a power cut."""
    for path in (*folder.rglob("*"), folder):
        if path.is_dir() or path.is_file():
            sync(path)


def sync(path: Path) -> None:
    """Have the disk hold a file's bytes, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new temporary folder for `path`, and the descriptor that holds its lock."""
    while True:
        # Random, not the process id: in containers every run has the same id, and a killed run's
        # folder would be in the way.
        temporary = _temporary(path)
        temporary.mkdir()
        with suppress(FileNotFoundError):
            lock = os.open(temporary, os.O_RDONLY)
            if _try_lock(lock) is not False and temporary.exists():
                return temporary, lock
            os.close(lock)  # another writer removed it as abandoned before it was locked


def _adopted_folder(path: Path, adopt: Callable[[Path], bool]) -> tuple[Path, int] | None:
    """A temporary folder for `path` that a killed writer left, and the descriptor of its lock."""
    for folder in sorted(path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}")):
        if not _TEMPORARY.fullmatch(folder.name):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            if _try_lock(lock) and folder.exists() and adopt(folder):
                return folder, lock
            os.close(lock)
    return None


def _temporary(path: Path) -> Path:
    """A new name beside `path` for a temporary folder."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}"


def remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders in `parent` whose writers are dead, and what was put away."""
    for folder in parent.glob(f".*{_PARTIAL}"):
        if not _TEMPORARY.fullmatch(folder.name):
            continue
        with suppress(NotADirectoryError), unused(folder) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


def _try_lock(descriptor: int, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> bool | None:
    """Whether this process got the lock; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def in_use(folder: Path) -> Iterator[bool]:
    """Keep a folder from being removed as unused while the block runs; False where it is gone.

    Any number of processes may use a folder. The system releases their locks however they end.
    """
    with _held(folder, fcntl.LOCK_SH) as held:
        yield held


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Whether nobody uses a folder (see `in_use`); while the block runs, nobody begins to.

    Where the file system has no locks, every folder may be in use.
    """
    with _held(folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as held:
        yield held


@contextmanager
def _held(folder: Path, how: int) -> Iterator[bool]:
    """Hold a lock on a folder; False where it is gone, or another process holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        locked = _try_lock(descriptor, how)
        if locked is None:
            yield not how & fcntl.LOCK_EX
        else:
            yield locked and _is_at(descriptor, folder)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open folder still has this name: it may have been renamed or removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def remove_unused(cache: Path) -> None:
    """Remove the folders of a cache that nobody uses, or has touched for a week."""
    for entry in cache.iterdir():
        with suppress(OSError):  # another process removed it
            if entry.name.startswith(".") or entry.stat().st_mtime > time.time() - _UNUSED:
                continue
            with unused(entry) as free:
                if free:
                    put_away(entry)
    remove_abandoned(cache)


def put_away(folder: Path) -> None:
    """Take a folder's name away, so that nobody sees half of it removed.

    `remove_abandoned` removes it once nobody uses it.
    """
    with suppress(FileNotFoundError):
        folder.rename(_temporary(folder))


def write_json(path: Place, values: Any, *, durable: bool = False) -> None:
    """Write indented JSON, atomically; see `write_bytes`."""
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_bytes(path, text.encode(), durable=durable)


def write_text(path: Place, text: str) -> None:
    """Write a text file as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Place, content: bytes | memoryview, *, durable: bool = False) -> None:
    """Write a file atomically: complete, or not at all.

    Args:
        path: the file; its folder must exist.
        content: its bytes.
        durable: wait until the disk holds them; without it, a power cut may leave an empty file.
    """
    if isinstance(path, Address):
        path.write_bytes(content)
        return
    _remove_abandoned_files(path)
    with new_file(path) as temporary:
        temporary.write_bytes(content)
        if durable:
            sync(temporary)
    if durable:
        sync(path.parent)


@contextmanager
def new_file(path: Place) -> Iterator[Path]:
    """Write a file under a local temporary name of its own and move it when the block ends well.

    Two attempts to write one file, such as an engine's that runs a stage twice at a time, have
    different temporary names, and the last to end wins. `remove_partial` removes what a killed
    process leaves under such a name.

    Args:
        path: the file. A local one's folder must exist.

    Yields:
        The temporary file: beside a local file, on this machine's disk for a file in a store.
    """
    name = f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}"
    if isinstance(path, Address):
        with tempfile.TemporaryDirectory(prefix="multigate-") as folder:
            yield Path(folder) / name
            path.upload(Path(folder) / name)
        return
    temporary = path.with_name(name)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_part(path: Place) -> Iterator[Path]:
    """Write a file as `new_file` does, and make the local folder that it lies in."""
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        yield temporary


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left of files below a folder that nobody writes any more."""
    for path in folder.rglob(f".*{_PARTIAL}"):
        path.unlink()


def _remove_abandoned_files(path: Path) -> None:
    """Remove what killed processes left of a file long ago."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_PARTIAL}"):
        with suppress(OSError):  # another process removed it, or it is a folder
            if left.stat().st_mtime < time.time() - _ABANDONED:
                left.unlink()


class _Root(Protocol):
    def __truediv__(self, name: str, /) -> Self: ...


P = TypeVar("P", bound=_Root, default=Path)
"""Kind of the places in a folder: local paths, unless it says otherwise."""


class ExamplesFolder(Generic[P]):
    """Paths inside a folder of examples.

    Layout: `train/`, `validation/` and `test/` with Parquet parts, `vocabularies/<feature>.parquet`
    (value, count; most frequent first), `snapshot/users/` and `snapshot/items/` with Parquet parts
    (features as of the cut-off), `statistics.json`, `contract.json`, `manifest.json`,
    `report.json`, `rejects/`; `totals/` where counters of the next run go on from them.
    """

    def __init__(self, root: P) -> None:
        self.root = root
        self.statistics = root / "statistics.json"
        self.contract = root / "contract.json"
        self.manifest = root / "manifest.json"
        self.report = root / "report.json"
        self.rejects = root / "rejects"
        self.totals = root / "totals"

    def split(self, name: str) -> P:
        """Folder of one split's Parquet parts."""
        return self.root / name

    def snapshot(self, source: str) -> P:
        """Folder of the Parquet parts that hold the features of all `users` or `items`."""
        return self.root / "snapshot" / source

    def vocabulary(self, feature: str) -> P:
        """Vocabulary of a feature that keeps one."""
        return self.root / "vocabularies" / f"{feature}.parquet"
