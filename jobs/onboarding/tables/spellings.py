"""Recognises numbers, flags and times that a file spells otherwise than the pipeline reads them.

A column whose values all have one such spelling is read through a rule of `derive`: decimal commas,
units such as a currency, durations, words for yes and no, dates as `31.12.2026` or `Dec 31 2026`.
So is one in which `-` or `N/A` stands where others have a number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from multigate.jobs.onboarding.tables.columns import as_times, holds_times, look
from multigate.pipeline.read.derive import (
    WITH_UNIT,
    duration,
    first_present,
    flag,
    number,
    spelled_time,
)
from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.parse import NULL_LIKE

_YES_NO = (
    *(("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off")),
    *(("sí", "no"), ("si", "no"), ("sì", "no")),
    *(("s", "n"), ("ja", "nein"), ("j", "n"), ("ja", "nee"), ("oui", "non"), ("o", "n")),
    *(("sim", "não"), ("sim", "nao"), ("tak", "nie"), ("ano", "ne"), ("да", "нет")),
    *(("wahr", "falsch"), ("vrai", "faux"), ("verdadero", "falso"), ("是", "否")),
)
_DAYS = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d"),
    *("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d/%m/%y", "%m/%d/%y"),
    *("%d.%m.%y", "%Y%m%d"),
)
_HOURS = (
    *("", " %H:%M", " %H:%M:%S%.f", ", %H:%M", ", %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p"),
    *(", %I:%M %p", ", %I:%M:%S %p", "T%H:%M:%S%.f", " %H:%M:%S%.f %z", " %H:%M:%S UTC"),
)
_WHOLE = (
    *("%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT"),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S UTC %Y", "%a %b %d %H:%M:%S %z %Y"),
    *("%Y%m%d%H%M%S", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ", "%Y-%m-%d %I:%M:%S %p"),
)
_DAY = r"^\d{4}-\d\d-\d\d$"
_CLOCK = r"^\d\d:\d\d(:\d\d(\.\d+)?)?$"
_NANOSECONDS = r"^(\d+)\d{3}$"
_HEAD = 300
_ENOUGH = 0.98
_MEASURES = 13  # values; of fewer, `size 4` may be a name
_LETTERS = r"^[\p{L}]+$"
_LATE = 3 * 3600  # seconds after midnight: half of a day's rows are later, half of what lasts less
_HOUR = r"^(\d\d?):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?$"
_MORNING, _EVENING = 8, 18  # hours: half of a day's rows are later, and some after this one
_DAYBREAK, _ROUND = 5, 0.9  # the first hour of plans, and how many of their times are of 5 minutes
_ODD, _KINDS = 0.02, 20  # of the rows, and texts, that are no duration
_NOTHING = r"^[^\p{L}\d]+$"
_ZERO = r"^0+([.,]0+)?$"


@dataclass
class Spelled:
    """A table whose columns are spelled as the pipeline reads them."""

    frame: pl.DataFrame
    derive: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How the pipeline gets there, by column, as `pipeline.log.derive` takes it."""
    reasons: dict[str, str] = field(default_factory=dict)
    """By column, why."""
    seconds: set[str] = field(default_factory=set)
    """The columns that hold durations, whose numbers are seconds."""


def respell(frame: pl.DataFrame) -> Spelled:
    """Spell a sample's columns as the pipeline reads them.

    Args:
        frame: as the files give it; only texts are looked at.
    """
    found = Spelled(frame)
    _join_day_and_clock(found)
    for name in found.frame.columns:
        if frame.get_column(name, default=pl.Series()).dtype.is_integer():
            _cut_nanoseconds(found, name)
        if name in frame.columns and frame[name].dtype == pl.Duration:
            why = "durations, read as seconds"
            _keep(found, name, {"number": name}, number(frame[name]), why)
            found.seconds.add(name)
        if name not in frame.columns or frame[name].dtype != pl.String:
            continue
        if _cut_nanoseconds(found, name):
            continue
        column = look(name, frame[name])
        if not column.rows or (column.number is not None and not _is_day(column.raw)):
            continue
        marks = _marks(column.raw)
        given = _without(column.raw, marks)
        seconds = _seconds(given)
        if seconds is not None:
            values, odd, why = seconds
            _keep(found, name, {"number": name}, values, why, [*marks, *odd])
            found.seconds.add(name)
        elif marks and look(name, given).number is not None:
            _keep(found, name, {"coalesce": [name]}, given, "numbers", marks)
        else:
            for rule, values, why in _spellings(name, given):
                if not marks or "number" in rule:
                    _keep(found, name, rule, values, why, marks)
                    break
    return found


