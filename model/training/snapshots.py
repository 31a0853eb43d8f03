"""Snapshots of a training: everything that its next step depends on, on disk.

A snapshot is one file: the arrays of all variables (weights, the gates' step counters, states of
random generators, the optimiser's moments and counter, running means of the losses), a JSON object
with the rest of the state, then a checksum.  The newest two are kept; if the newest is damaged, the
one before it is used.

`keras.callbacks.BackupAndRestore` was considered: it restores the epoch, but neither the place
within it nor the running means of the losses, and it does not notice a damaged file.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_PATTERN = "snapshot-*.npz"
_KEPT = 2
_META = "meta"
_PART = 1 << 24  # bytes of a file that are read at once


class Snapshot(NamedTuple):
    """One moment of a training.

    Attributes:
        arrays: values of the variables, in a fixed order; `save` takes one after the other.
        meta: the rest of the state, as JSON values.
    """

    arrays: Iterable[np.ndarray]
    meta: dict[str, Any]


class DamagedError(Exception):
    """A snapshot, or a file that it refers to, differs from what was written."""


def save(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot, whole or not at all; remove all but the newest two."""
    existing = _newest_first(folder)
    number = _number(existing[0]) + 1 if existing else 1
    path = folder / _PATTERN.replace("*", f"{number:06d}")
    temporary = path.with_name(f".{path.name}.partial")
    try:
        # Not `np.savez`, which takes all arrays at once: a table may be half of the memory.
        with zipfile.ZipFile(temporary, "w") as file:
            for index, array in enumerate(snapshot.arrays):
                _add(file, f"{index:06d}", array)
            _add(file, _META, np.frombuffer(json.dumps(snapshot.meta).encode(), np.uint8))
        digest = bytes.fromhex(checksum(temporary))
        with temporary.open("ab") as end:
            end.write(digest)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    for old in existing[_KEPT - 1 :]:
        old.unlink()
    return path


def latest(
    folder: Path, check: Callable[[Snapshot], None] = lambda snapshot: None
) -> tuple[Snapshot | None, list[Path]]:
    """Read the newest snapshot that is not damaged.

    Args:
        folder: to which `save` wrote.
        check: raises `DamagedError` if a file that the snapshot refers to is damaged.

    Returns:
        The snapshot, or None; and the paths of damaged ones, which are removed.
    """
    damaged = []
    found = None
    for path in _newest_first(folder):
        try:
            found = _read(path)
            check(found)
            break
        except DamagedError:
            found = None
            damaged.append(path)
    for path in damaged:
        path.unlink(missing_ok=True)  # several workers do this at once
    return found, damaged


def checksum(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits.

    Raises:
        DamagedError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path}: {error}") from None


def exist(folder: Path) -> bool:
    """Whether there is a snapshot, damaged or not."""
    return bool(_newest_first(folder))


def _read(path: Path) -> Snapshot:
    found, left = hashlib.sha256(), path.stat().st_size - 32
    with path.open("rb") as content:
        while left > 0 and (part := content.read(min(left, _PART))):
            found.update(part)
            left -= len(part)
        if content.read() != found.digest():
            raise DamagedError(f"{path}: checksum differs")
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(file[_META].tobytes())
            arrays = [file[name] for name in sorted(set(file.files) - {_META})]
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{path}: {error}") from None
    return Snapshot(arrays, meta)


def _add(file: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    """Add an array as `np.savez` does."""
    with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
        np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def _newest_first(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob(_PATTERN), key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
