"""What the stages report to one another, beside the rows."""

from dataclasses import dataclass, field
from datetime import datetime

from pydantic import TypeAdapter

from multigate.configs.files import write_json
from multigate.configs.storage import Place


@dataclass(frozen=True)
class Day:
    """The good rows of one day (UTC) of the log."""

    rows: int
    latest: datetime
    """The last one's time."""


@dataclass(frozen=True)
class Damage:
    """A damaged or cut-off file."""

    file: str
    reason: str
    rows: int
    """Rows that were read before it, rejects included."""
    lost: str
    """What is known to be lost, in words."""


@dataclass(frozen=True)
class ShardFacts:
    """What `reading.read_shard` reports of a file, or of one part of a large file."""

    number: int
    """Of the shard, in the order of the files."""
    file: str
    feedback: bool
    """Whether it is one of the feedback's own files."""
    rows: int
    """All rows that were read, rejects included."""
    columns: tuple[str, ...]
    """The names that the file gives; empty where it has no rows."""
    reasons: dict[str, int]
    """Rejects by reason."""
    events: dict[str, int]
    """Good rows by event type; empty in impression logs."""
    unused: dict[str, int]
    """Good rows that the run leaves out: `forgotten` (users to forget), `outside` (other days) and
    `after_cut_off`."""
    days: dict[int, Day]
    """The other good rows with a time, by days since 1970."""
    null_like: dict[str, int]
    """Rows whose user or item may stand for a missing value: `user 'NULL'` and how many."""
    damage: Damage | None
    lines: int
    """Lines of text that were read, blank ones included; 0 of Parquet and ORC."""
    types: dict[str, str] = field(default_factory=dict)
    """Of Parquet and ORC files, the columns' types."""
    reject_groups: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of Parquet and ORC files, by the reason of rejects: the first row group that has such rows,
    and how many rows there are."""
    first_group: int = 0
    """The first row group of this part of the file."""
    bad_time: str | None = None
    """The first value of the time column that is no time."""


@dataclass(frozen=True)
class Verdict:
    """What `reading.judge` decides once the whole log is read."""

    problem: str | None
    """What to tell the user; the later stages then do nothing."""
    cut_off: datetime | None
    """Of labels and snapshots; None where no row has a time."""
    end: datetime | None
    """The end of the log, where rows come after it: they are rejects. Otherwise None."""
    absent: str | None = None
    """The column that the log lacks, if that is the problem."""


@dataclass(frozen=True)
class LogFacts:
    """The verdict, and each shard's facts, on which it is based."""

    verdict: Verdict
    shards: tuple[ShardFacts, ...]


@dataclass(frozen=True)
class RowCounts:
    """What became of a bucket's rows; the manifest explains each count."""

    duplicates: int
    collapsed: int
    outside: int
    feedback: int
    late: int
    orphans: int
    impressions: int
    held_back: int
    dropped: int


@dataclass(frozen=True)
class LabelFacts:
    """What `labelling.label_bucket` reports of a bucket of users."""

    bucket: int
    counts: RowCounts
    open: dict[str, int]
    """By task, labels of the impressions that were still open at the cut-off."""


@dataclass(frozen=True)
class SplitLimits:
    """What the times of all impressions decide."""

    starts: tuple[datetime, datetime] | None
    """When validation and test begin; None where the split is not by time, or nothing is split."""


@dataclass(frozen=True)
class LabelSum:
    """Some labels of a task: how many, and their exact sum as of `measure.Moments`."""

    count: int
    total: int


@dataclass(frozen=True)
class SampleFacts:
    """What `sampling.sample_bucket` reports of a bucket of users."""

    bucket: int
    negatives: int
    """Sampled negatives."""
    negatives_missing: int
    """Negatives that were asked for and not found."""
    unmatched: int
    """Positives whose negatives are not all there."""
    not_kept: int
    """Impressions left out by `downsample`."""
    left_out: int
    """Impressions without any label after the embargo."""
    embargoed: dict[str, dict[str, int]]
    """By split and task, labels that the embargo masked."""
    label_sums: dict[str, LabelSum]
    """By task, the labels of the training split that a prior is the mean of."""


@dataclass(frozen=True)
class FinishFacts:
    """What `finishing.finish_bucket` reports of a bucket of users."""

    bucket: int
    examples: dict[str, int]
    """Rows written, by split."""
    lengths: dict[str, dict[str, int]]
    """See `data_report.lengths`."""


@dataclass(frozen=True)
class RunFacts:
    """What all stages report, for the manifest; in the order of the shards and buckets."""

    log: LogFacts
    labelled: tuple[LabelFacts, ...]
    sampled: tuple[SampleFacts, ...]
    finished: tuple[FinishFacts, ...]

    def write(self, path: Place) -> None:
        """Write as JSON."""
        write_json(path, _RUN.dump_python(self, mode="json"))

    @staticmethod
    def read(path: Place) -> "RunFacts":
        """Read what `write` wrote."""
        return _RUN.validate_json(path.read_bytes())


_RUN = TypeAdapter(RunFacts)
