"""Snapshots of a training: everything that its next step depends on, on disk.

A snapshot is one file: the arrays of all variables (weights, the gates' step counters, states of
random generators, the optimiser's moments and counter, running means of the losses), a JSON object
with the rest of the state, then a checksum.  The newest two are kept; if the newest is damaged, the
one before it is used.

`keras.callbacks.BackupAndRestore` was considered: it restores the epoch, but neither the place
within it nor the running means of the losses, and it does not notice a damaged file.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multigate.configs.files import write_bytes

_PATTERN = "snapshot-*.npz"
_KEPT = 2
_META = "meta"


class Snapshot(NamedTuple):
    """One moment of a training.

    Attributes:
        arrays: values of the variables, in a fixed order.
        meta: the rest of the state, as JSON values.
    """

    arrays: list[np.ndarray]
    meta: dict[str, Any]


class DamagedError(Exception):
    """A snapshot, or a file that it refers to, differs from what was written."""


def save(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot, whole or not at all; remove all but the newest two."""
    content = io.BytesIO()
    arrays: dict[str, Any] = {f"{i:06d}": array for i, array in enumerate(snapshot.arrays)}
    arrays[_META] = np.frombuffer(json.dumps(snapshot.meta).encode(), np.uint8)
    np.savez(content, **arrays)
    content.write(hashlib.sha256(content.getbuffer()).digest())
    existing = _newest_first(folder)
    number = _number(existing[0]) + 1 if existing else 1
    path = folder / _PATTERN.replace("*", f"{number:06d}")
    write_bytes(path, content.getbuffer())
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
    """SHA-256 of a file.

    Raises:
        DamagedError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DamagedError(f"{path}: {error}") from None


def exist(folder: Path) -> bool:
    """Whether there is a snapshot, damaged or not."""
    return bool(_newest_first(folder))


def _read(path: Path) -> Snapshot:
    content = path.read_bytes()
    body, digest = content[:-32], content[-32:]
    if hashlib.sha256(body).digest() != digest:
        raise DamagedError(f"{path}: checksum differs")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as file:
            meta = json.loads(file[_META].tobytes())
            arrays = [file[name] for name in sorted(set(file.files) - {_META})]
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{path}: {error}") from None
    return Snapshot(arrays, meta)


def _newest_first(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob(_PATTERN), key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
