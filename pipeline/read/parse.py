"""Parses raw columns: a whole column at a time, to typed values and the reasons of bad ones.

A bad value has a reason and no other trace; what a missing value means is the caller's to say.
(pandera validates columns that have types already; here, finding the types is the work.)
"""

from dataclasses import dataclass

import polars as pl

from multigate.configs.contract import (
    Feature,
    IdFeature,
    IdListFeature,
    NumberFeature,
    TextFeature,
    VectorFeature,
)
from multigate.pipeline.read.json_lines import as_text

NULL_LIKE = (
    *("NULL", "null", "\\N", "None", "none", "NaN", "nan", "NA", "N/A", "n/a", "nil"),
    "undefined",
)
"""Texts that may stand for a missing value."""
_LONGEST_ID = 1024
_LATEST = 4_102_444_800_000_000  # 2100, in microseconds
BIRTHS = 1900
"""The first year of times that ages are measured from, such as dates of birth."""
_EARLIEST = {1970: 0, BIRTHS: -2_208_988_800_000_000}  # in microseconds
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class Parsed:
    """A typed column, and reasons (null where the value is fine)."""

    values: pl.Series
    reasons: pl.Series

    def required(self, reason: str = "missing") -> "Parsed":
        """The column with a reason where a value is missing."""
        return Parsed(self.values, coalesce(self.reasons, _reasons(self.values.is_null(), reason)))

    def excused(self, where: pl.Series) -> "Parsed":
        """The column without reasons `where`."""
        return Parsed(self.values, _without(self.reasons, where))


def _reasons(bad: pl.Series, reason: str) -> pl.Series:
    """The reason where `bad`, null elsewhere."""
    if not bad.any():  # the usual case, made cheap
        return no_reasons(len(bad))
    when = pl.when(pl.col("bad")).then(pl.lit(reason))
    return pl.DataFrame({"bad": bad}, schema={"bad": pl.Boolean}).select(when).to_series()


def no_reasons(rows: int) -> pl.Series:
    """The reasons of a column of which every value is fine."""
    return pl.repeat(None, rows, dtype=pl.String, eager=True)


def _any(values: pl.Series) -> bool:
    return values.null_count() < len(values)


def _without(values: pl.Series, where: pl.Series) -> pl.Series:
    """The values with null `where`."""
    where = where.cast(pl.Boolean)
    if not where.any():
        return values
    frame = pl.DataFrame([values.alias("values"), where.alias("where")])
    kept = pl.when(pl.col("where").fill_null(False)).then(None).otherwise(pl.col("values"))
    return frame.select(kept.alias(values.name)).to_series()


def coalesce(*columns: pl.Series) -> pl.Series:
    """The first value of each row that is not null."""
    columns = tuple(column for column in columns[:-1] if _any(column)) + columns[-1:]
    frame = pl.DataFrame([column.alias(str(at)) for at, column in enumerate(columns)])
    return frame.select(pl.coalesce(pl.all())).to_series()


