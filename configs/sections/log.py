"""How a raw log is read: its files, their format and their columns."""

from datetime import timedelta
from pathlib import PurePosixPath
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, field_validator, model_validator

from multigate.configs.sections.base import Duration, Frozen, contradiction
from multigate.configs.sections.derive import Derive, Explode


class _Format(Frozen):
    null_values: tuple[str, ...] = Field((), examples=[["NULL"]])
    """Texts that mean a missing value, such as `NULL` and `\\N`. The empty text always does. The
    manifest's `advice` names such texts where they look like a user or an item."""


class CsvFormat(_Format):
    """Delimited text, possibly compressed (gzip, bzip2, xz, zstd) or inside a zip."""

    type: Literal["csv"] = "csv"
    delimiter: str = Field(",", min_length=1)
    """One character, or several such as `::`."""
    header: tuple[str, ...] | None = None
    """Column names. Absent: the first line of each file gives them; a column without a name there
    has that of its place, such as `column_1`."""
    quoted: bool = True
    """Whether double quotes protect delimiters and line breaks."""
    escape: str | None = Field(None, pattern=r"^[!-~]$", examples=["\\"])
    """A character that takes the meaning from the one behind it, as in exports of MySQL and
    ClickHouse: with `\\`, `a\\,b` is one field, `a,b`, and `"5\\" disk"` is `5" disk`."""
    encoding: Literal["utf-8", "latin-1"] = "utf-8"
    """Encoding of the text."""

    @model_validator(mode="after")
    def _check(self) -> "CsvFormat":
        if self.quoted and len(self.delimiter) > 1:
            raise contradiction(
                "quotes are read with delimiters of one character only; set quoted: false; "
                f"received delimiter {self.delimiter!r}"
            )
        if self.escape is not None and (
            len(self.delimiter) > 1 or self.escape in ('"', self.delimiter)
        ):
            raise contradiction(
                "escape: expected a character other than the quote and the delimiter, and a "
                f"delimiter of one character; received escape {self.escape!r} and delimiter "
                f"{self.delimiter!r}"
            )
        return self


class JsonLinesFormat(_Format):
    """One JSON object a line, possibly compressed.

    `user.id` is the key `id` of the object `user`; of a list of objects, the list of their values.
    """

    type: Literal["jsonl"]


class ParquetFormat(_Format):
    """Parquet files."""

    type: Literal["parquet"]


class OrcFormat(_Format):
    """ORC files."""

    type: Literal["orc"]


class MixedFormat(_Format):
    """Files of several formats, told apart by their names.

    They end in `.csv`, `.tsv` or `.txt`; `.jsonl`, `.ndjson` or `.json`; `.parquet`; `.orc`. Text
    files may be compressed (`.gz`, `.bz2`, `.xz`, `.zst`). Names that begin with `_` or `.`, such
    as `_SUCCESS`, are skipped.
    """

    type: Literal["mixed"]
    csv: CsvFormat = CsvFormat()
    """How the delimited files are read; the delimiter of `.tsv` is a tab."""


Format = Annotated[
    CsvFormat | JsonLinesFormat | ParquetFormat | OrcFormat | MixedFormat,
    Field(discriminator="type"),
]


