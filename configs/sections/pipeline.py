"""The job that makes examples from logs: side tables, negatives, splits and labels' windows."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from multigate.configs.sections.base import Duration, Frozen, Instant, contradiction
from multigate.configs.sections.derive import Derive, sources
from multigate.configs.sections.log import CsvFormat, EventLog, Format, Log, Pattern, Rename


class Encoded(Frozen):
    """A column of vectors that a Python function of yours makes of a column of texts."""

    text: str = Field(min_length=1, examples=["title"])
    """The column of texts, of the files or of `derive`; of a list, its values with `|` between
    them. An empty text has no vector."""
    by: str = Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$", examples=["encoders:titles"])
    """`module:function`. The function gets a list of at most 1024 different texts and returns as
    many vectors, as an array or a list of lists. Python must find the module (`PYTHONPATH`), on
    an engine's workers too."""


class SideTable(Frozen):
    """A table of users or items, joined by id."""

    files: tuple[Pattern, ...] = Field(min_length=1)
    """Paths or globs, as for the log."""
    format: Format = CsvFormat()
    rename: Rename = Field(default_factory=dict)
    """As for the log."""
    derive: Derive
    """As for the log."""
    encode: dict[str, Encoded] = Field(
        {}, examples=[{"cover": {"text": "title", "by": "encoders:titles"}}]
    )
    """Columns of vectors made from texts, for features of kind `vector`, by their names."""
    key: str
    """The column that holds the id."""
    time: str | None = Field(None, examples=["valid_from"])
    """The column that says since when a row holds; an id may then have several rows, and an
    impression sees the latest one that is not later than itself."""
    time_unit: Literal["s", "ms", "us", "iso"] = "s"
    """Of `time`; as for the log."""

    @model_validator(mode="after")
    def _check(self) -> "SideTable":
        for name in sorted(self.encode.keys() & self.derive.keys()):
            raise contradiction(f"encode.{name}: derive makes a column of that name, too")
        for key in ("key", "time"):
            if getattr(self, key) in self.encode:
                raise contradiction(
                    f"encode.{getattr(self, key)}: {key} reads a column of that name, which would "
                    "hold vectors; give the vectors another name"
                )
        return self

    def sources(self, names: set[str]) -> set[str]:
        """The files' columns from which columns of these names come."""
        encode = self.encode
        return sources(self.derive, {encode[n].text if n in encode else n for n in names})


class Negatives(Frozen):
    """Sampled negatives, for logs that do not hold what was shown and not viewed.

    Items are drawn for a positive from those that the log had shown strictly before it. Where
    items come and go, most of those are long out of sight, and to tell them from positives a model
    needs only an item's age; `recent` makes negatives of what was in circulation at the time.
    """

    per_positive: int = Field(1, ge=1, le=100)
    """How many negatives to draw for each positive."""
    sampling: Literal["uniform", "popularity"] = "uniform"
    """`popularity` draws items in proportion to their impressions up to then."""
    recent: Duration | None = None
    """Only items with an impression within this span before the positive; `popularity` counts
    impressions within it. Absent: all items shown so far."""
    exclude: Literal["past", "ever"] = "past"
    """Leave out what the user had touched up to the impression, or would ever touch; `ever`
    uses the future and is allowed with random splits only."""
    exclude_within: Duration | None = None
    """Leave out only what the user had touched so lately; anything longer ago may be drawn again.
    Absent: all of the past, which a run of some days must then read from its beginning."""
    unmatched: Literal["keep", "mask"] = "mask"
    """What becomes of a positive that no negatives can match: its item had not been shown before
    (or not within `recent`), or fewer than `per_positive` other items stand as often in the user's
    lists. `mask` draws none and masks its labels of rule `impression`; other tasks keep it. `keep`
    draws what there is and keeps the label: it teaches that what nobody has seen yet, or what
    stands in the history, is always viewed, and `multigate audit` says so."""


class Downsample(Frozen):
    """Keep only a share of the logged impressions without a positive label, in the training split.

    Nine impressions in ten hold no positive label; a share of them teaches a model nearly as much
    as all do. Validation and test keep all of theirs, so that metrics describe the log. The share
    is recorded (`negatives_kept` in `statistics.json`), because a model that is trained on few
    negatives overestimates probabilities p: p / (p + (1 - p) / share) corrects them.
    """

    keep: float = Field(gt=0, lt=1)
    """Share of the impressions without a positive label that stay, drawn by a seeded hash of the
    impression."""
    tasks: tuple[str, ...] = Field((), examples=[["click"]])
    """The binary tasks whose labels make an impression positive; absent: all of them. Probabilities
    are corrected exactly for a task that is alone here, or masked where the others are 0. With
    several tasks, one task's negatives that are another's positives all stay."""


class TimeSplit(Frozen):
    """By the impression's time: training, then validation, then test."""

    by: Literal["time"]
    validation: float | Instant
    """Share of the impressions, or the instant at which the split begins."""
    test: float | Instant
    """Share of the impressions, or the instant at which the split begins."""
    embargo: bool = True
    """Whether a label is masked that closes only after the next split has begun: it may hold what
    happened there."""

    @model_validator(mode="after")
    def _check(self) -> "TimeSplit":
        a, b = self.validation, self.test
        if isinstance(a, float) and isinstance(b, float):
            _check_shares(a, b)
        elif isinstance(a, datetime) and isinstance(b, datetime):
            if a.tzinfo is None or b.tzinfo is None:
                raise contradiction(
                    f"instants need a zone, such as 2016-12-01T00:00:00Z; received {a} and {b}"
                )
            if a >= b:
                raise contradiction(f"expected validation before test, received {a} and {b}")
        else:
            raise contradiction(
                f"expected two shares or two instants, received validation {a} and test {b}"
            )
        return self


