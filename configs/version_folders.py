"""Versions in a base folder: `<base>/<number>/`, which never change; and the one that is on trial.

The base folder may lie in an object store. There is no rename there: a version's manifest, with the
size and the SHA-256 of each of its files, is written last, and a version without one is not there.

    BASE/7/                        in production, where 7 is the highest number
    BASE/.trial/8/                 on trial
    BASE/.trial/settings.json      which version is on trial, and on how many users and calls

Servers read the settings whenever they look for versions.  A version on trial is never the newest
one, and TensorFlow Serving does not see it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from multigate.configs.errors import ExportError
from multigate.configs.files import write_json
from multigate.configs.storage import Address, Place

TRIAL = ".trial"
MANIFEST = "manifest.json"
"""Beside the files of a version in a store."""
SETTINGS = f"{TRIAL}/settings.json"


@dataclass(frozen=True)
class Trial:
    """A version that is tried beside the one in production."""

    version: int
    canary: float = 0.0
    """Percentage of the users whom it answers."""
    shadow: float = 0.0
    """Percentage of the calls that the other version scores as well, after the answer."""

    def __post_init__(self) -> None:
        """Refuse what is no percentage.

        Raises:
            ValueError: names the setting, what was expected and what came.
        """
        for name in ("canary", "shadow"):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= 100
            ):
                raise ValueError(f"{name}: expected a percentage, 0 to 100, received {value!r}")
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 0:
            raise ValueError(f"version: expected a number of 0 or more, received {self.version!r}")

    def folder(self, base: Path) -> Path:
        """Where the version lies."""
        return base / TRIAL / str(self.version)

    def words(self) -> str:
        """Its percentages, for people."""
        return f"canary {self.canary:g} %, shadow {self.shadow:g} %"

    def text(self) -> str:
        """The settings as a file has them."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def write(self, base: Path) -> None:
        """Begin the trial, or change its percentages, in one step."""
        (base / TRIAL).mkdir(exist_ok=True)
        write_json(base / SETTINGS, asdict(self), durable=True)


@dataclass(frozen=True)
class VersionFile:
    """A file of a version, as the manifest has it."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "VersionFile":
        """Read a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)


def write_manifest(version: Address, files: Mapping[str, VersionFile]) -> None:
    """Complete a version in a store.

    Args:
        version: its address.
        files: by name relative to it, all of which are there.
    """
    values = {"files": {name: asdict(file) for name, file in sorted(files.items())}}
    write_json(version / MANIFEST, values)


def read_manifest(version: Address) -> dict[str, VersionFile] | None:
    """The files of a version in a store; None where it is not complete.

    Raises:
        ValueError: the manifest is damaged.
        DataError: the store cannot be read.
    """
    try:
        listed = json.loads((version / MANIFEST).read_text())["files"]
        files = {name: VersionFile(**file) for name, file in listed.items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{version / MANIFEST}: damaged: {error}; publish the version again"
        ) from None
    for name in files:
        if name.startswith("/") or ".." in name.split("/") or not name.isprintable():
            raise ValueError(f"{version / MANIFEST}: expected names below it, received {name!r}")
    return files


def read_trial(base: Place) -> Trial | None:
    """The version on trial in a base folder; None where there is none.

    Raises:
        ValueError: the settings are damaged.
        OSError: they cannot be read.
    """
    try:
        text = (base / SETTINGS).read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Trial(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{base / SETTINGS}: {error}") from None


def new_version(base: Path, version: int | None = None) -> int:
    """A number for a new version.

    Args:
        base: folder of the versions; need not exist.
        version: the number to take; None takes the highest existing one plus one.

    Raises:
        ExportError: `base` is a file, or the version is negative or exists.
    """
    if base.exists() and not base.is_dir():
        raise ExportError(f"{base}: expected a folder of versions, found a file; choose another")
    names = [path.name for path in base.iterdir()] if base.exists() else []
    following = 1 + max((int(name) for name in names if name.isdecimal()), default=0)
    if version is None:
        return following
    if version < 0:
        raise ExportError(f"version: expected a number of at least 0, received {version}")
    if (base / str(version)).exists():
        raise ExportError(
            f"{base / str(version)}: this version exists, and versions are never changed; "
            f"choose another, such as {following}"
        )
    return version
