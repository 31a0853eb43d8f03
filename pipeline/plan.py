"""What every stage knows, and the paths of the files between stages."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from multigate.configs import Config
from multigate.configs.files import ExamplesFolder
from multigate.pipeline.sources import Shard
from multigate.pipeline.window import Window

_COMPRESSED = 5  # usual size of a table in memory, as a multiple of its compressed file
_FEWEST = 8  # enough for several workers
_MOST = 4096


@dataclass(frozen=True)
class Plan:
    """What every stage knows: the configuration, the folder being made and the final one's name.

    `work` holds spilled files; it must be reachable from all workers. Users are spread over
    `buckets`, and items over as many.
    """

    config: Config
    folder: Path
    work: Path
    out: Path
    buckets: int
    window: Window | None = None
    """What a run of some days reads and makes; None where the whole log is."""
    records: bool = False
    """Whether tf.Example records are written beside the Parquet parts."""

    @property
    def examples(self) -> ExamplesFolder:
        """The folder being made."""
        return ExamplesFolder(self.folder)

    def rejects(self, number: int) -> Path:
        """The rejects of one shard, with lines counted from its beginning."""
        return self.file("rejects", number)

    def late(self, number: int) -> Path:
        """The latest rows of one shard, which may lie after the end of the log."""
        return self.file("late", number)

    @property
    def log_facts(self) -> Path:
        """What `reading.judge` leaves for the manifest."""
        return self.work / "read.json"

    @property
    def labelled_facts(self) -> Path:
        """What `labelling.merge_catalogue` leaves for the manifest."""
        return self.work / "labelled.json"

    @property
    def finished_facts(self) -> Path:
        """What `finishing.finish` leaves for the manifest."""
        return self.work / "finished.json"

    def table(self, source: str) -> Path:
        """A side table, once read."""
        return self.work / f"{source}.arrow"

    def file(self, kind: str, number: int) -> Path:
        """A stage's file of one bucket."""
        return self.work / f"{kind}-{number:05d}.arrow"

    def forgotten(self) -> pl.Series | None:
        """The users to forget, if there are any."""
        path = self.file("forgotten", 0)
        return pl.read_ipc(path)["user"] if path.exists() else None

    def side_tables(self) -> dict[str, pl.DataFrame]:
        """The side tables that there are."""
        paths = {source: self.table(source) for source in ("users", "items")}
        return {s: pl.read_ipc(p) for s, p in paths.items() if p.exists()}


def count_buckets(config: Config, shards: list[Shard]) -> int:
    """The number of buckets that users are spread over.

    As configured, or so many that a bucket holds some half of `bucket_mib`: a power of two, so that
    a log that grows a little keeps its buckets. The log's size is guessed from that of its files;
    buckets that grow too large all the same are divided.
    """
    if config.pipeline.buckets is not None:
        return config.pipeline.buckets
    size = sum(shard.size * (_COMPRESSED if shard.compressed else 1) for shard in shards)
    wanted = 2 * size / (config.pipeline.bucket_mib << 20)
    buckets = _FEWEST
    while buckets < min(wanted, _MOST):
        buckets *= 2
    return buckets