def _keep(
    found: Spelled,
    name: str,
    rule: dict[str, Any],
    values: pl.Series,
    why: str,
    empty: Sequence[str] = (),
) -> None:
    if empty:
        rule = rule | {"empty": list(empty)}
        shown = ", ".join(map(repr, empty[:3])) + (" and others" if len(empty) > 3 else "")
        count = int(found.frame[name].str.strip_chars().str.to_lowercase().is_in(empty).sum())
        why += f"; {count} of {len(values)} rows have {shown} instead, taken for none"
    found.derive[name], found.reasons[name] = rule, why
    found.frame = found.frame.with_columns(values.cast(pl.String).alias(name))


def _marks(raw: pl.Series) -> list[str]:
    """Texts that stand where there is no value, such as `-` and `N/A`, in small letters."""
    texts = raw.drop_nulls().str.strip_chars().str.to_lowercase().unique()
    words = sorted({one.lower() for one in NULL_LIKE})
    found = texts.filter((texts.is_in(words) | texts.str.contains(_NOTHING)) & (texts != ""))
    return sorted(found)


def _without(raw: pl.Series, texts: Sequence[str]) -> pl.Series:
    return first_present([raw], texts).alias(raw.name) if texts else raw


def _seconds(raw: pl.Series) -> tuple[pl.Series, list[str], str] | None:
    """The numbers of a column whose texts are durations, the few that are none, and why."""
    texts = raw.drop_nulls().str.strip_chars()
    known = texts.unique(maintain_order=True)
    known = known.filter(duration(known).is_not_null())
    if len(known) < _MEASURES or _are_clocks(known):
        return None
    odd = texts.filter(~texts.is_in(known.implode()) & ~texts.str.contains(_ZERO))
    kinds = sorted(odd.str.to_lowercase().unique())
    if len(odd) > _ODD * len(texts) or len(kinds) > _KINDS:
        return None
    why = f"durations, read as seconds, such as {known[0]!r}"
    if known.str.contains(r"^\d+:\d\d$").all():
        why += ", as minutes and seconds"
    return number(_without(raw, kinds)), kinds, why


def may_last(raw: pl.Series) -> bool:
    """Whether texts that are read as times of day, such as `7:30`, may be minutes and seconds.

    A film may be as long as noon is late: from 0:00 to 23:59, values do not tell.
    """
    if raw.dtype != pl.String:
        return False
    known = raw.drop_nulls().str.strip_chars().unique()
    is_short = known.str.contains(r"^\d+:[0-5]\d$").all()
    return len(known) >= _MEASURES and is_short and _are_clocks(known)


def _are_clocks(texts: pl.Series) -> bool:
    """Whether durations may be times of day, such as `14:05`, as far as their values tell."""
    hours = texts.str.extract(_HOUR, 1).cast(pl.Int64)
    if hours.null_count() or int(hours.max() or 0) > 23:
        return False
    if texts.str.count_matches(":").min() == 2:
        return float(duration(texts).median() or 0.0) >= _LATE
    minutes = texts.str.extract(r":(\d\d)", 1).cast(pl.Int64)
    plans = float((minutes % 5 == 0).mean() or 0.0) > _ROUND and int(hours.min() or 0) >= _DAYBREAK
    middle, last = float(hours.median() or 0.0), int(hours.max() or 0)
    return plans or (middle >= _MORNING and last >= _EVENING)