def parse_time(
    raw: pl.Series, unit: str, unknown: int | None, zone: str = "UTC", first_year: int = 1970
) -> Parsed:
    """Parse times to microseconds UTC.

    Args:
        raw: numbers in `unit` since 1970, or ISO 8601 text. Timestamps of a Parquet file need no
            parsing.
        unit: `s`, `ms`, `us` or `iso`.
        unknown: the number that means an unknown time; it becomes null.
        zone: of texts and timestamps without one. Of the hour that autumn repeats, the first one
            counts; the hour that spring skips is no time.
        first_year: 1970, before which no log begins, or `BIRTHS`; earlier times are bad.
    """
    kind = pl.Datetime("us", "UTC")
    if isinstance(raw.dtype, pl.Datetime):
        local = _local(raw, zone) if raw.dtype.time_zone is None else raw
        times = local.dt.convert_time_zone("UTC").dt.cast_time_unit("us").to_physical()
        given, expected = raw, "a timestamp"
    elif unit == "iso":
        given = _blank_to_null(as_text(raw))
        text = _iso_zone(given).str.replace(" ", "T", literal=True)
        day = text.str.len_chars() == 10
        text = coalesce(_where(text + "T00:00:00", day), text)
        if text.str.slice(16, 1).ne(":").any():  # hours and minutes
            text = text.str.replace(r"^(.{10}T\d\d:\d\d)(Z|z|[+-].*)?$", "${1}:00${2}")
        zoned = (text.str.contains(r"T.*(Z|z|[+-]\d\d:?\d\d)$")).fill_null(False)
        form = "%Y-%m-%dT%H:%M:%S%.f"
        named = _where(text, zoned).str.to_datetime(
            form + "%#z", time_unit="us", time_zone="UTC", strict=False
        )
        plain = _where(text, ~zoned).str.to_datetime(form, time_unit="us", strict=False)
        # Where the clock skips midnight, the day begins an hour later.
        hour = _where(plain, day).dt.offset_by("1h")
        local = [_local(times, zone).dt.convert_time_zone("UTC") for times in (plain, hour)]
        times = coalesce(named, *local).to_physical()
        expected = "ISO 8601 text"
    else:
        if raw.dtype.is_decimal():  # a cast to integers would silently drop its fraction
            raw = raw.cast(pl.Float64)
        given, whole = _cast(raw, pl.Int64())
        if given.dtype.is_float() or whole.null_count() > given.null_count():
            number = given.cast(pl.Float64, strict=False)
            number = _without(number, ~number.is_finite()) * _UNITS[unit]
            exact = number.clip(-2 * _LATEST, 2 * _LATEST).round().cast(pl.Int64)
            times = exact if given.dtype.is_float() else coalesce(_scale(whole, unit), exact)
        else:
            times = _scale(whole, unit)
        expected = f"a number of {unit} since 1970"
        if unknown is not None:
            # As numbers: some write 0 as 0.0 in columns where other rows have none.
            stands = (given.cast(pl.Float64, strict=False) == unknown).fill_null(False)
            given, times = _without(given, stands), _without(times, stands)
    bad = _reasons(times.is_null() & given.is_not_null(), f"expected {expected}")
    outside = (times < _EARLIEST[first_year]) | (times >= _LATEST)
    reasons = coalesce(bad, _reasons(outside, f"outside the years {first_year} to 2100"))
    return Parsed(_without(times, outside).cast(kind), reasons)


def _iso_zone(text: pl.Series) -> pl.Series:
    """Write the zones of BigQuery (` UTC`) and PostgreSQL (`+00`) as ISO 8601 does."""
    if text.str.ends_with("UTC").any():
        text = text.str.replace(r"\s*UTC$", "Z")
    hours = r"(\d:\d\d(?:\.\d+)?)([+-]\d\d)$"
    return text.str.replace(hours, "${1}${2}:00") if text.str.contains(hours).any() else text


def _local(times: pl.Series, zone: str) -> pl.Series:
    return times.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")


def _where(values: pl.Series, where: pl.Series) -> pl.Series:
    """The values, null elsewhere."""
    return _without(values, ~where.fill_null(False))


def _scale(whole: pl.Series, unit: str) -> pl.Series:
    """To microseconds. What would overflow is clipped to a time far outside the accepted years."""
    limit = 2 * _LATEST // _UNITS[unit]
    return whole.clip(-limit, limit) * _UNITS[unit]


def _blank_to_null(text: pl.Series) -> pl.Series:
    text = text.str.strip_chars()
    return _without(text, text == "")


def _cast(raw: pl.Series, kind: pl.DataType) -> tuple[pl.Series, pl.Series]:
    """The given values, and their numbers. Blanks around a text are ignored; a blank is null."""
    given = raw if raw.dtype.is_numeric() else as_text(raw)
    values = given.cast(kind, strict=False)
    if given.dtype == pl.String and values.null_count() > given.null_count():
        given = _blank_to_null(given)
        values = given.cast(kind, strict=False)
    return given, values


