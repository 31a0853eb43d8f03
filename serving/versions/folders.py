"""Version folders: which ones a base path offers, and whether one is whole."""

import json
import re
from pathlib import Path

GRAPH = "saved_model.pb"
EXTRA = "assets.extra"
CONTRACT = f"{EXTRA}/contract.json"
GOLDEN = f"{EXTRA}/golden.json"
SPARSITY = f"{EXTRA}/sparsity.json"
WARMUP = f"{EXTRA}/tf_serving_warmup_requests"
POPULAR = f"{EXTRA}/popular.json"

_NEEDED = (GRAPH, "variables/variables.index", CONTRACT, GOLDEN)

_VERSION = re.compile("0|[1-9][0-9]*")

Stamp = tuple[tuple[str, int, int], ...]
"""Names, sizes and times of a folder's files: it changes when the folder is repaired."""


def scan(base: Path) -> dict[int, Path]:
    """Version folders of a base path, highest number first (9 comes after 10).

    A folder counts when its name is an int64 as `str` writes it; `7.partial`, `.7` and `007` are
    somebody's temporary or mistaken names.  A base path that is absent offers nothing.
    """
    try:
        entries = [path for path in base.iterdir() if _VERSION.fullmatch(path.name)]
    except OSError:
        return {}
    named = {int(path.name): path for path in entries if _is_folder(path)}
    return {number: named[number] for number in sorted(named, reverse=True) if number < 1 << 63}


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a link to where nobody may look
        return False


def missing_files(folder: Path) -> list[str]:
    """Files without which a version cannot be served: not empty while it is being copied."""
    return [name for name in _NEEDED if not (folder / name).is_file()]


def stamp(folder: Path) -> Stamp:
    """Fingerprint of the folder's files without reading them."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            status = path.stat()
        except FileNotFoundError:  # renamed since it was listed
            continue
        except OSError as error:  # may not be looked at
            found.append((name, -1, error.errno or 0))
        else:
            found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)


def experts_per_row(folder: Path) -> float | None:
    """Experts that are evaluated per row, as export measured; None where it does not say."""
    try:
        return float(json.loads((folder / SPARSITY).read_text(encoding="utf-8"))["experts_per_row"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