def _cut_nanoseconds(found: Spelled, name: str) -> bool:
    """Read nanoseconds since 1970 as microseconds."""
    text = as_text(found.frame[name])
    if not text.null_count() < len(text) or not text.drop_nulls().str.contains(r"^\d{19}$").all():
        return False
    values = text.str.extract(_NANOSECONDS, 1)
    if as_times(look(name, values)) is None:
        return False
    found.derive[name] = {"extract": name, "pattern": _NANOSECONDS}
    found.reasons[name] = "nanoseconds since 1970, cut to microseconds"
    found.frame = found.frame.with_columns(values.alias(name))
    return True


def _join_day_and_clock(found: Spelled) -> None:
    """Join a column of days and one of times of day to one of times."""
    texts = [name for name in found.frame.columns if found.frame[name].dtype == pl.String]
    all_are = {
        form: [n for n in texts if _all_match(found.frame[n], form)] for form in (_DAY, _CLOCK)
    }
    if len(all_are[_DAY]) != 1 or len(all_are[_CLOCK]) != 1:
        return
    (day,), (clock,) = all_are.values()
    lasts = duration(found.frame[clock].replace("", None)).median()
    if found.frame[clock].str.contains(r":.*:").any() and float(lasts or 0.0) < _LATE:
        return  # how long something took, beside the day of something else
    name = "time"
    while name in found.frame.columns:
        name += "_"
    joined = pl.concat_str(day, clock, separator="T")
    found.frame = found.frame.with_columns(joined.alias(name)).drop(day, clock)
    found.derive[name] = {"join": [day, clock], "separator": "T"}
    found.reasons[name] = f"the days of {day!r} with the times of day of {clock!r}"


def _all_match(column: pl.Series, form: str) -> bool:
    known = column.drop_nulls()
    known = known.filter(known != "")
    return len(known) > 0 and bool(known.str.contains(form).all())


def _spellings(name: str, raw: pl.Series) -> Iterator[tuple[dict[str, Any], pl.Series, str]]:
    """The rule of a spelling, the values that it makes, and why it is the column's."""
    texts = raw.drop_nulls().str.strip_chars()
    words = texts.unique().head(50).str.to_lowercase().unique()
    if len(words) == 2:
        for yes, no in _YES_NO:
            if set(words) == {yes, no}:
                # Its own capitals, where they are always the same, read better.
                given = texts.filter(texts.str.to_lowercase() == yes).unique()
                ones = [given[0] if len(given) == 1 else yes]
                why = f"its two values are {yes!r} and {no!r}"
                yield {"flag": name, "ones": ones}, flag(raw, ones), why
    unit = _unit(texts)
    if unit is not None:
        rule, values = _number(name, raw)
        yield rule, values, f"numbers with {unit!r}, such as {texts[0]!r}"
        return
    if texts.str.contains(",", literal=True).any() and not texts.str.contains(_LETTERS).any():
        rule, values = _number(name, raw)
        parsed = look(name, values)
        # `1,2` may be a list of two ids: of a number, every value has one comma at most.
        if parsed.number is not None and texts.str.count_matches(",").max() == 1:
            example = texts.filter(texts.str.contains(",", literal=True))[0]
            is_grouped = rule.get("decimal") == "."
            mark = "commas between thousands" if is_grouped else "a decimal comma"
            yield rule, values, f"numbers with {mark}, such as {example!r}"
            return
    form = _form(name, raw)
    if form is not None:
        told, unclear = form
        why = f"times of the form {told!r}, such as {texts[0]!r}" + (
            "; no day is above 12: if days and months are the other way round, change the form"
            if unclear
            else ""
        )
        yield {"time_of": name, "form": told}, spelled_time(raw, told), why


