"""What the values of a column look like: numbers, times, lists, texts; and what decides them."""

import re
from dataclasses import dataclass
from typing import Any

import polars as pl

from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.parse import BIRTHS, parse_number, parse_time

_YEARS = (1990, 2100)
_NOT_TOLD = 0.9
_SEPARATORS = ("|", ";", ",")
_BLANK = " "
_TAGS = 100
_SMOOTH = 0.8
_FEW = 20  # values
_PARTS = 60  # of the different values, in order
_RISES = 0.5
_CLASS = 30  # rows
_KNOWN = 0.98
_HOURS = {"s": 3600, "ms": 3_600_000}
_LONG_AGO = 10_000  # hours


@dataclass(frozen=True)
class Column:
    """A column of a sample (N rows)."""

    name: str
    raw: pl.Series
    """(N,) as the file gives it."""
    number: pl.Series | None
    """(N,) as float64; None where some value is no number."""
    missing: float
    """Share of the rows without a value."""
    distinct: int
    whole: bool
    """Whether all numbers are written as whole ones."""

    @property
    def rows(self) -> int:
        """Rows with a value."""
        return self.raw.len() - self.raw.null_count()

    @property
    def is_list(self) -> bool:
        """Whether the file holds lists."""
        return isinstance(self.raw.dtype, pl.List | pl.Array)

    @property
    def lowest(self) -> float:
        """The least number."""
        return _float(None if self.number is None else self.number.min())

    @property
    def highest(self) -> float:
        """The largest number."""
        return _float(None if self.number is None else self.number.max())

    @property
    def serial(self) -> bool:
        """Whether the column numbers the rows of each file."""
        if self.number is None or not self.whole or self.missing or self.distinct < 100:
            return False
        return _float((self.number.diff() == 1).mean()) > 0.9

    @property
    def ones(self) -> int:
        """How many numbers are 1."""
        return 0 if self.number is None else int((self.number == 1.0).sum())

    @property
    def flag(self) -> bool:
        """Whether the values are 0 and 1, or false and true."""
        if self.number is None or self.distinct > 2 or not self.rows:
            return False
        return set(self.number.drop_nulls().unique()) <= {0.0, 1.0}


def _float(value: Any) -> float:
    return float(value) if value is not None else 0.0


def look(name: str, raw: pl.Series) -> Column:
    """Look at a column."""
    if raw.dtype == pl.String:
        raw = raw.replace("", None)
    number, whole = None, False
    if not isinstance(raw.dtype, pl.List | pl.Array | pl.Datetime | pl.Date | pl.Struct):
        parsed = parse_number(raw)
        if parsed.reasons.null_count() == len(raw) and raw.null_count() < len(raw):
            number = parsed.values
            text = as_text(raw.drop_nulls().head(5000))
            # `true` is whole. Of many values, so are 12.0 and 13.0: some write whole numbers so
            # where others are missing. Of few, a measure may happen to be whole.
            given = r"\.|\d[eE]" if text.n_unique() <= _FEW else r"\.\d*[1-9]|\d[eE]"
            whole = not bool(text.str.contains(given).any())
    keys = as_text(raw) if isinstance(raw.dtype, pl.List | pl.Array) else raw
    return Column(
        name=name,
        raw=raw,
        number=number,
        missing=raw.null_count() / max(len(raw), 1),
        distinct=keys.n_unique() - (raw.null_count() > 0),
        whole=whole,
    )


@dataclass(frozen=True)
class Times:
    """A column read as times."""

    column: Column
    unit: str
    unknown: int | None
    """The number that stands for an unknown time."""
    values: pl.Series
    old: bool = False
    """Whether years before 1990 are among them."""


def as_times(column: Column) -> Times | None:
    """Read a column as times; None where it holds others values."""
    if column.is_list or not column.rows or column.flag:
        return None
    units = ("s", "ms", "us") if column.number is not None else ("iso",)
    for unit in units:
        head = parse_time(column.raw.drop_nulls().head(200), unit, None)
        if _share_within(head.values) < 0.5:
            continue
        values = parse_time(column.raw, unit, None).values
        outside = ~values.dt.year().is_between(*_YEARS).fill_null(False)
        if unit == "iso" or not outside.any():
            return Times(column, unit, None, values) if _share_within(values) > _KNOWN else None
        left = column.raw.filter(outside).cast(pl.Int64, strict=False).drop_nulls().value_counts()
        if len(left) == 1:  # one number stands for all unknown times
            unknown = int(left.item(0, 0))
            values = parse_time(column.raw, unit, unknown).values
            return Times(column, unit, unknown, values)
        return Times(column, unit, None, values) if _share_within(values) > _KNOWN else None
    return None