def parse_id(raw: pl.Series, dtype: str) -> Parsed:
    """Parse ids. The empty text is null; `12.0` is the integer 12."""
    if dtype == "int":
        if raw.dtype.is_numeric():
            values = raw.cast(pl.Int64, strict=False)
            if raw.dtype.is_decimal():
                values = _without(values, values.cast(pl.Decimal(38, raw.dtype.scale)) != raw)
            if raw.dtype.is_float():
                values = _without(values, values.cast(pl.Float64) != raw)
                raw = raw.fill_nan(None)
            return Parsed(values, _reasons(values.is_null() & raw.is_not_null(), _NOT_INTEGER))
        text, values = _cast(raw, pl.Int64())
        if values.null_count() > text.null_count():
            # Some write 12 as 12.0 in columns where other rows have none.
            whole = text.cast(pl.String).str.extract(r"^([+-]?\d+)\.0*$", 1)
            values = coalesce(values, whole.cast(pl.Int64, strict=False))
        return Parsed(values, _reasons(values.is_null() & text.is_not_null(), _NOT_INTEGER))
    text = as_text(raw)
    text = _without(text, text == "")
    if isinstance(raw.dtype, pl.List | pl.Array):
        return Parsed(text, _reasons(raw.is_not_null(), "expected one value, received a list"))
    long = text.str.len_bytes() > _LONGEST_ID
    return Parsed(text, _reasons(long, f"longer than {_LONGEST_ID} bytes"))


_NOT_INTEGER = "expected an integer"
_NOT_FLOAT32 = "expected a number within float32"


def parse_number(raw: pl.Series) -> Parsed:
    """Parse numbers. True is 1, false is 0, NaN and the empty text are null."""
    if raw.dtype.is_numeric() or raw.dtype == pl.Boolean:
        given, values = raw, raw.cast(pl.Float64)
    else:
        given, values = _cast(raw, pl.Float64())
        if values.null_count() > given.null_count():
            flags = given.str.to_lowercase().replace_strict(
                {"true": 1.0, "false": 0.0}, default=None, return_dtype=pl.Float64
            )
            values = coalesce(values, flags)
    bad = _reasons(values.is_null() & given.is_not_null(), "expected a number")
    infinite = _reasons(values.is_infinite(), "expected a finite number")
    return Parsed(values.fill_nan(None), coalesce(bad, infinite))


def parse_value(raw: pl.Series) -> Parsed:
    """Parse what labels and features are computed of: numbers within float32, as they stay."""
    number = parse_number(raw)
    # Examples hold float32: a number outside its range would be infinite.
    infinite = _reasons(number.values.cast(pl.Float32).is_infinite(), _NOT_FLOAT32)
    return Parsed(number.values, coalesce(number.reasons, infinite))


def parse_weight(raw: pl.Series) -> Parsed:
    """Parse the weights of rows: numbers from 0 within float32."""
    weight = parse_number(raw)
    wrong = (weight.values < 0) | weight.values.cast(pl.Float32).is_infinite()
    reasons = _reasons(wrong.fill_null(False), "expected a weight from 0 within float32")
    return Parsed(weight.values, coalesce(weight.reasons, reasons))


def parse_feature(raw: pl.Series, feature: Feature, zone: str = "UTC") -> Parsed:
    """Parse a feature's column by its kind; of an age, to the times that it is measured from.

    Args:
        raw: the column.
        feature: its kind and options.
        zone: of times without one.
    """
    if isinstance(feature, IdFeature | NumberFeature) and feature.pattern is not None:
        raw = as_text(raw).str.extract(feature.pattern, 1)
    if isinstance(feature, IdFeature):
        return parse_id(raw, feature.dtype)
    if isinstance(feature, IdListFeature):
        return _parse_list(raw, feature)
    if isinstance(feature, TextFeature):
        return _parse_text(raw)
    if isinstance(feature, VectorFeature):
        return _parse_vector(raw, feature)
    if isinstance(feature, NumberFeature):
        if feature.age is not None:
            return parse_time(raw, feature.age, None, zone, BIRTHS)
        number = parse_value(raw)
        return Parsed(number.values.cast(pl.Float32), number.reasons)
    position = parse_id(raw, "int")
    negative = _reasons(position.values < 0, "expected a position from 0")
    return Parsed(position.values, coalesce(position.reasons, negative))