class HashSplit(Frozen):
    """By a hash of the impression or of the user: stable when data are added."""

    by: Literal["random", "user"]
    validation: float
    """Share of the impressions, or of the users."""
    test: float
    """Share of the impressions, or of the users."""

    @model_validator(mode="after")
    def _check(self) -> "HashSplit":
        _check_shares(self.validation, self.test)
        return self


Split = Annotated[TimeSplit | HashSplit, Field(discriminator="by")]


class PipelineConfig(Frozen):
    """The job that makes examples from logs."""

    log: Log
    users: SideTable | None = None
    items: SideTable | None = None
    negatives: Negatives | None = None
    downsample: Downsample | None = None
    split: Split
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of random splits and of all draws."""
    collapse: Duration | None = None
    """An impression at most so long after the previous one of the same user and item repeats it: it
    is no example, stands in no history and counts nowhere. Event logs only."""
    attribution: Duration | None = None
    """Feedback later than this after the impression is late; no limit where absent."""
    clock_skew: Duration | None = None
    """Feedback that belongs to no earlier impression may be so long before its impression, because
    two clocks differ; it then counts as of the impression's time. Event logs only."""
    attribute_by: Literal["latest", "request"] = "latest"
    """To which impression of its user and item feedback belongs: the latest one, or the one of the
    request that it names (feedback that names none goes to the latest)."""
    cut_off: Instant | None = None
    """Up to when (not including) the log is whole. Snapshots are as of this instant, and rows at or
    after it are left out (`after_cut_off` in the manifest). Absent: just after the log's last
    event; a few rows long after all others are rejects then (see `pipeline/read/log_end.py`)."""
    hold_back: bool = True
    """Whether a label is masked that was still open at the cut-off: the feedback that is to come is
    missing, and the label would pass for a 0. An impression with open labels only is held back. A
    later run over a longer log labels them. docs/labels.md says when each label closes; one
    without any limit is taken as it stands."""
    buckets: int | None = Field(None, ge=1, le=4096)
    """How many buckets users are spread over; items are spread over as many, but at most 64.
    Absent: the size of the log's files decides."""
    bucket_mib: int = Field(64, ge=1)
    """How much of the log a bucket may hold, in MiB as tables in memory; larger ones are divided,
    down to one user. Each worker needs about ten times as much memory."""
    max_reject_rate: float = Field(0.01, ge=0, le=1)
    """Share of rejected rows above which nothing is published."""
    max_damaged_files: int = Field(0, ge=0)
    """How many damaged or cut-off files are allowed: nothing is published where there are more.
    What such files hold before the damage is used; `damaged` in the manifest names them and what
    is known to be lost. A text file counts as cut off where its last line is malformed and has no
    line break."""
    forget: Pattern | None = Field(None, examples=["forget.txt"])
    """A file of user ids, one a line. Their events and rows are left out everywhere, also from the
    items' counters and popularity."""
    redact_rejects: bool = False
    """Whether rejects leave out the rows' text; they always do if there are users to forget."""

    @model_validator(mode="after")
    def _check(self) -> "PipelineConfig":
        if self.cut_off is not None and self.cut_off.tzinfo is None:
            raise contradiction(
                f"cut_off: an instant needs a zone, such as 2016-12-01T00:00:00Z; received "
                f"{self.cut_off}"
            )
        split = self.split.by
        if self.negatives is not None and self.negatives.exclude == "ever" and split != "random":
            raise contradiction(
                f"negatives.exclude: 'ever' looks into the user's future and needs split.by: "
                f"random, received {split!r}"
            )
        dated = [n for n in ("users", "items") if getattr(getattr(self, n), "time", None)]
        if self.log.unknown_time is not None and dated:
            raise contradiction(
                f"log.unknown_time: rows without a time have no row in a dated table; received "
                f"{dated[0]}.time"
            )
        log = self.log
        if not isinstance(log, EventLog):
            for key in ("collapse", "clock_skew"):
                if getattr(self, key) is not None:
                    raise contradiction(f"{key}: needs a log of shape events, received {log.shape}")
        if self.attribute_by == "request":
            columns = log.columns if isinstance(log, EventLog) else None
            if columns is None or columns.request is None:
                raise contradiction(
                    "attribute_by: 'request' needs a log of shape events whose columns name request"
                )
            feedback = log.feedback if isinstance(log, EventLog) else None
            if feedback is not None and feedback.columns.request is None:
                raise contradiction("attribute_by: 'request' needs log.feedback.columns.request")
        if self.negatives is not None and self.negatives.exclude_within is not None:
            if self.negatives.exclude == "ever":
                raise contradiction("negatives.exclude_within: 'ever' has no limit; remove one")
            if log.unknown_time is not None:
                raise contradiction("negatives.exclude_within: needs the time of every event")
        if self.log.unknown_time is not None and split == "time":
            raise contradiction(
                "log.unknown_time: rows without a time cannot be split by time; use split.by: "
                "random or user"
            )
        return self


def _check_shares(validation: float, test: float) -> None:
    if validation <= 0 or test <= 0 or validation + test >= 1:
        raise contradiction(
            "expected validation > 0, test > 0 and validation + test < 1, "
            f"received {validation} and {test}"
        )
