"""Cuts a stream of bytes into blocks of whole records, with line numbers.

A block is parsed at once. With quotes, a line break inside quotes belongs to the record, so that a
record may have several lines. An unclosed quote must not swallow the file: a record longer than
`LONGEST_RECORD` bytes is split into its lines again. Arrow's CSV reader has no line numbers, and
stops at such a quote.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from multigate.pipeline.read.compressed import DamagedError, Stream

_BLOCK = 16 << 20
LONGEST_RECORD = 1 << 20


@dataclass(frozen=True)
class Lines:
    """Consecutive records of a file, without blank lines.

    `text` and `number` (B,): the records without their last line break, and the number (from 1) of
    each one's first line. `rejects`: rows (line, reason, text) for what was no text. `unended`: the
    number of the last record, where the stream ends without a line break. `read`: how many lines of
    the stream were read up to here, whatever they held.
    """

    text: pl.Series
    number: pl.Series
    rejects: pl.DataFrame
    unended: int | None = None
    read: int = 0


REJECT = {"line": pl.Int64, "reason": pl.String, "text": pl.String}


def reject(line: int, reason: str, text: str = "") -> pl.DataFrame:
    """Make one reject row."""
    row = {"line": [line], "reason": [reason], "text": [text[:500]]}
    return pl.DataFrame(row, schema=REJECT)


def read_lines(
    stream: Stream,
    encoding: str,
    quoted: bool = False,
    escape: str | None = None,
    block: int = _BLOCK,
) -> Iterator[Lines]:
    """Read a stream as records.

    Args:
        stream: bytes of text.
        encoding: `utf-8` or `latin-1`. A byte order mark at a file's beginning is skipped.
        quoted: whether double quotes protect line breaks.
        escape: a character that protects the quote or line break behind it.
        block: bytes in a block, at least.

    Yields:
        Blocks in order.

    Raises:
        DamagedError: the rest of the stream cannot be read; all whole lines before it were given.
    """
    line, held, size, first, skipping = 1, [b""], 0, stream.first, False
    while True:
        try:
            piece = stream.read()
            damage = None
        except DamagedError as error:
            piece, damage = b"", error
        held.append(piece)
        size += len(piece)
        if piece and size < block:
            continue
        data = b"".join(held)
        if first:
            data, first = data.removeprefix(b"\xef\xbb\xbf"), False
        if skipping:  # the rest of an endless line
            rest = data.find(b"\n") + 1
            data, line, skipping = data[rest or len(data) :], line + (rest > 0), rest == 0
        cut = len(data) if not piece else data.rfind(b"\n") + 1
        if cut == 0 and piece:
            held, size = [data], 0
            if len(data) > 2 * block:
                text = data[:500].decode("utf-8", "replace")
                endless = reject(line, f"line longer than {2 * block} bytes", text)
                yield Lines(_texts([]), _numbers(np.zeros(0)), endless)
                held, skipping = [b""], True
            continue
        ends = _record_ends(data[:cut], quoted, escape, last=not piece)
        cut = int(ends[-1]) if len(ends) else 0
        whole = data[:cut]
        if damage is not None and cut and not whole.endswith(b"\n"):
            whole = whole[: whole.rfind(b"\n") + 1]  # without the line that the damage cut
            ends = ends[ends <= len(whole)]
        breaks = int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord("\n")))
        lines = _lines(whole, ends, breaks, line, encoding)
        if not piece and whole and not whole.endswith(b"\n") and len(lines.number):
            lines = replace(lines, unended=lines.number[-1])
        line += breaks
        yield replace(lines, read=line - 1)
        held, size = [data[cut:]], 0
        if damage is not None:
            damage.line = line
            raise damage
        if not piece:
            return


def _record_ends(data: bytes, quoted: bool, escape: str | None, last: bool) -> NDArray[np.int64]:
    """Positions just after each record's final line break; at the end, of the last byte."""
    raw = np.frombuffer(data, np.uint8)
    if escape is not None and escape.encode() in data:
        raw = _without_escaped(raw, ord(escape))
    ends = np.flatnonzero(raw == ord("\n")) + 1
    if last and (len(ends) == 0 or ends[-1] < len(raw)):
        ends = np.append(ends, len(raw))
    if not quoted or len(ends) == 0:
        return ends if len(ends) or not data else np.array([len(raw)])
    quotes = np.flatnonzero(raw == ord('"'))
    lines = np.searchsorted(ends, quotes, side="right")
    odd = np.bincount(lines[lines < len(ends)], minlength=len(ends)) % 2
    while True:
        closed = np.cumsum(odd) % 2 == 0
        records = ends[closed]
        lengths = np.diff(np.concatenate([[0], records, [len(raw)]]))
        endless = np.flatnonzero(lengths > LONGEST_RECORD)
        if len(endless) == 0:
            break
        # The first line of the endless record becomes a record.
        begin = 0 if endless[0] == 0 else int(records[endless[0] - 1])
        opener = int(np.searchsorted(ends, begin, side="right"))
        opener += int(np.flatnonzero(odd[opener:])[0]) if odd[opener:].any() else 0
        if not odd[opener]:
            break
        odd[opener] = 0
    if last and not closed[-1]:  # an unclosed quote: each of the last lines is a record
        records = np.concatenate([records, ends[ends > (records[-1] if len(records) else 0)]])
    return records