def as_births(column: Column) -> Times | None:
    """Read a column as times from 1900 on, such as dates of birth; None where it holds others.

    Numbers are such times where they are whole hours, many of them before 1970.
    """
    if column.is_list or not column.rows or column.flag:
        return None
    units = ["iso"]
    if column.number is not None:
        # As integers: the remainder of large numbers of float64 is not exact.
        given = column.number.drop_nulls().cast(pl.Int64, strict=False)
        before = _float((given < 0).mean())
        units = [
            unit
            for unit, hour in _HOURS.items()
            if before > 0.05
            and _float((given % hour == 0).mean()) > _NOT_TOLD
            and _float(given.abs().median()) > _LONG_AGO * hour
        ]
    for unit in units:
        values = parse_time(column.raw, unit, None, first_year=BIRTHS).values
        if len(values) - values.null_count() > _KNOWN * column.rows:
            return Times(column, unit, None, values, old=True)
    return None


def any_times(column: Column) -> Times | None:
    """Read a column as times of a log, or else as older ones; None where it holds others."""
    return as_times(column) or as_births(column)


def holds_times(column: Column) -> bool:
    """Whether a column holds times of a log, or older ones."""
    return any_times(column) is not None


def _share_within(values: pl.Series) -> float:
    inside = values.dt.year().is_between(*_YEARS).fill_null(False)
    return _float(inside.mean())


DECIDES = 0.97
"""The share from which on one column decides another one."""


def decides(frame: pl.DataFrame, by: str, what: str) -> float:
    """The share of rows whose `by` has one value of `what` only; 0 where `by` hardly repeats.

    Args:
        frame: a sample.
        by: the column that may decide.
        what: the column that may be decided; missing values do not count.
    """
    known = frame.select(by=pl.col(by), what=pl.col(what)).drop_nulls()
    groups = known.group_by("by").agg(values=pl.col("what").n_unique(), rows=pl.len())
    several = groups.filter(pl.col("rows") > 1)
    rows = int(several["rows"].sum())
    if rows < 0.2 * max(len(known), 1) or not rows:
        return 0.0
    # Of a group of two rows, one in two is alike by chance where `what` has two values; weigh by
    # the rows that could differ.
    alike = several.filter(pl.col("values") == 1)
    return float(alike["rows"].sum() / rows)


def goes_with(frame: pl.DataFrame, by: str, column: Column) -> float:
    """How much of what differs in a column is between groups: 1 all, about 0 what chance gives.

    Of numbers, the share of the variance of ranks; of words, that of their impurity (Gini).

    Args:
        frame: a sample.
        by: the column of the groups.
        column: of the frame.
    """
    values = column.raw if column.number is None else column.number
    rows = pl.DataFrame({"by": frame[by], "x": values}).drop_nulls()
    of_all, within = len(rows) - 1, len(rows) - rows["by"].n_unique()
    if within < 1:
        return 0.0
    if column.number is None:
        pairs = (
            rows.group_by("by", "x")
            .len()
            .group_by("by")
            .agg(n=pl.col("len").sum(), same=(pl.col("len").cast(pl.Float64) ** 2).sum())
        )
        counts = rows["x"].value_counts()["count"].cast(pl.Float64)
        total = len(rows) - float((counts**2).sum()) / len(rows)
        inside = float((pairs["n"] - pairs["same"] / pairs["n"]).sum())
    else:
        ranks = rows.with_columns(pl.col("x").rank())
        total = float(((ranks["x"] - ranks["x"].mean()) ** 2).sum())
        inside = float(((ranks["x"] - ranks.select(pl.col("x").mean().over("by"))["x"]) ** 2).sum())
    return 1 - (inside / within) / (total / of_all) if total else 0.0


def names_code(name: str) -> bool:
    """Whether a column's name says that its numbers name something: `seller_id`, `areaCode`."""
    apart = re.search(r"(^|[^a-z])(id|uid|code|zip|plz|postcode)$", name.lower())
    return apart is not None or re.search(r"[a-z](Id|ID|Uid|Code)$", name) is not None


def is_measure(column: Column) -> bool:
    """Whether numbers measure something: values beside one another are about as frequent.

    How often an id occurs says nothing about the next one.
    """
    if column.number is None or column.distinct < 20 or column.rows < 5 * column.distinct:
        return False
    counts = column.number.drop_nulls().value_counts().sort(column.number.name)["count"]
    both = pl.DataFrame({"one": counts, "next": counts.shift(-1)}).drop_nulls()
    alike = both.select(pl.corr("one", "next", method="spearman").fill_nan(0.0)).item()
    return _float(alike) > _SMOOTH


def are_places(column: Column) -> bool:
    """Whether whole numbers from 0 or 1 on are as places are: no gaps, and the higher, the rarer.

    Nobody sees the fifth place of a list without the fourth.
    """
    if column.number is None or not column.whole or column.lowest not in (0.0, 1.0):
        return False
    if column.flag or column.distinct != column.highest - column.lowest + 1:
        return False
    counts = column.number.drop_nulls().value_counts().sort(column.number.name)["count"]
    return bool((counts.diff().drop_nulls() <= 0).mean() == 1.0)


