"""What the stages report to one another, beside the tables that they leave in files."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from multigate.configs.files import write_json
from multigate.pipeline.buckets import Piece


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
    lines: int | None
    """Lines in a range of bytes; None where the shard is no such range."""
    spilled: tuple[tuple[int, Piece], ...] = ()
    """Pairs (bucket, piece)."""


@dataclass(frozen=True)
class Verdict:
    """What `reading.judge` decides once the whole log is read."""

    problem: str | None
    """What to tell the user; the later stages then do nothing."""
    cut_off: datetime | None
    """Of labels and snapshots; None where no row has a time."""
    end: datetime | None
    """The end of the log, where rows come after it: they are rejects. Otherwise None."""


@dataclass(frozen=True)
class LogFacts:
    """The verdict, and the facts that it rests on, shard by shard."""

    verdict: Verdict
    shards: tuple[ShardFacts, ...]

    def write(self, path: Path) -> None:
        """Write as JSON."""
        write_json(path, _LOG.dump_python(self, mode="json"))

    @staticmethod
    def read(path: Path) -> "LogFacts":
        """Read what `write` wrote."""
        return _LOG.validate_json(path.read_bytes())


@dataclass(frozen=True)
class RowCounts:
    """What became of a bucket's rows; the manifest says what each is."""

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
    shown_bytes: int
    """Of the impressions that negatives are drawn from, as tables; 0 where none are drawn."""

    @staticmethod
    def write(facts: Sequence["LabelFacts"], path: Path) -> None:
        """Write all buckets' facts as JSON."""
        write_json(path, _LABELLED.dump_python(list(facts), mode="json"))

    @staticmethod
    def read(path: Path) -> list["LabelFacts"]:
        """Read what `write` wrote."""
        return _LABELLED.validate_json(path.read_bytes())


@dataclass(frozen=True)
class SplitLimits:
    """What `labelling.merge_catalogue` finds out from all buckets."""

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
    starts: tuple[datetime, datetime] | None
    """As of `SplitLimits`."""
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
class ItemFacts:
    """What `finishing.count_items` reports of a bucket of items."""

    bucket: int
    parts: int
    """In how many parts its answers lie."""
    priors: dict[str, float]
    """By feature, what rates are drawn towards; the same for all buckets."""


@dataclass(frozen=True)
class FinishFacts:
    """What `finishing.finish_bucket` reports of a bucket of users."""

    sampled: SampleFacts
    examples: dict[str, int]
    """Rows written, by split."""
    lengths: dict[str, dict[str, int]]
    """See `data_report.lengths`."""
    priors: dict[str, float]
    """As of `ItemFacts`."""

    @staticmethod
    def write(facts: Sequence["FinishFacts"], path: Path) -> None:
        """Write all buckets' facts as JSON."""
        write_json(path, _FINISHED.dump_python(list(facts), mode="json"))

    @staticmethod
    def read(path: Path) -> list["FinishFacts"]:
        """Read what `write` wrote."""
        return _FINISHED.validate_json(path.read_bytes())


_LOG = TypeAdapter(LogFacts)
_LABELLED = TypeAdapter(list[LabelFacts])
_FINISHED = TypeAdapter(list[FinishFacts])
