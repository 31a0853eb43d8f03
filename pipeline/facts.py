"""What the stages report to one another, beside the tables that they leave in files."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from multigate.configs.files import write_json
from multigate.pipeline.buckets import Piece


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
    """Good rows that the run leaves out: `forgotten` (users to forget) and `outside` (other
    days)."""
    latest: datetime | None
    """The latest time of a good row; None where no row has a time."""
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


_LOG = TypeAdapter(LogFacts)
