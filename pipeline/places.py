"""Finds files: in a local folder, or in a filesystem that Beam knows by its scheme.

`gs://bucket/logs`, `s3://bucket/logs` and `hdfs://host/logs` need Beam's packages for them
(`pip install apache-beam[gcp]`, `[aws]`, `hdfs`). Local paths do not import Beam.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from multigate.configs.errors import DataError


@dataclass(frozen=True)
class Address:
    """A file that Beam opens, with the part of `Path` that the readers use."""

    text: str
    size: int
    """In bytes."""

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rpartition("/")[2]

    def open(self, mode: Literal["rb"]) -> Any:
        """Open the file for reading, seekable, as its raw bytes."""
        filesystems, compression = _beam()
        return filesystems.open(self.text, compression_type=compression.UNCOMPRESSED)


Place = Path | Address


def size(place: Place) -> int:
    """Bytes of a file."""
    return place.size if isinstance(place, Address) else place.stat().st_size


def find(root: str, glob: str) -> list[tuple[Place, str]]:
    """List the files under a folder that match a glob.

    Args:
        root: a local folder, or an address with a scheme.
        glob: relative to it; `*` within one folder, `**` through any number of them.

    Returns:
        Pairs of place and name (relative to `root`), sorted by name.

    Raises:
        DataError: no such folder, or Beam does not know or reach the filesystem.
    """
    if "://" in root:
        return _find_remote(root, glob)
    folder = Path(root)
    if not folder.exists():
        raise DataError(f"{root}: no such folder; expected the folder that holds the log")
    if not folder.is_dir():
        raise DataError(f"{root}: expected the folder that holds the log, received a file")
    paths = sorted(path for path in folder.glob(glob) if path.is_file())
    return [(path.absolute(), path.relative_to(folder).as_posix()) for path in paths]


def nearby(root: str) -> list[str]:
    """Some names in a folder, for messages."""
    if "://" in root:
        return [name for _, name in _find_remote(root, "*")][:10]
    return sorted(path.name for path in Path(root).iterdir())[:10]


def _beam() -> tuple[Any, Any]:
    from multigate.pipeline.runner import import_beam

    import_beam()
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems, CompressionTypes


def _find_remote(root: str, glob: str) -> list[tuple[Place, str]]:
    filesystems, _ = _beam()
    base = root.rstrip("/") + "/"
    try:
        # The filesystem itself matches the pattern.
        (matched,) = filesystems.match([base + glob])
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{root}: cannot be listed: {reason}") from None
    found = {file.path.removeprefix(base): file for file in matched.metadata_list}
    return [(Address(found[name].path, found[name].size_in_bytes), name) for name in sorted(found)]