def _parse_text(raw: pl.Series) -> Parsed:
    """Parse texts of any length. Blank ones are null."""
    if isinstance(raw.dtype, pl.List | pl.Array):
        nothing = pl.repeat(None, len(raw), dtype=pl.String, eager=True)
        return Parsed(nothing, _reasons(raw.is_not_null(), "expected a text, received a list"))
    text = as_text(raw)
    return Parsed(_without(text, text.str.strip_chars() == ""), no_reasons(len(raw)))


def _parse_vector(raw: pl.Series, feature: VectorFeature) -> Parsed:
    """Parse vectors: lists of numbers, or texts of them, with or without brackets.

    Empty ones are null. A vector with a value that is no finite float32 is bad as a whole.
    """
    if not isinstance(raw.dtype, pl.List | pl.Array):
        # Where a chunk of JSON lines holds texts beside lists, the lists come joined by `|`.
        text = (
            as_text(raw)
            .str.strip_chars("[] ")
            .str.replace_all("|", feature.separator, literal=True)
        )
        raw = _without(text, text == "").str.split(feature.separator)
    elif isinstance(raw.dtype, pl.Array):
        raw = raw.arr.to_list()
    if raw.dtype.inner == pl.String:
        raw = raw.list.eval(pl.element().str.strip_chars())
    values = raw.cast(pl.List(pl.Float32), strict=False)
    lengths = values.list.len()
    values = _without(values, lengths == 0)
    # A sum of float64 is finite if all of its float32 are; it skips nulls, which are counted.
    sums = values.cast(pl.List(pl.Float64)).list.sum()
    bad = ~sums.is_finite() | (values.list.drop_nulls().list.len() != lengths)
    reasons = _reasons(bad.fill_null(False), "expected finite numbers within float32")
    wrong = (lengths != feature.size) & values.is_not_null()
    if wrong.any():
        text = pl.lit(f"expected a vector of {feature.size} numbers, received one of ")
        found = pl.DataFrame({"length": lengths, "wrong": wrong})
        of_length = pl.when("wrong").then(text + pl.col("length").cast(pl.String))
        reasons = coalesce(found.select(of_length).to_series(), reasons)
    return Parsed(values, reasons)


def _parse_list(raw: pl.Series, feature: IdListFeature) -> Parsed:
    """Lists of ids, without empty values, cut to the last `max_length`; null where empty.

    Blanks belong to an id, as in single ids and in the server's requests: `a| b` holds ` b`.
    """
    if isinstance(raw.dtype, pl.List | pl.Array):
        texts = raw.cast(pl.List(pl.String))
    else:
        texts = as_text(raw).str.split(feature.separator)
    kind = pl.Int64 if feature.dtype == "int" else pl.String
    element = pl.element() if kind == pl.String else pl.element().str.strip_chars()
    given = texts.list.eval(element.replace({"": None})).list.drop_nulls()
    values = given.list.eval(pl.element().cast(kind, strict=False))
    wrong = values.list.eval(pl.element().is_null()).list.any()
    reasons = _reasons(wrong, "expected a list of integers")
    if kind == pl.String:
        longest = given.list.eval(pl.element().str.len_bytes()).list.max()
        reasons = _reasons(longest > _LONGEST_ID, f"a value longer than {_LONGEST_ID} bytes")
    values = values.list.tail(feature.max_length)
    return Parsed(_without(values, values.list.len() == 0), reasons)
