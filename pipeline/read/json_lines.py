"""Parses records of JSON, one object a line; `user.id` is the key `id` of the object `user`.

polars reads the wanted columns, each as text: numbers keep their digits, and no line changes how
another one is read. Of a key written twice, the first value counts. As texts, the list `["a"]` and
the string `'["a"]'` are the same; only rows that hold such texts are parsed a second time.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl

from multigate.pipeline.read.lines import REJECT, Lines

_FEW = 64
_LIST = pl.List(pl.String)
_SURROGATE = r"\\u[dD][89a-fA-F]"
# A pair of surrogates is one character; an escaped backslash begins no other escape.
_WHOLE = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"

Reasons = dict[int, str]
"""Why rows cannot be used, by their place."""


def parse_json(
    lines: Lines, wanted: list[str], single: Collection[str], separators: Mapping[str, str]
) -> tuple[pl.DataFrame, Lines, pl.DataFrame]:
    """Parse JSON objects.

    Args:
        lines: records, (B,).
        wanted: the names to read. A list of values stays a list, and becomes a text with the
            name's separator between the values where the same name also holds plain values.
            `user.id` is the value of a key of this name, else of `id` in the object, or the text of
            one, under `user`; in a list of objects, the list of theirs.
        single: those of them that hold no lists.
        separators: by name, what divides a text into the values of a list; `|` for the others.

    Returns:
        The wanted columns that occur, (b, ...); the records they come from, (b,); and rejects.
    """
    texts = lines.text
    reasons = _lone_surrogates(texts)
    frame, malformed = _read(texts, [*wanted, *_inner(wanted)], reasons)
    reasons |= malformed
    kept = _others(len(texts), reasons)
    columns, structured = _columns(frame, texts.gather(kept), wanted, single, separators)
    if structured:
        reasons |= {kept[at]: reason for at, reason in structured.items()}
        usable = _others(len(kept), structured)
        columns = [column.gather(usable) for column in columns]
        kept = kept.gather(usable)
    source = Lines(texts.gather(kept), lines.number.gather(kept), lines.rejects)
    occurring = [column for column in columns if _occurs(column, source.text)]
    bad = sorted(reasons)
    rejects = pl.DataFrame(
        {
            "line": lines.number.gather(bad),
            "reason": [reasons[at] for at in bad],
            "text": texts.gather(bad).str.head(500),
        },
        schema=REJECT,
    )
    return pl.DataFrame(occurring), source, rejects


def _others(count: int, reasons: Reasons) -> pl.Series:
    """The places of the rows without a reason."""
    places = pl.int_range(count, eager=True)
    return places.filter(~places.is_in(list(reasons))) if reasons else places


def _occurs(column: pl.Series, texts: pl.Series) -> bool:
    """Whether a column has a value, or at least its name occurs in a line (with null)."""
    if column.null_count() < len(column):
        return True
    own = texts.str.contains(json.dumps(column.name), literal=True)
    *heads, last = (json.dumps(part) for part in column.name.split("."))
    inner = texts.str.contains(last, literal=True) if heads else own
    return bool((own | inner).any())


def _lone_surrogates(texts: pl.Series) -> Reasons:
    """Lines with an escape that is half a character: JSON's grammar allows it, UTF-8 does not."""
    escaped = texts.str.contains(_SURROGATE).arg_true()
    if not len(escaped):
        return {}
    rest = texts.gather(escaped).str.replace_all(_WHOLE, " ")
    lone = escaped.filter(rest.str.contains(_SURROGATE))
    return dict.fromkeys(lone.to_list(), "not UTF-8 text: half of a surrogate pair")


def key_names(row: dict[str, Any], above: str = "") -> list[str]:
    """The names by which an object's values can be read, those of objects in it too."""
    found: list[str] = []
    for name, value in row.items():
        inner = key_names(value, f"{above}{name}.") if isinstance(value, dict) else []
        if isinstance(value, list):
            inner = [f"{above}{name}.{key}" for key in _keys_of_list(value)]
        found += inner or [above + name]
    return found


def _keys_of_list(value: list[Any]) -> list[str]:
    """The keys of single values in a list of objects."""
    rows = [part for part in value if isinstance(part, dict)]
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if not any(isinstance(row.get(key), dict | list) for row in rows)]


def _inner(names: Collection[str]) -> dict[str, list[str]]:
    """Object -> the names of values in it; an object that is wanted itself is no place to look."""
    found: dict[str, list[str]] = {}
    for name in names:
        head, dot, rest = name.partition(".")
        if head and dot and rest and head not in names:
            found.setdefault(head, []).append(rest)
    return found


