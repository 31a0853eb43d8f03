"""Copies a base folder to an object store, from which servers pull complete versions."""

import logging
from pathlib import Path
from typing import TypedDict

from multigate.configs import progress
from multigate.configs.errors import DataError
from multigate.configs.examples_store import for_each
from multigate.configs.storage import Address
from multigate.configs.version_folders import (
    MANIFEST,
    SETTINGS,
    TRIAL,
    VersionFile,
    read_manifest,
    write_manifest,
)
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.trial import trial_of

_log = logging.getLogger(__name__)


class Uploaded(TypedDict):
    """What changed in the store.

    Attributes:
        copied: versions that are new there.
        removed: versions that are no longer offered.
    """

    copied: list[int]
    removed: list[int]


def upload(base: Base, to: Address) -> Uploaded:
    """Make a base path in a store offer what a base folder offers.

    New versions come first, each with its manifest last; then the trial; versions that are no
    longer offered go last, each with its manifest first. So a server that looks meanwhile finds a
    version to serve. One that was killed is continued by the same call.

    Args:
        base: the base folder.
        to: the base path; no other folder may be copied there.

    Raises:
        RunError: the settings of the trial are damaged.
        DataError: the store cannot be read or written, or holds versions of another base folder.
    """
    with base.locked("upload"):
        offered, trial = base.versions(), trial_of(base)
        _refuse_strangers(base, to)
        tried = {} if trial is None else {trial.version: trial.folder(base.root)}
        versions = [(number, folder, to) for number, folder in sorted(offered.items())]
        versions += [(number, folder, to / TRIAL) for number, folder in tried.items()]
        copied = [
            number
            for number, folder, place in progress.track(
                versions, f"publish to {to}", len(versions), "versions"
            )
            if _upload_version(folder, place / str(number))
        ]
        if trial is not None:
            (to / SETTINGS).write_bytes(trial.text().encode())
        elif (to / SETTINGS).is_file():
            (to / SETTINGS).unlink()
        removed = _remove_others(to, set(offered)) if offered else []
        removed += _remove_others(to / TRIAL, set(tried))
    return {"copied": copied, "removed": removed}


def _upload_version(folder: Path, to: Address) -> bool:
    """Copy a version, unless it is complete there; versions never change."""
    paths = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    files = {name: VersionFile.of(path) for name, path in paths.items()}
    try:
        if read_manifest(to) == files:
            return False
    except ValueError as error:
        _log.warning("%s", error)
    for_each(lambda name: (to / name).upload(paths[name]), paths)
    write_manifest(to, files)
    return True


def _refuse_strangers(base: Base, to: Address) -> None:
    """Refuse an address with versions of another base folder, which would be removed."""
    known = {*base.versions(), *base.withdrawn(), *base.tried()}
    known |= {entry["version"] for entry in base.history()}
    strangers = sorted(_numbers(to) - known)
    if strangers:
        raise DataError(
            f"{to / str(strangers[0])}: {base.root} never had this version; give each base folder "
            "an address of its own, or remove the version there"
        )


def _numbers(base: Address) -> set[int]:
    """Versions of which a file is there; a folder that was emptied may still have its name."""
    first = {name.partition("/")[0] for name in base.files() if "/" in name}
    return {int(name) for name in first if name.isascii() and name.isdecimal()}


def _remove_others(base: Address, kept: set[int]) -> list[int]:
    """Remove the versions that are not to stay."""
    gone = sorted(number for number in _numbers(base) if number not in kept)
    for number in gone:
        version = base / str(number)
        if (version / MANIFEST).is_file():
            (version / MANIFEST).unlink()
        version.remove_files()
    return gone