def _unit(texts: pl.Series) -> str | None:
    """The unit, such as a currency, that stands beside the numbers of all texts."""
    if texts.n_unique() < _MEASURES or not texts.str.contains(WITH_UNIT).all():
        return None
    units = texts.str.replace(r"[+-]?\d[\d.,]*", "").str.strip_chars().unique()
    if len(units) > 1 or not units[0]:
        return None  # values of several currencies cannot be compared
    # Three digits after a mark may be thousands or a fraction: other texts must not say otherwise.
    bare = texts.str.extract(WITH_UNIT, 1)
    marks = {mark for mark in ",." if bare.str.contains(rf"^[+-]?\d+\{mark}\d{{3}}$").any()}
    is_other = bare.str.contains(r"\.\d{1,2}$|\.\d{4,}$").any()
    if marks and (is_other or marks == {",", "."}):
        return None
    return str(units[0]) if look("", number(texts)).number is not None else None


def _number(name: str, raw: pl.Series) -> tuple[dict[str, Any], pl.Series]:
    """The rule that reads a column of numbers, and its values."""
    decimal = _decimal(raw.drop_nulls().str.strip_chars().str.extract(WITH_UNIT, 1).drop_nulls())
    rule = {"number": name} | ({} if decimal is None else {"decimal": decimal})
    return rule, number(raw, decimal)


def _decimal(numbers: pl.Series) -> str | None:
    """The decimal mark of numbers in which the other mark groups thousands; None: `number` sees it.

    Three digits after a single mark may be thousands or a fraction: `1,234`. They are thousands
    where the other texts are whole and below a thousand (`841`), or show it (`1,234,567`).
    """
    for mark, other in ((",", "."), (".", ",")):
        marked = numbers.str.contains(mark, literal=True)
        unclear = rf"^[+-]?[1-9]\d{{0,2}}(\{mark}\d{{3}})+(\{other}\d+)?$"
        if not marked.any() or not numbers.filter(marked).str.contains(unclear).all():
            continue
        if not numbers.str.contains(rf"^[+-]?\d{{1,3}}\{mark}\d{{3}}$").any():
            continue
        if numbers.str.contains(rf"\{mark}\d{{3}}\{mark}|\{mark}\d{{3}}\{other}").any():
            return other
        whole = numbers.filter(~marked)
        if len(whole) and whole.str.contains(rf"^[+-]?\d{{1,3}}(\{other}\d+)?$").all():
            return other
    return None


def _is_day(raw: pl.Series) -> bool:
    """Whether whole numbers may be days or instants written as `20261231` or `20261231235959`."""
    texts = raw.drop_nulls().head(_HEAD)
    form = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])?([0-5]\d){0,2}$"
    return bool(texts.str.contains(form).all()) and texts.str.len_chars().n_unique() == 1


def _form(name: str, raw: pl.Series) -> tuple[str, bool] | None:
    """The form that reads a column's texts as times, and whether another one does as well."""
    texts = raw.drop_nulls().unique(maintain_order=True).head(_HEAD)
    if holds_times(look(name, texts)) or not texts.str.contains(r"\d").all():
        return None
    forms = [*_WHOLE, *(day + hour for hour in _HOURS for day in _DAYS)]
    fits = [form for form in forms if _reads(texts, form)]
    fits = [form for form in fits if _reads(raw.drop_nulls().unique(), form)]
    if not fits:
        return None
    # Where no day is above 12, days read as months lie far apart.
    best = min(fits, key=lambda form: (_leaps(raw, form), fits.index(form)))
    return best, len(fits) > 1 and "%d" in best and "%m" in best


def _leaps(raw: pl.Series, form: str) -> float:
    """How far apart rows beside one another are, seconds."""
    times = spelled_time(raw.drop_nulls(), form).str.strip_suffix("Z")
    read = times.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    return float(read.diff().abs().dt.total_seconds().mean() or 0.0)


def _reads(texts: pl.Series, form: str) -> bool:
    iso = spelled_time(texts, form)
    if float((iso == texts).mean() or 0.0) > 1 - _ENOUGH:
        return False
    return holds_times(look("", iso))
