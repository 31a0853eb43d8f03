"""Folders of examples at any place: made complete or not at all, and read through a local cache.

A local folder is renamed when it is whole. In a store there is no rename: `manifest.json` is
written last, and a folder without it is no folder of examples.

    s3://bucket/examples/.writing     first: the run that writes here; removed at the end
    s3://bucket/examples/train/...    parts, as they are made
    s3://bucket/examples/manifest.json

What a killed run left (files and `.writing`, no manifest) the next run removes. Two runs that write
to one address at a time are detected: only the one that began last can finish. cloudpathlib was
considered: it caches single files, and needs each store's own SDK.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multigate.configs.errors import DataError
from multigate.configs.files import (
    ExamplesFolder,
    in_use,
    new_folder,
    remove_unused,
    temporary_folder,
    write_json,
)
from multigate.configs.storage import Address, Place, cache_folder

_MARKER = ".writing"
_WORK, _IDENTITY = ".work", "identity"
_AT_ONCE = 8  # files that are copied at the same time


@dataclass
class Unfinished:
    """A folder of examples that is being made.

    `local`: where this process writes, and from where `complete` uploads. `shared`: where workers
    on other machines write; the same where the folder is a local one. `resumed`: whether `local`
    holds what a killed run made.
    """

    local: Path
    shared: Place
    resumed: bool = False
    _kept: set[str] = field(default_factory=set)
    _token: str = ""

    @property
    def work(self) -> Path:
        """A folder for what is needed while the examples are made."""
        return self.local / _WORK

    def keep(self) -> None:
        """Keep what workers have written to the store; what comes later is another run's."""
        if isinstance(self.shared, Address):
            self._kept = self.shared.files().keys() - {_MARKER}

    def complete(self, manifest: dict[str, Any]) -> None:
        """Write the manifest, last, once all that this process wrote is in the store.

        Raises:
            DataError: another run writes to the same address.
        """
        shutil.rmtree(self.work)
        if not isinstance(self.shared, Address):
            write_json(ExamplesFolder(self.local).manifest, manifest)
            return
        names = {p.relative_to(self.local).as_posix() for p in _files(self.local)}
        shared = self.shared
        for_each(lambda name: (shared / name).upload(self.local / name), sorted(names))
        # What else is there came from the workers of a run that was killed.
        for name in shared.files().keys() - names - self._kept - {_MARKER}:
            (shared / name).unlink()
        if _writer(shared) != self._token:
            raise DataError(
                f"{self.shared}: another run began to write to this address meanwhile, and removed "
                "what this one had written; give every run an address of its own"
            )
        write_json(ExamplesFolder(shared).manifest, manifest)
        (shared / _MARKER).unlink()


@contextmanager
def new_examples(out: Place, identity: str | None = None) -> Iterator[Unfinished]:
    """Make a folder of examples, complete or not at all.

    Args:
        out: a local folder, which must not exist; or an address, below which there must be no
            files but those that a killed run left.
        identity: of all that the examples depend on. The local folder of a run of the same identity
            that was killed is used again; of runs without one, or that failed, none is kept.

    Raises:
        DataError: `out` exists.
    """

    def adopt(folder: Path) -> bool:
        # Stage records are pickles: a folder of another user's is not opened.
        own = folder.stat().st_uid == os.getuid()
        return own and identity is not None and _read(folder / _WORK / _IDENTITY) == identity

    def begin(folder: Path) -> bool:
        found = (folder / _WORK).exists()
        (folder / _WORK).mkdir(exist_ok=True)
        (folder / _WORK / _IDENTITY).write_text(identity or "")
        return found

    if isinstance(out, Path):
        # Workers need not share this process's working directory.
        with new_folder(out.absolute(), adopt) as folder:
            yield Unfinished(folder, folder, begin(folder))
        return
    token = _claim(out)
    try:
        scratch = Path(tempfile.gettempdir()) / f"multigate-{out.name}"
        with temporary_folder(scratch, adopt) as folder:
            yield Unfinished(folder, out, begin(folder), _token=token)
    except BaseException:
        with suppress(DataError, OSError):  # the first failure is the one to tell
            if _writer(out) == token:
                out.remove_files()
        raise


def _claim(out: Address) -> str:
    """Mark an address as written to by this run; returns the mark."""
    found = out.files()
    if found and (_MARKER not in found or "manifest.json" in found):
        raise DataError(f"{out}: already exists; choose another output folder or remove it")
    token = secrets.token_hex(16)
    if found:
        out.remove_files()
    (out / _MARKER).write_bytes(token.encode())
    return token


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _writer(out: Address) -> str | None:
    """The mark of the run that writes to an address."""
    try:
        return (out / _MARKER).read_text()
    except FileNotFoundError:
        return None


@contextmanager
def fetched(folder: Place) -> Iterator[Path]:
    """A folder of examples as a local one: itself, or a copy in the cache.

    The cache is `MULTIGATE_CACHE`, or `multigate` in `XDG_CACHE_HOME` or `~/.cache`. Its key is the
    address and its manifest, with the time at which it was written. Copies that no command has used
    for a week are removed. While the block runs, the copy stays.

    Raises:
        DataError: there is no manifest at the address, or the store cannot be read.
    """
    if isinstance(folder, Path):
        yield folder
        return
    cache = cache_folder("examples")
    key = _identity(folder)
    while True:
        entry = cache / key
        if not entry.exists():
            _fetch(folder, entry, key)
        with in_use(entry) as kept:
            if not kept:
                continue  # another process removed it meanwhile
            os.utime(entry)
            remove_unused(cache)
            yield entry / folder.name
            return


def _identity(folder: Address) -> str:
    """What tells a folder's content from that of another run, or of another address."""
    manifest = ExamplesFolder(folder).manifest
    try:
        content, changed = manifest.read_bytes(), manifest.changed()
    except FileNotFoundError:
        raise DataError(
            f"{manifest}: no manifest here: expected examples that `multigate examples` wrote; "
            "a run that is under way or was killed leaves none"
        ) from None
    return hashlib.sha256(f"{folder}\n{changed}\n".encode() + content).hexdigest()[:24]


def _fetch(folder: Address, entry: Path, key: str) -> None:
    """Copy a folder into the cache."""
    with temporary_folder(entry) as temporary:
        (temporary / folder.name).mkdir()
        _download(folder, temporary / folder.name)
        if _identity(folder) != key:
            raise DataError(f"{folder}: the examples changed while they were read; start again")
        with suppress(OSError):  # another process was faster
            temporary.rename(entry)


def _download(folder: Address, to: Path) -> None:
    """Copy the files of a folder."""
    found = folder.files()
    names = [name for name in found if name != _MARKER]
    for parent in {(to / name).parent for name in names}:
        parent.mkdir(parents=True, exist_ok=True)
    for_each(lambda name: found[name].download(to / name), names)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def for_each(function: Callable[[str], None], names: Iterable[str]) -> None:
    """Call a function with each name, several at a time; raises the first failure."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for done in [pool.submit(function, name) for name in names]:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
