"""Adds derived columns to a file's own, and makes rows of lists, such as a request's items."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl

from multigate.configs.sections.derive import Derived, Explode
from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.lines import reject
from multigate.pipeline.read.parse import parse_number, parse_time
from multigate.pipeline.read.sources import Chunk

WITH_UNIT = r"^(?:\p{Sc}\s*|\p{L}{1,3}\s+)?([+-]?\d[\d.,]*)(?:\s*(?:\p{Sc}|%|\p{L}{1,3}))?$"
"""A number with a currency, a percent sign or a unit of at most three letters beside it."""
# Digits are 0 to 9: `\d` is one of any script, and a cast reads no others.
_PART = r"(?:(?P<{0}>[0-9]+(?:[.,][0-9]+)?){1})?"
_CLOCK_SECONDS = r"(?P<s>[0-5][0-9](?:[.,][0-9]+)?)"
_SIGN = r"^(?P<sign>[+-])?"
_DURATIONS = (
    # P1DT2H, PT1M30S, PT0.5H; months have no length of their own
    f"(?i){_SIGN}P{_PART.format('w', 'W')}{_PART.format('d', 'D')}(?:T{_PART.format('h', 'H')}"
    f"{_PART.format('m', 'M')}{_PART.format('s', 'S')})?$",
    # 1:02:03, 2 days 01:02:03
    rf"{_SIGN}(?:(?P<d>[0-9]+) days?,?\s+)?(?P<h>[0-9]+):(?P<m>[0-5]?[0-9]):{_CLOCK_SECONDS}$",
    # 1:30 is of minutes and seconds
    rf"{_SIGN}(?P<m>[0-9]+):{_CLOCK_SECONDS}$",
)
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
PLACE = "__place"
"""The column that holds each value's place in its list, from 0."""


def derive(
    chunk: Chunk, rules: Mapping[str, Derived], unit: str, unknown: int | None, zone: str
) -> Chunk:
    """Add derived columns to raw rows.

    Args:
        chunk: rows with the file's columns. A column that it lacks is null everywhere.
        rules: by the derived column's name, which may be that of a column of the file.
        unit: of columns of times; see `times.parse_time`.
        unknown: the number that means an unknown time.
        zone: of the hours and weekdays, and of times that name none.

    Returns:
        The rows with the derived columns in the place of those of the same names. `columns` keeps
        the file's names.
    """
    if not rules or not chunk.columns:
        return chunk

    def raw(name: str) -> pl.Series:
        if name in chunk.frame.columns:
            return chunk.frame[name]
        return pl.Series(name, [None] * len(chunk.line), dtype=pl.String)

    def time(given: pl.Series) -> pl.Series:
        """Local times; null where none can be read."""
        return parse_time(given, unit, unknown, zone).values.dt.convert_time_zone(zone)

    made: dict[str, pl.Series] = {}
    for name, rule in sorted(rules.items(), key=lambda one: one[1].turn):
        other = rule.reads_derived(name, rules)
        given = [made[one] if one in other else raw(one) for one in rule.sources]
        if rule.join is not None:
            values = _joined([filled(one) for one in given], rule.separator)
        elif rule.coalesce is not None:
            values = first_present(given, rule.empty or ())
        elif rule.lower is not None:
            values = filled(raw(rule.lower)).str.to_lowercase()
        elif rule.extract is not None:
            values = filled(raw(rule.extract)).str.extract(str(rule.pattern), 1)
        elif rule.first is not None:
            values = first(given[0], rule.separator)
        elif rule.number is not None:
            texts = first_present(given, rule.empty) if rule.empty else given[0]
            values = number(texts, rule.decimal)
        elif rule.flag is not None:
            values = flag(raw(rule.flag), rule.ones or ())
        elif rule.time_of is not None:
            values = spelled_time(raw(rule.time_of), str(rule.form))
        elif rule.member is not None:
            values = member(raw(rule.member), raw(str(rule.of)), rule.separator)
        elif rule.place_in is not None:
            values = raw(PLACE)
        elif rule.ones_of is not None:
            values = ones_of([raw(one) for one in rule.ones_of], rule.separator)
        elif rule.constant is not None:
            values = pl.repeat(rule.constant, len(chunk.line), dtype=pl.String, eager=True)
        elif rule.hour_of is not None:
            values = time(given[0]).dt.hour().cast(pl.Int64)
        else:
            values = time(given[0]).dt.weekday().cast(pl.Int64)
        made[name] = values.alias(name)
    kept = [column for column in chunk.frame if column.name not in rules]
    return replace(chunk, frame=pl.DataFrame([*kept, *made.values()]))