def _without_escaped(raw: NDArray[np.uint8], escape: int) -> NDArray[np.uint8]:
    """The bytes, with zeros for escaped ones: those after an odd number of escapes."""
    at = np.flatnonzero(raw == escape)
    first = np.diff(at, prepend=-2) > 1
    lengths = np.diff(np.append(np.flatnonzero(first), len(at)))
    behind = (at[first] + lengths)[lengths % 2 == 1]
    plain = raw.copy()
    plain[behind[behind < len(raw)]] = 0
    return plain


def _lines(data: bytes, ends: NDArray[np.int64], breaks: int, line: int, encoding: str) -> Lines:
    if len(ends) == 0:
        return Lines(_texts([]), _numbers(np.zeros(0)), reject(0, "").clear())
    starts = np.concatenate([[0], ends[:-1]])
    raw = np.frombuffer(data, np.uint8)
    number = _numbers(np.arange(len(ends)) + line)
    if len(ends) < breaks + (not data.endswith(b"\n")):  # records of several lines
        begins = np.concatenate([[0], np.flatnonzero(raw == ord("\n")) + 1])
        number = _numbers(np.searchsorted(begins, starts) + line)
    rejects = reject(0, "").clear()
    if encoding == "latin-1":
        rows = [data[a:b].decode("latin-1") for a, b in zip(starts, ends, strict=True)]
        text = _texts(rows)
    else:
        try:
            data.decode("utf-8")
            offsets = pa.py_buffer(np.concatenate([starts[:1], ends]).astype(np.int64))
            array = pa.Array.from_buffers(
                pa.large_string(), len(ends), [None, offsets, pa.py_buffer(data)]
            )
            text = pl.Series("text", array)
        except UnicodeDecodeError:
            text, number, rejects = _decode_each(data, starts, ends, number)
    text = text.str.strip_suffix("\n")
    if b"\r" in data:
        text = text.str.strip_suffix("\r")
    if data and ((raw[starts] > ord(" ")) & (raw[starts] < 0x7F)).all():  # no line can be blank
        return Lines(text, number, rejects)
    full = text.str.strip_chars() != ""
    return Lines(text.filter(full), number.filter(full), rejects)


def _decode_each(
    data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], number: pl.Series
) -> tuple[pl.Series, pl.Series, pl.DataFrame]:
    """Decode record by record, and keep the good ones."""
    good, keep, rejects = [], [], [reject(0, "").clear()]
    for row, (begin, end) in enumerate(zip(starts, ends, strict=True)):
        try:
            good.append(data[begin:end].decode("utf-8"))
            keep.append(row)
        except UnicodeDecodeError:
            shown = data[begin : min(end, begin + 500)].decode("utf-8", "replace").strip()
            rejects.append(reject(number[row], "not UTF-8 text", shown))
    return _texts(good), number.gather(keep), pl.concat(rejects)


def _texts(values: list[str]) -> pl.Series:
    return pl.Series("text", values, dtype=pl.String)


def _numbers(values: NDArray[np.integer | np.floating]) -> pl.Series:
    return pl.Series("line", values.astype(np.int64), dtype=pl.Int64)
