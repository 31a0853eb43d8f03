"""Parses records of delimited text into columns, all text.

Arrow parses; Python's csv module takes over where Arrow's rows and ours do not match one to one.
Arrow alone, from file to table, cannot say which line a row came from or recover after a stray
quote.
"""

import csv
import re
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.csv

from multigate.configs.sections.log import CsvFormat
from multigate.pipeline.read.lines import REJECT, Lines

_MARK = 0xFDD0  # characters that Unicode sets aside for use inside a program
csv.field_size_limit(1 << 30)  # Arrow has no limit, and a log may have fields of any size


def parse_header(line: str, form: CsvFormat) -> list[str]:
    """Column names in a file's first line; a blank one becomes `column_3`, counted from 1."""
    if form.quoted or form.escape is not None:
        names = next(csv.reader([line], **_dialect(form)))
    else:
        names = line.split(form.delimiter)
    return [name if name.strip() else f"column_{at}" for at, name in enumerate(names, 1)]


def _dialect(form: CsvFormat) -> dict[str, Any]:
    """How Python's own parser reads the format."""
    quoting = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    return {"delimiter": form.delimiter, "escapechar": form.escape, "quoting": quoting}


def parse_delimited(
    lines: Lines, header: list[str], form: CsvFormat, wanted: list[str]
) -> tuple[pl.DataFrame, Lines, pl.DataFrame]:
    """Split records into columns. The empty text is null.

    Args:
        lines: records, (B,).
        header: the file's column names. Where a name occurs twice, the first counts.
        form: delimiter, quoting and escapes.
        wanted: the columns to keep, of those in the header.

    Returns:
        The wanted columns as text, (b, ...); the records they come from, (b,); and rejects
        (line, reason, text) for the others.
    """
    kept_names = {_name(header.index(name)): name for name in wanted if name in header}
    if form.quoted:
        lines = _unmerge(lines, len(header), form)
    read = _escaped if form.escape is not None else _quoted if form.quoted else _unquoted
    fields, reasons = read(lines.text, len(header), form, list(kept_names))
    frame = pl.DataFrame([*fields, reasons.alias("__reason")]).with_row_index("__at")
    bad = frame.filter(pl.col("__reason").is_not_null())
    rejects = pl.DataFrame(
        {
            "line": lines.number.gather(bad["__at"]),
            "reason": bad["__reason"],
            "text": lines.text.gather(bad["__at"]).str.head(500),
        },
        schema=REJECT,
    )
    good = frame.filter(pl.col("__reason").is_null())
    kept = good["__at"]
    source = Lines(lines.text.gather(kept), lines.number.gather(kept), lines.rejects)
    return good.select(pl.col(at).alias(name) for at, name in kept_names.items()), source, rejects


def _name(at: int) -> str:
    """The name of a column until the header names it: a header may name two alike."""
    return f"c{at}"


def _wrong_count(received: int | str, expected: int) -> str:
    return f"malformed line: expected {expected} fields, received {received}"


def _unquoted(
    text: pl.Series, n: int, form: CsvFormat, wanted: list[str]
) -> tuple[pl.DataFrame, pl.Series]:
    parts = text.str.splitn(form.delimiter, n + 1).struct.unnest()
    parts.columns = [*map(_name, range(n)), "__more"]
    short, long = pl.col(_name(n - 1)).is_null(), pl.col("__more").is_not_null()
    reasons = parts.select(
        pl.when(short)
        .then(pl.lit(_wrong_count("fewer", n)))
        .when(long)
        .then(pl.lit(_wrong_count("more", n)))
    ).to_series()
    return parts.select(pl.col(wanted).replace({"": None})), reasons


def _unmerge(lines: Lines, n: int, form: CsvFormat) -> Lines:
    """Split records of several lines that a stray quote has merged: they have too many fields."""
    several = lines.text.str.contains("\n", literal=True)
    if not several.any():
        return lines
    texts: list[str] = []
    numbers: list[int] = []
    for record, number, merged in zip(lines.text, lines.number, several, strict=True):
        pieces = [record]
        # Python's parser takes an escaped line break outside quotes for a record's end.
        joined = record if form.escape is None else record.replace(f"{form.escape}\n", " ")
        if merged and len(_read_record(joined, form, strict=True) or []) != n:
            pieces = record.split("\n")
        for at, piece in enumerate(pieces):
            if piece.strip():
                texts.append(piece.removesuffix("\r"))
                numbers.append(number + at)
    text = pl.Series("text", texts, dtype=pl.String)
    return Lines(text, pl.Series("line", numbers, dtype=pl.Int64), lines.rejects)


