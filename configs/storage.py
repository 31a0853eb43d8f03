"""Where files lie: a local path, or an address such as `s3://bucket/key` or `gs://bucket/key`.

One filesystem layer serves the whole project: pyarrow.fs, which is in the wheel that the pipeline
needs anyway. fsspec was considered: it needs a package more for each store. Credentials and
endpoints come from the environment, as for the stores' own tools, and never stand in an address:

- S3: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, a profile (`AWS_PROFILE`) or the machine's
  role; `AWS_REGION`; `AWS_ENDPOINT_URL` for other servers that speak S3.
- Google Cloud Storage: `GOOGLE_APPLICATION_CREDENTIALS` or the machine's account;
  `STORAGE_EMULATOR_HOST` for an emulator.

A request that a store answers with "slow down" or 503 is repeated, with growing pauses.
"""

import errno
import io
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from multigate.configs.errors import DataError, one_line

_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<bucket>[^/]*)/*(?P<key>.*)", re.S)
_SCHEMES = ("s3", "gs")
_BUFFER = 1 << 20
_ATTEMPTS = 7  # about half a minute
_SILENCE = 10.0  # seconds without a byte, after which S3 is asked again
_PATIENCE = timedelta(seconds=30)  # of Google's client, which counts no attempts
_NOT_REPEATED = "Failed to flush response stream"
_AWS_ERROR = re.compile(r"AWS Error (\w+) during (\w+) operation: (.*)", re.S)


@dataclass(frozen=True, order=True)
class Address:
    """A file or folder in an object store, with the part of `Path` that the project uses.

    `place` makes and checks one from what a user gives.
    """

    text: str
    """Such as `s3://bucket/folder/file`, without a slash at the end."""
    size: int = field(default=0, compare=False)
    """Bytes of a file that a listing found."""
    written: int = field(default=0, compare=False)
    """When a file that a listing found was written, in nanoseconds since 1970."""

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "Address":
        return Address(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> "Address":
        """The folder that it lies in."""
        return Address(self.text.rpartition("/")[0])

    def with_name(self, name: str) -> "Address":
        """The same folder's file or folder of another name."""
        return Address(f"{self.text.rpartition('/')[0]}/{name}")

    @property
    def key(self) -> str:
        """Bucket and key, as pyarrow names files."""
        return self.text.partition("://")[2]

    def changed(self) -> int:
        """When a file was written, in nanoseconds since 1970."""
        with plain_failures(self, "read"):
            return int(_filesystem(self).get_file_info(self.key).mtime_ns or 0)

    def is_file(self) -> bool:
        """Whether there is such a file."""
        with plain_failures(self, "read"):
            return bool(_filesystem(self).get_file_info(self.key).is_file)

    def open(self, mode: Literal["rb"] = "rb", buffering: int = _BUFFER) -> io.BufferedReader:
        """Open a file for reading; raises FileNotFoundError where there is none."""
        with plain_failures(self, "read"):
            file = _filesystem(self).open_input_file(self.key)
        return io.BufferedReader(_Object(self, file), buffering)

    def read_bytes(self) -> bytes:
        """The content of a file; raises FileNotFoundError where there is none."""
        with self.open() as file:
            return file.read()

    def read_text(self, encoding: str = "utf-8") -> str:
        """The content of a text file."""
        return self.read_bytes().decode(encoding)

    def dataset(self, files: Sequence["Address"]) -> Any:
        """Parquet files of this store as one dataset of pyarrow's, which reads footers once."""
        from pyarrow import dataset

        keys = [file.key for file in files]
        with plain_failures(self, "read"):
            return dataset.dataset(keys, format="parquet", filesystem=_filesystem(self))

    def write_bytes(self, content: bytes | memoryview) -> None:
        """Write a file, which appears when it is whole."""
        with plain_failures(self, "written"):
            sink = self._sink()
            sink.write(content)
            sink.close()

    def upload(self, path: Path) -> None:
        """Write a file with the content of a local one; it appears when it is whole."""
        with path.open("rb") as source, plain_failures(self, "written"):
            # An error must not close the stream: that would make a file of what came through.
            sink = self._sink()
            shutil.copyfileobj(source, sink, 8 * _BUFFER)
            sink.close()

    def _sink(self) -> Any:
        # By default, pyarrow would compress what is written under a name such as `log.csv.gz`.
        return _filesystem(self).open_output_stream(self.key, compression=None)

    def download(self, path: Path) -> None:
        """Copy a file to a local one.

        Raises:
            DataError: fewer or more bytes came than the listing says.
        """
        with self.open(buffering=8 * _BUFFER) as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, 8 * _BUFFER)
            received = sink.tell()
        if received != self.size:
            raise DataError(
                f"{self}: expected {self.size} bytes, received {received}; the file changed while "
                "it was read: start again"
            )

    def files(self) -> dict[str, "Address"]:
        """All files below a folder, by their names relative to it, sorted; none of no folder."""
        return self._list(self.key, recursive=True)

    def glob(self, pattern: str) -> list["Address"]:
        """The files below a folder that match a pattern, sorted.

        Args:
            pattern: `*` matches within one folder, `**` any number of folders.
        """
        parts = pattern.split("/")
        fixed = next(
            (at for at, part in enumerate(parts[:-1]) if _MAGIC & set(part)), len(parts) - 1
        )
        start = "/".join([self.key, *parts[:fixed]])
        found = self._list(start, recursive=fixed < len(parts) - 1 or parts[-1] == "**")
        matches = re.compile(_regular(pattern)).fullmatch
        return [address for name, address in found.items() if matches(name)]

    def names(self) -> list[str]:
        """The names of the files and folders in a folder, sorted."""
        if self.text.startswith("gs:"):  # pyarrow lists no folders there
            return sorted({name.partition("/")[0] for name in self.files()})
        return sorted(info.base_name for info in self._infos(self.key, recursive=False))

    def unlink(self) -> None:
        """Remove a file."""
        with plain_failures(self, "removed"):
            _filesystem(self).delete_file(self.key)

    def remove_files(self) -> None:
        """Remove all files below a folder."""
        with plain_failures(self, "removed"):
            _filesystem(self).delete_dir_contents(self.key, missing_dir_ok=True)

    def _list(self, start: str, recursive: bool) -> dict[str, "Address"]:
        infos = [info for info in self._infos(start, recursive) if info.is_file]
        begin = len(self.key) + 1
        found = {i.path[begin:]: self._found(i) for i in infos}
        return {name: found[name] for name in sorted(found)}

    def _found(self, info: Any) -> "Address":
        scheme = self.text.partition("://")[0]
        return Address(f"{scheme}://{info.path}", info.size, info.mtime_ns or 0)

    def _infos(self, start: str, recursive: bool) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(start, allow_not_found=True, recursive=recursive)
        with plain_failures(self, "listed"):
            found = list(_filesystem(self).get_file_info(selector))
            bucket = self.key.partition("/")[0]
            if not found and _filesystem(self).get_file_info(bucket).type == fs.FileType.NotFound:
                raise DataError(f"{self}: there is no bucket {bucket!r}; correct the address")
            return found


Place = Path | Address
"""Where a file or folder lies."""

_MAGIC = set("*?[")


def is_address(text: str | Place) -> bool:
    """Whether a text names a place in an object store."""
    return "://" in str(text)


def place(text: str | Place) -> Place:
    """The place that a user names: a local path, or an address.

    Raises:
        DataError: no address of a known kind, or one with credentials.
    """
    if not isinstance(text, str) or "://" not in text:
        return Path(text) if isinstance(text, str) else text
    found = _ADDRESS.fullmatch(text)
    scheme = text.partition("://")[0]
    if found is None or scheme not in _SCHEMES:
        known = " or ".join(f"{name}://bucket/key" for name in _SCHEMES)
        raise DataError(
            f"{scheme}://...: expected a local path, {known}; received another kind of address"
        )
    if "@" in found["bucket"]:
        raise DataError(
            f"{scheme}://...: credentials do not belong in an address, which messages and logs "
            "show; give them in the environment, see docs/operations.md"
        )
    if not found["bucket"]:
        raise DataError(f"{text}: expected {scheme}://bucket/key, received no bucket")
    return Address(f"{scheme}://{found['bucket']}/{found['key']}".rstrip("/"))


def cache_folder(kind: str) -> Path:
    """Where copies of one kind of files from stores are kept on this machine."""
    chosen = os.environ.get("MULTIGATE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(chosen) if chosen else Path(base) / "multigate") / kind


def _regular(pattern: str) -> str:
    """The regular expression of a glob."""
    found = []
    parts = pattern.split("/")
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            found.append(".*" if last else "(?:[^/]+/)*")
            continue
        for token in re.findall(r"\[!?\]?[^\]]*\]|.", part):
            if token == "*":
                found.append("[^/]*")
            elif token == "?":
                found.append("[^/]")
            elif len(token) > 1:
                inner = token[1:-1].replace("\\", r"\\")
                found.append(f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]")
            else:
                found.append(re.escape(token))
        if not last:
            found.append("/")
    return "".join(found)


class _Object(io.RawIOBase):
    """A file in a store, as Python reads files."""

    def __init__(self, address: Address, file: Any) -> None:
        self._address, self._file = address, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with plain_failures(self._address, "read"):
            for attempt in range(_ATTEMPTS):
                try:
                    return int(self._file.readinto(buffer))
                except OSError as error:
                    # Of a few bytes, the client fails to read a store's longer answer "slow down".
                    if _NOT_REPEATED not in str(error) or attempt == _ATTEMPTS - 1:
                        raise
                    time.sleep(0.1 * 2**attempt)
        raise AssertionError

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _filesystem(address: Address) -> Any:
    scheme, _, rest = address.text.partition("://")
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    else:
        endpoint = os.environ.get("STORAGE_EMULATOR_HOST")
    return _connect(scheme, rest.partition("/")[0], endpoint)


@cache
def _connect(scheme: str, bucket: str, endpoint: str | None) -> Any:
    from pyarrow import fs

    if scheme == "gs":
        if endpoint is None:
            return fs.GcsFileSystem(retry_time_limit=_PATIENCE)
        protocol, _, host = endpoint.rpartition("://")
        return fs.GcsFileSystem(
            anonymous=True,
            endpoint_override=host,
            scheme=protocol or "http",
            retry_time_limit=_PATIENCE,
        )
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and endpoint is None:
        try:
            region = fs.resolve_s3_region(bucket)
        except OSError:
            region = None  # the first request says what is wrong
    return fs.S3FileSystem(
        endpoint_override=endpoint,
        region=region,
        connect_timeout=10,
        request_timeout=_SILENCE,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


@contextmanager
def plain_failures(address: Address, done: str) -> Iterator[None]:
    """Say in one line what a store refused; a missing file stays a FileNotFoundError.

    Args:
        address: what was asked for.
        done: what could not be done, such as `read`.
    """
    try:
        yield
    except FileNotFoundError as error:
        if done == "written":
            bucket = address.key.partition("/")[0]
            raise DataError(
                f"{address}: cannot be written: there is no bucket {bucket!r}; correct the address"
            ) from error
        raise FileNotFoundError(errno.ENOENT, "No such file", str(address)) from None
    except OSError as error:
        raise DataError(f"{address}: cannot be {done}: {_reason(address, error)}") from None


def _reason(address: Address, error: OSError) -> str:
    """What went wrong, and what to do."""
    text = one_line(error, 4000)
    found = _AWS_ERROR.search(text)
    code = found[1] if found is not None else ""
    bucket = address.key.partition("/")[0]
    lower = text.lower()
    if code == "NO_SUCH_BUCKET" or "bucket does not exist" in lower:
        return f"there is no bucket {bucket!r}; correct the address"
    if re.search(r"HTTP status 507|StorageFull|QuotaExceeded", text) is not None:
        return f"the store has no room in bucket {bucket!r} ({text[-200:]}); make room, start again"
    if code in ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH") or (
        "HTTP status 403" in text
        or "permission_denied" in lower
        or "unauthenticated" in lower
        or "oauth2 access token" in lower
    ):
        return (
            f"access denied ({code or 'no permission'}); expected credentials in the environment "
            f"that may use bucket {bucket!r}, see docs/operations.md"
        )
    busy = code in ("SLOW_DOWN", "SERVICE_UNAVAILABLE", "THROTTLING", "INTERNAL_FAILURE")
    if busy or re.search(r"HTTP status 5\d\d", text) is not None:
        what = code or text[:200]
        return f"the store was busy at each of {_ATTEMPTS} attempts ({what}); start again later"
    if code == "NETWORK_CONNECTION":
        detail = found[3] if found is not None else text
        return f"the store cannot be reached ({detail[:200]}); check the network and the endpoint"
    return text[:400]