def _check_rename(rename: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    newest: dict[str, str] = {}
    for name, earlier in rename.items():
        for old in earlier:
            if old in rename or old in newest:
                other = newest.get(old, old)
                raise ValueError(f"expected each name once: {old!r} stands for {name} and {other}")
            newest[old] = name
    return rename


Rename = Annotated[
    dict[str, Annotated[tuple[str, ...], Field(min_length=1)]], AfterValidator(_check_rename)
]
"""The earlier names of columns, the oldest last: `{device: [device_type, dev]}` takes `device_type`
where a row has no `device`, and `dev` where it has neither."""


class EventColumns(Frozen):
    """Which columns of an event log hold what."""

    time: str
    """The time of the event, in `time_unit`."""
    user: str
    """The id of the user."""
    item: str
    """The id of the item."""
    event: str | None = None
    """The type of the event. Absent where `feedback` has its own files: then every row of `files`
    is an impression."""
    value: str | None = Field(None, examples=["price"])
    """A number of the event, for labels that sum or take a maximum."""
    session: str | None = None
    """The session of the event, for dwell labels."""
    request: str | None = None
    """Impressions shown together have the same request. Ranking metrics group by it, and
    `attribute_by: request` finds the impression of feedback by it."""
    weight: str | None = Field(None, examples=["importance"])
    """A number of the impression, at least 0: its row's weight in training, in which a missing one
    is 1. No feature: requests have none."""
    event_id: str | None = Field(None, examples=["event_id"])
    """Events of a user with the same id are duplicates. Absent, or missing in a row: rows are
    duplicates that agree in all columns which the configuration reads. Impressions and feedback in
    its own files may use the same ids."""


class ImpressionColumns(Frozen):
    """Which columns of an impression log hold what."""

    time: str
    """The time of the impression, in `time_unit`."""
    user: str | None = None
    """The id of the user. Absent, where contract.user is absent too: each request is a user of its
    own; a row without request, each row."""
    item: str
    """The id of the item."""
    request: str | None = None
    """Impressions shown together have the same request. Ranking metrics group by it."""
    weight: str | None = Field(None, examples=["importance"])
    """A number, at least 0: the row's weight in training, in which a missing one is 1. No feature:
    requests have none."""
    event_id: str | None = Field(None, examples=["event_id"])
    """Impressions of a user with the same id are duplicates."""


def _check_pattern(pattern: str) -> str:
    path = PurePosixPath(pattern.partition("#")[0])
    torn = [part for part in path.parts if "**" in part and part != "**"]
    if path.is_absolute() or not path.parts or torn:
        raise ValueError(
            "expected a path or glob relative to the data folder, with ** as a whole folder only"
        )
    return pattern


Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A path or glob, relative to the data folder."""


class _Log(Frozen):
    files: tuple[Pattern, ...] = Field(min_length=1)
    """Paths or globs, relative to the data folder. `archive.zip` reads all its members,
    `archive.zip#member` one."""
    format: Format = CsvFormat()
    rename: Rename = Field(default_factory=dict)
    """The earlier names of columns that were renamed, the oldest last."""
    derive: Derive
    """Columns made from others, such as `{user: {join: [device, region]}}`; other keys name them as
    they name a file's columns. Requests hold the derived values."""
    time_unit: Literal["s", "ms", "us", "iso"] = "s"
    """Unit since 1970 in UTC, or `iso` for ISO 8601 text."""
    time_zone: str = "UTC"
    """The zone of times that name none, of the partitions' days and of the days in `--from` and
    `--to`. A name of the IANA database, such as Europe/Berlin."""
    partition: str = Field("date", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Files in a folder `date=2026-11-20` hold events of that day. A run of some days reads only
    the folders that it needs, and files outside such folders whole."""
    unknown_time: int | None = None
    """The value of the time column that means: the time is not known."""

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError("expected a time zone such as UTC or Europe/Berlin") from None
        return zone


class Feedback(Frozen):
    """Feedback that has its own files, beside files of impressions such as the server's log."""

    files: tuple[Pattern, ...] = Field(min_length=1, examples=[["feedback/*.csv"]])
    """Paths or globs, as for the log."""
    format: Format = CsvFormat()
    rename: Rename = Field(default_factory=dict)
    """As for the log."""
    derive: Derive
    """As for the log."""
    time_unit: Literal["s", "ms", "us", "iso"] = "s"
    """As for the log."""
    columns: EventColumns


class EventLog(_Log):
    """One row per event: time, user, item, event type, value."""

    shape: Literal["events"]
    columns: EventColumns
    impression: str
    """The event type that is an impression; all others are feedback."""
    feedback: Feedback | None = None
    """The files of feedback, where it has its own."""

    @model_validator(mode="after")
    def _check_event(self) -> "EventLog":
        if self.feedback is None and self.columns.event is None:
            raise contradiction("columns.event: required where feedback has no files of its own")
        if self.feedback is not None and self.feedback.columns.event is None:
            raise contradiction("feedback.columns.event: required: it tells feedback apart")
        return self

    def side(self, feedback: bool) -> "EventLog | Feedback":
        """How the log's own files are read, or those of its feedback where it has some."""
        return self.feedback if feedback and self.feedback is not None else self


class ImpressionLog(_Log):
    """One row per exposure, with its feedback in columns."""

    shape: Literal["impressions"]
    columns: ImpressionColumns
    explode: Explode | None = None
    """Where a row is a whole request: the columns of lists that become one row for each item."""
    known_after: Duration | None = None
    """How long after the impression the feedback in its row is known. Histories and counters over
    feedback columns see it only then, and labels from columns close then."""
    known_at: dict[str, str] = Field(default_factory=dict)
    """For some feedback columns, the column that holds the time when the feedback is known, such as
    `{click: click_time}`, in the unit of the log's times. Empty: the feedback is never known."""

    @model_validator(mode="after")
    def _check_places(self) -> "ImpressionLog":
        known = () if self.explode is None else self.explode.columns
        for name, rule in self.derive.items():
            if rule.place_in is not None and rule.place_in not in known:
                raise contradiction(
                    f"derive.{name}.place_in: expected a column of explode.columns "
                    f"({', '.join(known) or 'none'}), received {rule.place_in!r}"
                )
        return self

    def side(self, feedback: bool) -> "ImpressionLog":
        """As of an event log; the feedback stands in the impressions' rows."""
        return self

    def feedback_known(self, column: str) -> str | timedelta | None:
        """When a feedback column is known: its time column, or how long after the impression."""
        return self.known_at.get(column, self.known_after)


Log = Annotated[EventLog | ImpressionLog, Field(discriminator="shape")]
