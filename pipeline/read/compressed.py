"""Opens plain and compressed files, and members of zips, as streams of bytes.

The file's first bytes tell how it is compressed, not its name. A damaged file yields what can be
read, then raises `DamagedError`. The libraries decompress (gzip, bz2, lzma, zipfile, Arrow for
zstd); fsspec and smart_open, which wrap them, go by the name.
"""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from multigate.configs.errors import one_line
from multigate.configs.storage import Place
from multigate.pipeline.read.places import buffering, size

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_HEAD = 16  # bytes that tell how a file is compressed
SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
MISSING_END = "what the file held after its end, which is missing"
_FAILURES = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pa.ArrowInvalid)


class DamagedError(Exception):
    """The rest of a file cannot be read; the message says why.

    Args:
        reason: the message.
        lost: what is known to be lost, such as `300 of 1000 bytes`.
        line: the line that follows what was read.
        text: the beginning of that line, where it can be shown.
    """

    def __init__(
        self, reason: str, lost: str = "the whole file", line: int = 1, text: str = ""
    ) -> None:
        super().__init__(reason)
        self.lost, self.line, self.text = lost, line, text


class Stream:
    """A stream of decompressed bytes that raises `DamagedError` whatever the library raised.

    Args:
        raw: the stream.
        lost: says what was not read so far.
        first: whether it begins where the file does.
    """

    def __init__(self, raw: Any, lost: Callable[[], str], first: bool = True) -> None:
        self._lost, self.first = lost, first
        # read1 returns what one step of decompression gave, so that no good byte before the
        # damage is lost. Arrow's stream has no read1: it gets small pieces.
        self._read = getattr(raw, "read1", raw.read)
        self._piece = 1 << 16 if hasattr(raw, "read1") else 1 << 12

    def read(self) -> bytes:
        """Return the next piece of the file, empty at its end.

        Raises:
            DamagedError: nothing more can be read.
        """
        try:
            return bytes(self._read(self._piece))
        except _FAILURES as error:
            reason = one_line(error)
            why = f"damaged file, the rest of it was not read: {reason}"
            raise DamagedError(why, self._lost()) from None


class ByteRange:
    """A part of a file: the lines that begin in the bytes [start, stop).

    Args:
        raw: the file, opened for reading bytes.
        start: where the range begins.
        stop: where it ends; the last line may continue after it.
    """

    def __init__(self, raw: Any, start: int, stop: int) -> None:
        self._raw, self._at, self._stop = raw, start, stop
        self._first, self._done = start > 0, False
        raw.seek(max(start - 1, 0))

    def read(self, size: int) -> bytes:
        """Return about `size` bytes, none at the end."""
        if self._first:  # skip the rest of the line that began before the range
            self._first = False
            rest = self._raw.readline()
            self._at += len(rest) - 1
            self._done = not rest
        if self._done or self._at >= self._stop:
            return b""
        piece = bytes(self._raw.read(min(size, self._stop - self._at)))
        self._at += len(piece)
        if self._at >= self._stop and not piece.endswith(b"\n"):
            piece += self._raw.readline()
        self._done = not piece
        return piece

    read1 = read  # so that `Stream` takes it for a plain file


@contextmanager
def open_stream(path: Place, member: str | None = None) -> Iterator[Stream]:
    """Open a file, or one member of a zip, decompressed.

    Raises:
        DamagedError: not even the file's beginning can be read.
    """
    with ExitStack() as stack:
        try:
            raw: Any = stack.enter_context(path.open("rb", buffering(path)))
            whole = size(path)
            if member is not None:
                archive = stack.enter_context(zipfile.ZipFile(raw))
                whole, raw = archive.getinfo(member).file_size, archive.open(member)
            head = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
            stream = stack.enter_context(_decompress(head, member or path.name))
        except (*_FAILURES, NotImplementedError, RuntimeError) as error:
            raise _unopened(error) from None
        yield Stream(stream, lambda: not_read(raw.tell(), whole))


@contextmanager
def open_range(path: Place, start: int, stop: int, buffer: int) -> Iterator[Stream]:
    """Open the lines of a plain file that begin in the bytes [start, stop).

    Raises:
        DamagedError: the file cannot be opened.
    """
    try:
        raw, whole = path.open("rb", buffer), size(path)
    except OSError as error:
        raise _unopened(error) from None
    with raw:
        lines = ByteRange(raw, start, stop)
        yield Stream(lines, lambda: not_read(raw.tell(), whole), first=start == 0)


def _unopened(error: Exception) -> DamagedError:
    reason = one_line(error)
    return DamagedError(f"damaged file, nothing of it was read: {reason}")


def not_read(at: int, size: int) -> str:
    """Say what is lost of a file if reading stopped at a byte."""
    if at < size:
        return f"about {size - at} of {size} bytes"
    return MISSING_END


def members(path: Place) -> dict[str, int] | None:
    """List the files in a zip and their decompressed sizes; None where `path` is no zip.

    Raises:
        DamagedError: it begins like a zip, but cannot be read as one.
    """
    with path.open("rb", _HEAD) as raw:
        if raw.read(4) != b"PK\x03\x04":
            return None
    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            sizes = {i.filename: i.file_size for i in archive.infolist() if not i.is_dir()}
    except zipfile.BadZipFile as error:
        raise DamagedError(f"damaged zip: {error}") from None
    # Archives made on a Mac hold a second entry for every file.
    return {name: sizes[name] for name in sorted(sizes) if not name.startswith("__MACOSX/")}


def compression(path: Place) -> str | None:
    """How a file is compressed, by its first bytes; None where it is plain."""
    with path.open("rb", _HEAD) as raw:
        return _kind(raw.read(8))


def _kind(start: bytes) -> str | None:
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


def _decompress(head: Any, name: str) -> Any:
    start = head.peek(8)
    kind = _kind(start)
    claimed = SUFFIXES.get(Path(name).suffix.lower())
    if kind is None and claimed is not None:
        raise OSError(f"its name says {claimed}, its first bytes do not" if start else "no bytes")
    if kind == "gzip":
        return gzip.GzipFile(fileobj=head)
    if kind == "bzip2":
        return bz2.BZ2File(head)
    if kind == "xz":
        return lzma.LZMAFile(head)
    if kind == "zstd":
        return pa.CompressedInputStream(pa.PythonFile(head, mode="r"), "zstd")
    return head