def first(column: pl.Series, separator: str) -> pl.Series:
    """The first value of lists, or of texts of them, (N,) as text; null where there is none."""
    return as_lists(column, separator).list.first()


def member(column: pl.Series, lists: pl.Series, separator: str) -> pl.Series:
    """1 where a text is in its row's list, 0 elsewhere, (N,); null where there is no text."""
    frame = pl.DataFrame({"one": filled(column), "of": as_lists(lists, separator)})
    found = pl.col("of").list.contains(pl.col("one")).fill_null(False).cast(pl.Int64)
    return frame.select(pl.when(pl.col("one").is_not_null()).then(found)).to_series()


def first_present(columns: list[pl.Series], empty: Sequence[str] = ()) -> pl.Series:
    """The first text of each row that is none of `empty`, (N,); null where no column has one."""
    none = [one.strip().lower() for one in empty]
    frame = pl.DataFrame([filled(one).alias(str(at)) for at, one in enumerate(columns)])
    texts = [
        pl.when(~pl.col(one).str.to_lowercase().is_in(none)).then(one) for one in frame.columns
    ]
    return frame.select(pl.coalesce(texts)).to_series()


def ones_of(columns: list[pl.Series], separator: str) -> pl.Series:
    """The names of the columns that are 1, (N,) as text; null where none is."""
    ones = [
        pl.DataFrame({"x": parse_number(one).values}).select(
            pl.when(pl.col("x") == 1).then(pl.lit(one.name)).alias(str(at))
        )
        for at, one in enumerate(columns)
    ]
    names = pl.concat(ones, how="horizontal")
    joined = pl.concat_str(pl.all(), separator=separator, ignore_nulls=True)
    return names.select(joined).to_series().replace("", None)


def number(column: pl.Series, decimal: str | None = None) -> pl.Series:
    """Numbers with a decimal comma or a unit as others write them, (N,) texts; other texts stay.

    `1.234,50`, `€ 19.90`, `USD 1,234.50` and `12 kg` are such numbers. Durations are numbers of
    seconds, see `duration`.

    Args:
        column: what the file holds.
        decimal: the decimal mark; the other of comma and point then groups thousands. By default
            each text tells: a mark that stands twice, or before the other one, groups, and a single
            one is the decimal mark.
    """
    if column.dtype.is_numeric():
        return column
    if column.dtype == pl.Duration:
        return _plain(column.dt.total_microseconds() / 1e6)
    text = filled(column)
    bare = text.str.extract(WITH_UNIT, 1)
    bare = _either(bare.is_not_null(), bare, text)
    by_point, by_comma = (rf"[1-9]\d{{0,2}}(\{mark}\d{{3}})" for mark in ".,")
    if decimal is None:
        comma = bare.str.contains(rf"^[+-]?((\d+|{by_point}+),\d+|{by_point}{{2,}})$")
        point = bare.str.contains(rf"^[+-]?({by_comma}+\.\d+|{by_comma}{{2,}})$")
    else:
        comma = bare.str.contains(rf"^[+-]?(\d+|{by_point}+)(,\d+)?$") & (decimal == ",")
        point = bare.str.contains(rf"^[+-]?{by_comma}+(\.\d+)?$") & (decimal == ".")
    with_point = bare.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    without_commas = bare.str.replace_all(",", "", literal=True)
    found = _either(comma, with_point, _either(point, without_commas, bare))
    if text.str.contains(r"(?i):|^[+-]?P").any():
        seconds = duration(text)
        found = _either(seconds.is_not_null(), _plain(seconds), found)
    return found


