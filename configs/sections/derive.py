"""Columns that the pipeline makes from the columns of a file: joined, cut out, spelled otherwise.

`derive: {user: {join: [device, region]}}` makes a column `user`, which every key that takes a
column's name may name then. The pipeline alone derives: a request holds the derived value itself,
as it holds the part that a feature's `pattern` takes.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction
from multigate.configs.sections.features import Pattern

_RULES = (
    *("join", "coalesce", "lower", "extract", "first", "number", "flag", "time_of"),
    *("hour_of", "weekday_of", "constant", "member", "place_in", "ones_of"),
)
_YEARS = ("%Y", "%y", "%F", "%D", "%s", "%c", "%x", "%+")


class Derived(Frozen):
    """How one column is made from columns of the same row: exactly one of the rules.

    A rule reads the file's own columns, so that `{topic: {lower: topic}}` lowers `topic`. Where
    another rule derives a column of that name, `join` and `coalesce` of several columns read what
    that rule makes, unless it is such a one itself, or `first`, `hour_of` or `weekday_of`; these
    read what any other rule makes.
    Of an exploded column, rules read the row's own value.
    """

    join: tuple[str, ...] | None = Field(None, min_length=2, examples=[["device", "region"]])
    """Join the texts of these columns by `separator`. A missing one is an empty text; where all are
    missing, so is the value."""
    separator: str = "|"
    """Stands between the texts of `join`, where no text should hold it, and between the values of
    the lists of `first`, `member` and `ones_of`. For `join` it may be empty, which gives the one
    column that has a value, where no row has two."""
    coalesce: tuple[str, ...] | None = Field(None, min_length=1, examples=[["login", "session"]])
    """The text of the first of these columns that has one: the session where a guest has no login.
    Missing where all are."""
    empty: tuple[str, ...] | None = Field(None, min_length=1, examples=[["guest", "0"]])
    """Of `coalesce`, which may have one column then, and of `number`: texts that say that there is
    none, such as the word for all guests. Capitals and blanks around them do not matter."""
    lower: str | None = Field(None, examples=["topic"])
    """The column's text in small letters, without blanks around it."""
    extract: str | None = Field(None, examples=["url"])
    """The part of the column's text that `pattern` finds; missing where it finds none."""
    pattern: Pattern | None = Field(None, examples=["/item/(\\d+)"])
    """Of `extract`: a regular expression with one group, which is the value."""
    first: str | None = Field(None, examples=["tags"])
    """The first value of a list, or of a text with `separator` between its values; missing where
    there is none. So a label's rate can be of a list's main value."""
    number: str | None = Field(None, examples=["price"])
    """The number that a text with a decimal comma or a unit spells: `1.234,50` is 1234.5, `€ 9.90`
    is 9.9, `12 kg` is 12. Of a duration, its seconds: `PT1M30S`, `00:01:30` and `1:30` are 90."""
    decimal: Literal[",", "."] | None = None
    """Of `number`: the decimal mark, where the other of comma and point groups thousands: with `,`
    the text `1.234` is 1234, with `.` the text `1,234` is. By default a mark that stands twice, or
    before the other one, groups, and a single one is the decimal mark: 1.234 for both texts."""
    flag: str | None = Field(None, examples=["clicked"])
    """1 where the column's text is one of `ones`, 0 where it is another one, missing where there is
    none."""
    ones: tuple[str, ...] | None = Field(None, min_length=1, examples=[["yes", "y"]])
    """Of `flag`: the texts that mean 1. Capitals and blanks around them do not matter."""
    time_of: str | None = Field(None, examples=["created"])
    """The time that the column's text spells by `form`, as ISO 8601 text, for a `time_unit` (or an
    `age`) of `iso`. A text of another form is kept, so that it is rejected as no time."""
    form: str | None = Field(None, examples=["%d/%m/%Y %H:%M"])
    """Of `time_of`: how its texts are written, in the letters of strptime: `%d` day, `%m` month,
    `%Y` year, `%H` hour, `%M` minute, `%S` second, `.%f` its fraction, `%z` zone (`+0200`)."""
    hour_of: str | None = Field(None, examples=["time"])
    """The hour, 0 to 23, of a column of times in the log's `time_unit` and `time_zone`."""
    weekday_of: str | None = Field(None, examples=["time"])
    """The day of the week, 1 (Monday) to 7, of a column of times, as for `hour_of`."""
    member: str | None = Field(None, examples=["shown"])
    """1 where this column's text is one of the list in the column `of`, 0 elsewhere. With `explode`
    of a request's items, it tells which of them were clicked."""
    of: str | None = Field(None, examples=["clicked"])
    """Of `member`: a column of lists, or of texts with `separator` between their values."""
    place_in: str | None = Field(None, examples=["shown"])
    """The place, from 0, that the row's value had in this column's list, which `explode` names."""
    ones_of: tuple[str, ...] | None = Field(None, min_length=2, examples=[["war", "love"]])
    """The names of those of these columns that are 1 (or true), with `separator` between them; so
    a family of flags is read as one list."""
    constant: str | None = Field(None, examples=["0"])
    """The same text in every row. A log without times has the time `{constant: "0"}` with
    `unknown_time: 0`, and a random split."""

    @model_validator(mode="after")
    def _check(self) -> "Derived":
        given = [name for name in _RULES if getattr(self, name) is not None]
        if len(given) != 1:
            raise contradiction(
                f"derive: expected exactly one of {', '.join(_RULES)}; received "
                f"{' and '.join(given) or 'none'}"
            )
        if not self.separator and self.join is None:
            raise contradiction(
                f"derive: separator: expected at least one character for {given[0]}, received "
                "none; only join takes an empty one"
            )
        if self.empty is not None and given[0] not in ("coalesce", "number"):
            raise contradiction(
                f"derive: empty: only coalesce and number take it, such as {{coalesce: [login], "
                f"empty: [guest]}}; received {given[0]}"
            )
        if self.decimal is not None and self.number is None:
            raise contradiction(
                "derive: decimal: only number takes it, such as {number: price, decimal: ','}; "
                f"received {given[0]}"
            )
        if self.empty is None and len(self.coalesce or ()) == 1:
            raise contradiction(
                "derive: coalesce: expected at least two columns, or texts that are none (empty); "
                "received one column"
            )
        if (self.extract is None) != (self.pattern is None):
            raise contradiction(
                "derive: extract and pattern go together, such as {extract: url, pattern: "
                "'/item/(\\d+)'}"
            )
        if (self.flag is None) != (self.ones is None):
            raise contradiction(
                'derive: flag and ones go together, such as {flag: clicked, ones: ["yes"]}'
            )
        if (self.time_of is None) != (self.form is None):
            raise contradiction(
                "derive: time_of and form go together, such as {time_of: created, form: '%d/%m/%Y'}"
            )
        if self.form is not None and not any(one in self.form for one in _YEARS):
            raise contradiction(
                f"derive: form: expected letters of strptime with a year, such as '%d/%m/%Y', "
                f"received {self.form!r}"
            )
        if self.form is not None and "%f" in self.form.replace(".%f", ""):
            raise contradiction(
                "derive: form: expected %f, the fraction of a second, behind a point, as in "
                f"'%H:%M:%S.%f'; received {self.form!r}"
            )
        if self.form is not None and re.search("%[HI]", self.form) and "%M" not in self.form:
            raise contradiction(
                f"derive: form: expected minutes (%M) beside the hour, received {self.form!r}; of "
                "'2026-01-05 10', a join with the constant '00' by ':' makes a time of ISO 8601"
            )
        if (self.member is None) != (self.of is None):
            raise contradiction(
                "derive: member and of go together, such as {member: shown, of: clicked}"
            )
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The file's columns that it reads."""
        apart = ("join", "coalesce", "constant", "ones_of")
        named = (getattr(self, name) for name in _RULES if name not in apart)
        one = next((name for name in named if name is not None), None)
        if one is None:
            return self.join or self.coalesce or self.ones_of or ()
        return (one,) if self.of is None else (one, self.of)

    @property
    def reads_list(self) -> str | None:
        """The column that it reads as a list."""
        return self.first or self.of

    @property
    def turn(self) -> int:
        """When it is made: it reads what rules of earlier turns have made."""
        if self.join is not None or len(self.coalesce or ()) > 1:
            return 1
        return 2 if self.hour_of or self.weekday_of or self.first else 0

    def reads_derived(self, name: str, derive: Mapping[str, "Derived"]) -> tuple[str, ...]:
        """The columns that it reads as other rules make them.

        Args:
            name: of the column that it makes.
            derive: all rules of the same files.
        """
        return tuple(
            one
            for one in (self.sources if self.turn else ())
            if one != name and one in derive and derive[one].turn < self.turn
        )