def _columns(
    frame: pl.DataFrame,
    texts: pl.Series,
    wanted: list[str],
    single: Collection[str],
    separators: Mapping[str, str],
) -> tuple[list[pl.Series], Reasons]:
    """The wanted columns of some records (b,), and what is wrong with which rows.

    Args:
        frame: the names, and the objects that hold some of them, as texts, (b, ...).
        texts: the records, (b,).
        wanted: the names.
        single: the names that hold no lists.
        separators: see `parse_json`.
    """
    columns, reasons = _structured(frame.select(wanted), texts, single, separators)
    for head, names in _inner(wanted).items():
        above = f"{head}."
        plain = {name.removeprefix(above) for name in single if name.startswith(above)}
        own = {name: by for name, by in separators.items() if name.startswith(above)}
        dividing = {name.removeprefix(above): by for name, by in own.items()}
        inner, wrong = _of_objects(frame[head], names, plain, dividing)
        for row, reason in wrong.items():
            reasons.setdefault(row, f"{head}.{reason}")
        for column in inner:
            at = wanted.index(f"{head}.{column.name}")
            if columns[at].null_count() == len(columns[at]):
                columns[at] = column.alias(wanted[at])
    return columns, reasons


def _of_objects(
    objects: pl.Series, names: list[str], single: Collection[str], separators: Mapping[str, str]
) -> tuple[list[pl.Series], Reasons]:
    """Columns of the objects (b,) in a column, null in rows without one."""
    places = objects.str.starts_with("{").fill_null(False).arg_true()
    texts = objects.gather(places)
    frame, malformed = _read(texts, [*names, *_inner(names)], {})  # some are but texts
    kept = _others(len(texts), malformed)
    places = places.gather(kept)
    columns, wrong = _columns(frame, texts.gather(kept), names, single, separators)
    nothing = pl.repeat(None, len(objects), eager=True)
    found = [
        _scatter(nothing.cast(column.dtype).alias(column.name), places, column)
        for column in columns
    ]
    reasons = {int(places[at]): reason for at, reason in wrong.items()}
    places = objects.str.contains(r"^\[\s*\{").fill_null(False).arg_true()
    if len(places):
        lists = _of_lists(objects.gather(places), names)
        for at, column in enumerate(found):
            values = lists[column.name]
            if column.name in single:
                reason = f"{column.name}: expected one value, received a list"
                reasons |= dict.fromkeys(places.filter(values.is_not_null()).to_list(), reason)
            elif column.dtype == _LIST or not column.count():
                found[at] = _scatter(column.cast(_LIST), places, values)
            else:
                texts = as_text(values, separators.get(column.name, "|"))
                found[at] = _scatter(column, places, texts)
    return found, reasons


def _of_lists(texts: pl.Series, names: list[str]) -> pl.DataFrame:
    """The values of each list of objects, as lists, (b, names); null in rows that are but texts."""
    kind = pl.List(pl.Struct(dict.fromkeys(names, pl.String())))
    try:
        lists = texts.str.json_decode(kind)
    except pl.exceptions.PolarsError:
        if len(texts) == 1:
            return pl.DataFrame(schema=dict.fromkeys(names, _LIST)).clear(1)
        half = len(texts) // 2
        return pl.concat([_of_lists(texts[:half], names), _of_lists(texts[half:], names)])
    return pl.DataFrame(
        [lists.list.eval(pl.element().struct.field(name)).alias(name) for name in names]
    )


