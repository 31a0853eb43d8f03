"""Columns that the pipeline makes from the columns of a file: joined, lowered, cut out, of a time.

`derive: {user: {join: [device, region]}}` makes a column `user`, which every key that takes a
column's name may name then. The pipeline alone derives: a request holds the derived value itself,
as it holds the part that a feature's `pattern` takes.
"""

from typing import Annotated

from pydantic import Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction
from multigate.configs.sections.features import Pattern

_RULES = ("join", "lower", "extract", "hour_of", "weekday_of")


class Derived(Frozen):
    """How one column is made from columns of the same row: exactly one of the rules.

    A rule reads the file's own columns, so that `{topic: {lower: topic}}` lowers `topic`.
    """

    join: tuple[str, ...] | None = Field(None, min_length=2, examples=[["device", "region"]])
    """Join the texts of these columns by `separator`. A missing one is an empty text; where all are
    missing, so is the value."""
    separator: str = Field("|", min_length=1)
    """Stands between the texts of `join`; choose one that no text holds."""
    lower: str | None = Field(None, examples=["topic"])
    """The column's text in small letters, without blanks around it."""
    extract: str | None = Field(None, examples=["url"])
    """The part of the column's text that `pattern` finds; missing where it finds none."""
    pattern: Pattern | None = Field(None, examples=["/item/(\\d+)"])
    """Of `extract`: a regular expression with one group, which is the value."""
    hour_of: str | None = Field(None, examples=["time"])
    """The hour, 0 to 23, of a column of times in the log's `time_unit` and `time_zone`."""
    weekday_of: str | None = Field(None, examples=["time"])
    """The day of the week, 1 (Monday) to 7, of a column of times, as for `hour_of`."""

    @model_validator(mode="after")
    def _check(self) -> "Derived":
        given = [name for name in _RULES if getattr(self, name) is not None]
        if len(given) != 1:
            raise contradiction(
                f"derive: expected exactly one of {', '.join(_RULES)}; received "
                f"{' and '.join(given) or 'none'}"
            )
        if (self.extract is None) != (self.pattern is None):
            raise contradiction(
                "derive: extract and pattern go together, such as {extract: url, pattern: "
                "'/item/(\\d+)'}"
            )
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The file's columns that it reads."""
        one = self.lower or self.extract or self.hour_of or self.weekday_of
        return (one,) if one is not None else self.join or ()


Derive = Annotated[dict[str, Derived], Field(default_factory=dict)]
"""Columns made from others, by their names."""


def sources(derive: dict[str, Derived], names: set[str]) -> set[str]:
    """The file's columns from which columns of these names come."""
    return {one for name in names for one in (derive[name].sources if name in derive else (name,))}