def duration(text: pl.Series) -> pl.Series:
    """Seconds of durations, (N,) float64; null where a text is none.

    `PT1M30S`, `PT0.025H`, `00:01:30` and `1:30` are 90 seconds.
    """
    found = pl.Series(text.name, [None], dtype=pl.Float64).new_from_index(0, len(text))
    for form in _DURATIONS:
        parts = text.str.extract_groups(form).struct.unnest()
        names = [name for name in parts.columns if name in _SECONDS]
        numbers = [
            pl.col(name).str.replace(",", ".", literal=True).cast(pl.Float64) * _SECONDS[name]
            for name in names
        ]
        # `P` and `PT` alone are no duration: the sum of no part would be 0.
        known = pl.any_horizontal(pl.col(names).is_not_null())
        sign = pl.when(pl.col("sign") == "-").then(-1.0).otherwise(1.0)
        read = parts.select(pl.when(known).then(sign * pl.sum_horizontal(numbers))).to_series()
        found = found.zip_with(found.is_not_null(), read.alias(text.name))
    return found


def flag(column: pl.Series, ones: Sequence[str]) -> pl.Series:
    """1 where a text is one of `ones`, 0 elsewhere, (N,); null where there is none."""
    text = filled(column).str.to_lowercase()
    return text.is_in([one.strip().lower() for one in ones]).cast(pl.Int64)


def spelled_time(column: pl.Series, form: str) -> pl.Series:
    """Times of a form as ISO 8601 text, (N,), with `Z` where the form has a zone.

    A text of another form stays as it is.
    """
    text = filled(column)
    form = form.replace(".%f", "%.f")  # chrono's `%f` counts nanoseconds
    zoned = "%z" in form
    if not any(one in form for one in ("%H", "%I", "%T", "%R", "%s")):
        read = text.str.to_date(form, strict=False).cast(pl.Datetime("us"))
    elif zoned:
        read = text.str.to_datetime(form, time_unit="us", time_zone="UTC", strict=False)
    else:
        read = text.str.to_datetime(form, time_unit="us", strict=False)
    iso = read.dt.strftime("%Y-%m-%dT%H:%M:%S%.f" + ("Z" if zoned else ""))
    return _either(iso.is_not_null(), iso, text)


def _either(where: pl.Series, one: pl.Series, other: pl.Series) -> pl.Series:
    frame = pl.DataFrame({"where": where, "one": one, "other": other})
    chosen = pl.when(pl.col("where").fill_null(False)).then("one").otherwise("other")
    return frame.select(chosen).to_series()


def _plain(numbers: pl.Series) -> pl.Series:
    """Numbers as texts, whole ones without a fraction."""
    # No integer holds the largest ones, which a typo may spell.
    whole = numbers.cast(pl.Int64, strict=False)
    is_whole = (numbers % 1 == 0) & whole.is_not_null()
    return _either(is_whole, whole.cast(pl.String), numbers.cast(pl.String))


def filled(column: pl.Series) -> pl.Series:
    """The column's texts without blanks around them; null where nothing is left."""
    return as_text(column).str.strip_chars().replace("", None)


def _joined(texts: list[pl.Series], separator: str) -> pl.Series:
    frame = pl.DataFrame([text.alias(str(at)) for at, text in enumerate(texts)])
    joined = pl.concat_str(pl.all().fill_null(""), separator=separator)
    return frame.select(pl.when(~pl.all_horizontal(pl.all().is_null())).then(joined)).to_series()


