"""Finds the files of a log: in a local folder, or below an address in an object store."""

from multigate.configs.errors import DataError
from multigate.configs.storage import Address, Place


def size(place: Place) -> int:
    """Bytes of a file."""
    return place.size if isinstance(place, Address) else place.stat().st_size


def buffering(place: Place) -> int:
    """The buffer for reading a whole file in order: each read from a store is a request."""
    return 8 << 20 if isinstance(place, Address) else -1


def stamp(place: Place) -> list[str | int]:
    """What changes when a file that was listed changes: name, size, and when it was written."""
    if isinstance(place, Address):
        return [place.text, place.size, place.written]
    found = place.stat()
    return [str(place), found.st_size, found.st_mtime_ns]


def find(root: Place, glob: str) -> list[tuple[Place, str]]:
    """List the files under a folder that match a glob.

    Args:
        root: the folder.
        glob: relative to it; `*` within one folder, `**` through any number of them.

    Returns:
        Pairs of place and name (relative to `root`), sorted by name.

    Raises:
        DataError: no such folder, or the store cannot be read.
    """
    if isinstance(root, Address):
        return [(found, found.text.removeprefix(f"{root}/")) for found in root.glob(glob)]
    if not root.exists():
        raise DataError(f"{root}: no such folder; expected the folder that holds the log")
    if not root.is_dir():
        raise DataError(f"{root}: expected the folder that holds the log, received a file")
    paths = sorted(path for path in root.glob(glob) if path.is_file())
    return [(path.absolute(), path.relative_to(root).as_posix()) for path in paths]


def nearby(root: Place) -> list[str]:
    """Some names in a folder, for messages."""
    if isinstance(root, Address):
        return root.names()[:10]
    return sorted(path.name for path in root.iterdir())[:10]
