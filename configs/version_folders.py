"""Numbers of the versions in a base folder: `<base>/<number>/`; a version never changes."""

from pathlib import Path

from multigate.configs.errors import ExportError


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
