"""Version folders: which ones a base path has, and whether one is complete."""

import json
import os
import re
from pathlib import Path

from multigate.configs.errors import ServingError

GRAPH = "saved_model.pb"
EXTRA = "assets.extra"
CONTRACT = f"{EXTRA}/contract.json"
GOLDEN = f"{EXTRA}/golden.json"
SPARSITY = f"{EXTRA}/sparsity.json"
WARMUP = f"{EXTRA}/tf_serving_warmup_requests"
POPULAR = f"{EXTRA}/popular.json"

_NEEDED = (GRAPH, CONTRACT, GOLDEN)

_VERSION = re.compile("0|[1-9][0-9]*")

Stamp = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of a folder's files; differs once the folder is repaired."""


def scan(base: Path) -> dict[int, Path]:
    """Version folders of a base path, highest number first (9 comes after 10).

    A version folder's name is an int64 without leading zeros: not `7.partial`, `.7` or `007`, which
    are temporary or mistaken.  An absent base path has no versions.
    """
    # The listing itself says what is a folder.  A later look at each path would see versions that
    # are withdrawn meanwhile go one by one, and take one in between for the highest.
    try:
        with os.scandir(base) as entries:
            found = [one for one in entries if _VERSION.fullmatch(one.name) and _is_folder(one)]
    except OSError:
        return {}
    named = {int(one.name): base / one.name for one in found}
    return {number: named[number] for number in sorted(named, reverse=True) if number < 1 << 63}


def require_versions(base: Path) -> None:
    """Check that a base path has versions, complete or not.

    Raises:
        ServingError: it does not exist, is a version itself, or has none.
    """
    if not base.is_dir():
        raise ServingError(f"{base}: expected a folder of versions, but it does not exist")
    if (base / GRAPH).is_file():
        raise ServingError(
            f"{base}: expected a folder of numbered versions, received a version; give the folder "
            f"that it is in, {base.absolute().parent}"
        )
    if not scan(base):
        raise ServingError(
            f"{base}: expected numbered version folders such as {base / '1'}, received none; "
            "export a model first"
        )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link into a folder without permission
        return False


def missing_files(folder: Path) -> list[str]:
    """Needed files that are absent, as they are while a version is being copied."""
    return [name for name in _NEEDED if not (folder / name).is_file()]


def stamp(folder: Path) -> Stamp:
    """Names, sizes and times of the folder's files; reads no file."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            status = path.stat()
        except FileNotFoundError:  # renamed meanwhile
            continue
        except OSError as error:  # no permission
            found.append((name, -1, error.errno or 0))
        else:
            found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def experts_per_row(folder: Path) -> float | None:
    """Experts evaluated per row, as measured at export; None for versions without that file."""
    try:
        return float(json.loads((folder / SPARSITY).read_text(encoding="utf-8"))["experts_per_row"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