def explode(chunk: Chunk, rule: Explode | None) -> Chunk:
    """Make one row for each value of the lists of a row.

    Args:
        chunk: raw rows (B,). A column that the file lacks holds no values.
        rule: which columns hold lists; None leaves the rows as they are.

    Returns:
        The rows, each with the line and the text that it comes from, and `PLACE`; see
        `row_for_each`. Rows whose lists differ in length are rejects.
    """
    if rule is None or not chunk.columns:
        return chunk
    names = [name for name in rule.columns if name in chunk.frame.columns]
    frame = with_lists(chunk.frame, names, rule.separator).with_columns(
        __line=chunk.line, __text=chunk.text
    )
    uneven = frame.filter(~_is_even(names))
    rejects = [
        reject(line, f"{' and '.join(names)}: expected lists of one length", text)
        for line, text in uneven.select("__line", "__text").iter_rows()
    ]
    rows = row_for_each(frame, names, PLACE)
    return replace(
        chunk,
        frame=rows.drop("__line", "__text"),
        line=rows["__line"].alias(chunk.line.name),
        text=rows["__text"].alias(chunk.text.name),
        rejects=pl.concat([chunk.rejects, *rejects]) if rejects else chunk.rejects,
    )


def with_lists(frame: pl.DataFrame, names: Sequence[str], separator: str) -> pl.DataFrame:
    """The rows with these columns as lists of texts, in which a blank value keeps its place.

    Blanks at the end of a list go where its row's lists would else differ in length: of `a|b|`
    beside `1|0` the separator ends the list. An empty text is one blank where no list of its row
    has more than one value, and some list has one.
    """
    texts = [name for name in names if not isinstance(frame[name].dtype, pl.List | pl.Array)]
    whole = [as_lists(frame[name], separator, blanks=True) for name in names]
    frame = frame.with_columns(whole)
    single = pl.max_horizontal(_lengths(names)) == 1
    blank = pl.lit(pl.Series([[None]], dtype=pl.List(pl.String)))
    frame = frame.with_columns(
        pl.when(single & pl.col(name).is_null()).then(blank).otherwise(name).alias(name)
        for name in texts
    )
    later = pl.element().is_not_null().reverse().cum_max().reverse()
    cut = [pl.col(name).list.eval(pl.element().filter(later)) for name in names]
    even = _is_even(names)
    return frame.with_columns(
        pl.when(even).then(pl.col(name)).otherwise(short)
        for name, short in zip(names, cut, strict=True)
    )


def row_for_each(frame: pl.DataFrame, names: Sequence[str], place: str) -> pl.DataFrame:
    """One row for each place of the lists of a row at which one of them has a value.

    Args:
        frame: rows (B,).
        names: of columns of lists. Rows whose lists differ in length, or are empty, vanish.
        place: name of a new column, the value's place in its list, from 0.
    """
    lengths = _lengths(names)
    rows = frame.filter(_is_even(names) & (lengths[0] > 0))
    rows = rows.with_columns(pl.int_ranges(0, lengths[0]).alias(place)).explode(*names, place)
    return rows.filter(~pl.all_horizontal(pl.col(name).is_null() for name in names))


def _lengths(names: Sequence[str]) -> list[pl.Expr]:
    """How many values the lists of a row have; 0 where there is no list or no such column."""
    return [pl.col(name).list.len().fill_null(0) for name in names] or [pl.lit(0)]


def _is_even(names: Sequence[str]) -> pl.Expr:
    """Whether a row's lists have one length."""
    lengths = _lengths(names)
    return pl.all_horizontal(length == lengths[0] for length in lengths)


def as_lists(column: pl.Series, separator: str, *, blanks: bool = False) -> pl.Series:
    """Lists of texts (B,), of lists or of texts that `separator` splits; an empty text is null.

    Blank values are left out, or null where `blanks` is set.
    """
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if isinstance(column.dtype, pl.List):
        lists = column.cast(pl.List(pl.String))
    else:
        text = as_text(column).str.strip_chars()
        lists = text.replace("", None).str.split(separator)
    filled_in = lists.list.eval(pl.element().str.strip_chars().replace("", None))
    return filled_in if blanks else filled_in.list.drop_nulls()