def spreads(column: Column) -> bool:
    """Whether numbers that hardly repeat lie as those of a measure do: the higher, the sparser.

    Ids lie everywhere alike, or, given in the order of time, nearer to one another at the end.
    """
    if column.number is None:
        return False
    known = column.number.drop_nulls().unique().sort()
    several = max(len(known) // _PARTS, 1)
    if several < _FEW or column.lowest < 0:
        return False
    ends = known.gather_every(several)
    parts = pl.DataFrame({"wide": ends.diff()}).drop_nulls().with_row_index("at")
    beside = pl.corr("wide", pl.col("wide").shift(-1), method="spearman").fill_nan(0.0)
    rising = pl.corr("at", "wide", method="spearman").fill_nan(0.0)
    found = parts.select(beside=beside, rising=rising)
    return bool(found["beside"].item() > _SMOOTH and found["rising"].item() > _RISES)


def measures(column: Column) -> bool:
    """Whether numbers measure something, however often they repeat."""
    return is_measure(column) or spreads(column)


def ranks(numbers: pl.Series, flag: pl.Series) -> float:
    """AUC of numbers (N,) for a flag (N,); 0.5 where one of both classes has few."""
    pairs = pl.DataFrame({"x": numbers, "y": flag.cast(pl.Float64)}).drop_nulls()
    ones = int(pairs["y"].sum())
    zeros = len(pairs) - ones
    if min(ones, zeros) < _CLASS:
        return 0.5
    places = pairs.with_columns(r=pl.col("x").rank()).filter(pl.col("y") == 1)
    return (float(places["r"].sum()) - ones * (ones + 1) / 2) / (ones * zeros)


def clustering(values: pl.Series, window: int = 20) -> float:
    """How much rows of one value stand together in the order of time, 0 (by chance) to 1.

    A user's rows come in bursts; an item's are spread among the users.

    Args:
        values: in the order of time.
        window: how many rows before a row count as near.
    """
    codes = values.rank("dense").drop_nulls().cast(pl.Int64)
    rows = len(codes)
    if rows < 2 * window:
        window = max(rows // 4, 1)
    frame = pl.DataFrame({"value": codes, "at": pl.int_range(rows, eager=True)})
    gap = pl.col("at") - pl.col("at").shift().over("value")
    near = _float(frame.select((gap <= window).fill_null(False).mean()).item())
    shares = frame["value"].value_counts()["count"] / rows
    chance = _float((shares * (1 - (1 - shares) ** window)).sum())
    if chance > _NOT_TOLD:
        return 0.0  # of few values, nearly every row is near one of its own
    return (near - chance) / (1 - chance)


def separator(column: Column) -> str | None:
    """What separates the values of a list that is written as text; None for other texts."""
    if column.raw.dtype != pl.String or column.number is not None or not column.rows:
        return None
    texts = column.raw.drop_nulls().unique().head(3000)
    for mark in _SEPARATORS:
        parts = texts.str.split(mark)
        several = _float((parts.list.len() > 1).mean())
        if several < 0.2:
            continue
        tokens = parts.explode()
        blanks = _float(tokens.str.contains(r"^\s|\s\S+\s").mean())
        if tokens.n_unique() < 0.5 * len(tokens) and tokens.n_unique() < 5000 and blanks < 0.1:
            return mark
    # Words in a row are tags only where few words make many texts: names of places and titles have
    # more words than there are texts.
    tokens = texts.str.split(_BLANK).explode()
    several = _float(texts.str.contains(_BLANK, literal=True).mean())
    words = tokens.n_unique()
    if several >= 0.5 and words <= _TAGS and 2 * words <= len(texts):
        return _BLANK
    return None


def vector_size(column: Column) -> int:
    """How many numbers each list of a column of vectors has; 0 where it holds no vectors."""
    lists = column.raw.drop_nulls()
    if isinstance(lists.dtype, pl.Array):
        lists = lists.arr.to_list()
    if not isinstance(lists.dtype, pl.List) or lists.list.len().n_unique() != 1:
        return 0
    numbers = lists.list.explode()
    if numbers.dtype == pl.String:  # of JSON
        parsed = numbers.cast(pl.Float64, strict=False)
        numbers = parsed if not parsed.null_count() else numbers
        broken = not numbers.dtype.is_float() or bool((numbers % 1 == 0).all())
    else:
        broken = not numbers.dtype.is_float()
    size = int(lists.list.len().max() or 0)
    return 0 if broken or size < 2 else size


def is_prose(column: Column) -> bool:
    """Whether a column holds texts of several words that hardly repeat."""
    if column.raw.dtype != pl.String or column.number is not None or not column.rows:
        return False
    texts = column.raw.drop_nulls().unique().head(3000)
    words = _float(texts.str.count_matches(r"\S+").mean())
    return words >= 2.5 and column.distinct > 50