def _read(texts: pl.Series, wanted: list[str], without: Reasons) -> tuple[pl.DataFrame, Reasons]:
    """Read the wanted columns as texts, (b, wanted); and say which lines are no objects."""
    schema = dict.fromkeys(wanted, pl.String())
    frames: list[pl.DataFrame] = [pl.DataFrame(schema=schema)]
    reasons: Reasons = {}

    def visit(places: pl.Series) -> None:
        """Halve until the bad lines stand alone, so that the good ones go the fast way."""
        some = texts.gather(places)
        frame = _parse(some, schema)
        if frame is not None:
            frames.append(frame)
        elif len(places) > _FEW:
            visit(places[: len(places) // 2])
            visit(places[len(places) // 2 :])
        else:
            for at, text in zip(places, some, strict=True):
                one = _parse(pl.Series([text]), schema)
                if one is None:
                    reasons[at] = _malformed(text)
                else:
                    frames.append(one)

    places = _others(len(texts), without)
    if len(places):
        visit(places)
    return pl.concat(frames), reasons


def _parse(texts: pl.Series, schema: Any) -> pl.DataFrame | None:
    """Read some lines; None where that fails or changes the number of rows."""
    data = texts.str.join("\n").item().encode()
    try:
        frame = pl.read_ndjson(data, schema=schema)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return frame if len(frame) == len(texts) else None


def _malformed(text: str) -> str:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = {}
    expected = "not valid JSON" if isinstance(row, dict) else "expected a JSON object"
    return f"malformed line: {expected}"


def _structured(
    frame: pl.DataFrame, texts: pl.Series, single: Collection[str], separators: Mapping[str, str]
) -> tuple[list[pl.Series], Reasons]:
    """Tell lists and objects from texts that look like them.

    Args:
        frame: the wanted columns as texts, (b, ...).
        texts: the records, (b,).
        single: the names that hold no lists.
        separators: see `parse_json`.

    Returns:
        The columns, with lists for lists; and what is wrong with which rows.
    """
    columns: list[pl.Series] = []
    reasons: Reasons = {}
    for column in frame:
        places = (column.str.starts_with("[") | column.str.starts_with("{")).arg_true()
        if not len(places):
            columns.append(column)
            continue
        lists, wrong = _lists(column.name, places, texts.gather(places), column.name in single)
        for at, reason in wrong.items():
            reasons.setdefault(at, reason)
        columns.append(_with_lists(column, places, lists, separators.get(column.name, "|")))
    return columns, reasons


def _lists(
    name: str, places: pl.Series, texts: pl.Series, single: bool
) -> tuple[pl.Series, Reasons]:
    """The lists in those rows, null where there is a text; and the rows' errors."""
    reasons: Reasons = {}
    frame = None if single else _parse(texts, {name: _LIST})
    if frame is not None:
        inner = frame[name].explode()
        if not (inner.str.starts_with("[") | inner.str.starts_with("{")).any():
            return frame[name], reasons
    is_list = []
    for at, text in zip(places, texts, strict=True):
        value = json.loads(text, object_pairs_hook=_first_of_each)[name]
        parts = value if isinstance(value, list) else [value]
        if isinstance(value, dict) or any(isinstance(part, list | dict) for part in parts):
            keys = _keys_of_list(parts)
            hint = f"; its key {min(keys)!r} holds a value" if keys else ""
            reasons[at] = f"{name}: expected a value, received nested JSON{hint}"
        elif isinstance(value, list) and single:
            reasons[at] = f"{name}: expected one value, received a list"
        is_list.append(isinstance(value, list) and at not in reasons)
    flags = pl.Series(is_list, dtype=pl.Boolean)
    lists = pl.Series(name, [None] * len(texts), dtype=_LIST)
    if flags.any():
        found = pl.read_ndjson(
            texts.filter(flags).str.join("\n").item().encode(), schema={name: _LIST}
        )
        lists = _scatter(lists, flags.arg_true(), found[name])
    return lists, reasons


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key written twice, polars reads the first value."""
    return dict(reversed(pairs))


def _with_lists(
    column: pl.Series, places: pl.Series, lists: pl.Series, separator: str
) -> pl.Series:
    """A column with its texts of lists parsed; it stays text if it also holds other values."""
    found = lists.is_not_null()
    if not found.any():
        return column
    places, lists = places.filter(found), lists.filter(found)
    if len(lists) < column.count():
        return _scatter(column, places, as_text(lists, separator))
    if len(lists) == len(column):
        return lists
    return _scatter(pl.Series(column.name, [None] * len(column), dtype=_LIST), places, lists)


def _scatter(column: pl.Series, places: pl.Series, values: pl.Series) -> pl.Series:
    """The column with other values in some places."""
    if not len(places):
        return column
    given = pl.DataFrame({"at": places.cast(pl.UInt32), "given": values, "is": True})
    rows = column.alias("own").to_frame().with_row_index("at")
    joined = rows.join(given, on="at", how="left", maintain_order="left")
    chosen = pl.when(pl.col("is")).then("given").otherwise("own")
    return joined.select(chosen.alias(column.name)).to_series()


def as_text(column: pl.Series, separator: str = "|") -> pl.Series:
    """A column as text; the values of a list with `separator` between them, nothing for a null."""
    if isinstance(column.dtype, pl.List | pl.Array):
        # A null keeps its place: without it, a vector of three would look like one of two.
        texts = column.cast(pl.List(pl.String)).list.eval(pl.element().fill_null(""))
        return texts.list.join(separator)
    return column.cast(pl.String)