def _read_record(record: str, form: CsvFormat, strict: bool = False) -> list[str] | None:
    """The fields of a record; None where the text is not exactly one record.

    Text behind a closing quote belongs to the field, as with Arrow, unless `strict`.
    """
    try:
        parsed = list(csv.reader([record, ""], strict=strict, **_dialect(form)))
    except csv.Error:
        return None
    return parsed[0] if parsed[1:] == [[]] else None  # an open quote would take the second line


def _quoted(
    text: pl.Series, n: int, form: CsvFormat, wanted: list[str]
) -> tuple[pl.DataFrame, pl.Series]:
    fast = _arrow_csv(text, n, form, wanted)
    return fast if fast is not None else _python_csv(text, n, form)


def _escaped(
    text: pl.Series, n: int, form: CsvFormat, wanted: list[str]
) -> tuple[pl.DataFrame, pl.Series]:
    """Parse fields with escapes.

    A mark stands in for what the parsers would misread until the fields are apart: for a null value
    that is an escape itself, such as MySQL's, and for an escaped line break.
    """
    nulls, escape = escaped_nulls(form), re.escape(form.escape or "")
    marks = {text: chr(_MARK + at) for at, text in enumerate([*nulls, f"{form.escape}\n"])}
    for given, mark in marks.items():
        unescaped = f"(^|[^{escape}])((?:{escape}{escape})*){re.escape(given)}"
        text = text.str.replace_all(unescaped, "${1}${2}" + mark)
    fields, reasons = _quoted(text, n, form, wanted)
    for given, mark in marks.items():
        if given in nulls:
            fields = fields.with_columns(pl.all().replace({mark: None}))
        fields = fields.with_columns(pl.all().str.replace_all(mark, given[1], literal=True))
    return fields, reasons


def escaped_nulls(form: CsvFormat) -> list[str]:
    """The null values that are escapes."""
    return [null for null in form.null_values if len(null) == 2 and null[0] == form.escape]


def _arrow_csv(
    text: pl.Series, n: int, form: CsvFormat, wanted: list[str]
) -> tuple[pl.DataFrame, pl.Series] | None:
    """Parse with Arrow; None where its rows and our records do not match one to one."""
    if len(text) == 0 or text.str.contains("\n", literal=True).any():
        return None
    if _read_record(text[-1], form) is None:  # Arrow closes an open quote at its end
        return None
    bad: dict[int, int] = {}

    def skip(row: pa.csv.InvalidRow) -> str:
        bad[row.number - 1] = row.actual_columns
        return "skip"

    names = [_name(at) for at in range(n)]
    data = text.str.join("\n").cast(pl.Binary).item()
    # Arrow ends a row at the one and skips the other.
    if b"\r" in data or data.startswith(b"\xef\xbb\xbf"):
        return None
    try:
        table = pa.csv.read_csv(
            pa.py_buffer(data),
            read_options=pa.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(data) + 1
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=form.delimiter,
                quote_char='"' if form.quoted else False,
                escape_char=form.escape or False,
                invalid_row_handler=skip,
                ignore_empty_lines=False,
            ),
            convert_options=pa.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(names, pa.large_string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows + len(bad) != len(text):
        return None
    fields = pl.DataFrame(table)
    if not bad:
        return fields, pl.Series([None] * len(text), dtype=pl.String)
    at = pl.DataFrame({"at": range(len(text))}, schema={"at": pl.UInt32})
    reasons = pl.DataFrame(
        {"at": list(bad), "reason": [_wrong_count(count, n) for count in bad.values()]},
        schema={"at": pl.UInt32, "reason": pl.String},
    )
    kept = at.join(reasons, on="at", how="anti", maintain_order="left")["at"]
    placed = at.join(fields.with_columns(at=kept), on="at", how="left", maintain_order="left")
    found = at.join(reasons, on="at", how="left", maintain_order="left")["reason"]
    return placed.drop("at"), found


def _python_csv(text: pl.Series, n: int, form: CsvFormat) -> tuple[pl.DataFrame, pl.Series]:
    """Parse record by record: slow, but exact with line breaks and stray quotes."""
    rows: list[list[str | None]] = []
    reasons: list[str | None] = []
    for record in text.to_list():
        fields = _read_record(record, form)
        if fields is not None and len(fields) == n:
            rows.append([field or None for field in fields])
            reasons.append(None)
            continue
        rows.append([None] * n)
        unclosed = "malformed line: a quote that nothing closes"
        reasons.append(unclosed if fields is None else _wrong_count(len(fields), n))
    schema = {_name(at): pl.String for at in range(n)}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    return table, pl.Series(reasons, dtype=pl.String)