class Explode(Frozen):
    """Rows that hold lists, such as a request with all items that it showed: one row for each."""

    columns: tuple[str, ...] = Field(min_length=1, examples=[["shown"]])
    """Columns of lists (JSON, Parquet), or of texts with `separator` between their values. A row
    becomes as many rows as its lists have values; each has one value of each of these columns, and
    the other columns' values. A blank value is missing and keeps its place (an empty text beside
    lists of one value is one); where all columns have one, there is no row. A row whose lists
    differ in length is rejected."""
    separator: str = Field("|", min_length=1)
    """Splits texts into lists."""


Derive = Annotated[dict[str, Derived], Field(default_factory=dict)]
"""Columns made from others, by their names."""


def sources(derive: Mapping[str, Derived], names: set[str]) -> set[str]:
    """The file's columns from which columns of these names come."""
    found: set[str] = set()
    for name in names:
        rule = derive.get(name)
        if rule is None:
            found.add(name)
            continue
        made = rule.reads_derived(name, derive)
        found |= {one for one in rule.sources if one not in made}
        found |= sources(derive, set(made))
    return found


def with_read(derive: Mapping[str, Derived], names: set[str]) -> dict[str, Derived]:
    """The rules of columns of these names, and of the derived columns that those read."""
    read, more = set(names), set(names)
    while more:
        rules = ((name, derive[name]) for name in more if name in derive)
        more = {one for name, rule in rules for one in rule.reads_derived(name, derive)} - read
        read |= more
    return {name: rule for name, rule in derive.items() if name in read}
