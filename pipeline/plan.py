"""What every stage knows, and how many buckets there are."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from multigate.configs import Config
from multigate.configs.files import ExamplesFolder
from multigate.configs.storage import Place
from multigate.pipeline.read.sources import Shard
from multigate.pipeline.shuffle.parcel import Carrier
from multigate.pipeline.window import Window

FACTS = ".facts.json"
_MIB = 1 << 20
_COMPRESSED = 5  # usual size of a table in memory, as a multiple of its compressed file
_FEWEST = 2  # each bucket costs some 0.1 s, however few rows it holds
_SHARED = 8  # buckets, enough for several workers, of a log worth dividing among them
_WORTH_SHARING = 16 * _MIB  # bytes that a bucket of such a log holds
_MOST = 4096
_LARGE_LOG = 512 * _MIB  # whose rows are compressed between stages
_MOST_OF_ITEMS = 64  # each bucket of users writes to each of items: their product would grow


@dataclass(frozen=True)
class Plan:
    """What every stage knows: the configuration, the folder being made and the final one's name.

    Workers write the parts of `folder`; rows between stages are the carrier's. Users are spread
    over `buckets`, and items over as many, up to `_MOST_OF_ITEMS`.
    """

    config: Config
    folder: Place
    out: Place
    buckets: int
    carrier: Carrier
    window: Window | None = None
    """What a run of some days reads and makes; None where the whole log is."""
    finished: Path | None = None
    """Folder of the stage records, see `stages.records`; None where none are kept."""
    priors_before: Mapping[str, float] = field(default_factory=dict)
    """By feature, the prior of a rate in the run before, see `compute.rates.priors`."""

    @property
    def examples(self) -> ExamplesFolder[Place]:
        """The folder being made."""
        return ExamplesFolder(self.folder)

    @property
    def facts(self) -> Place:
        """What the last stage leaves for the manifest."""
        return self.folder / FACTS

    @property
    def item_buckets(self) -> int:
        """Over how many buckets items are spread; those that grow too large are divided."""
        return min(self.buckets, _MOST_OF_ITEMS)

    @property
    def bucket_bytes(self) -> int:
        """Bytes that a bucket may hold."""
        return self.config.pipeline.bucket_mib * _MIB


def _size_in_memory(shards: list[Shard]) -> int:
    """The log's bytes, guessed from those of its files."""
    return sum(shard.size * (_COMPRESSED if shard.compressed else 1) for shard in shards)


def compress_rows(shards: list[Shard]) -> bool:
    """Whether rows on their way between stages are compressed: those of a large log.

    Plain, they take some two and a half times the bytes of a log of CSV, more of one of Parquet,
    and up to a tenth less CPU time.
    """
    return _size_in_memory(shards) > _LARGE_LOG


def count_buckets(config: Config, shards: list[Shard]) -> int:
    """The number of buckets that users are spread over.

    As configured, or so many that a bucket holds some half of `bucket_mib`, and up to eight as soon
    as each holds 16 MiB: a power of two, so that a log that grows a little keeps its buckets. The
    log's size is a guess; buckets that grow too large all the same are divided.
    """
    if config.pipeline.buckets is not None:
        return config.pipeline.buckets
    size = _size_in_memory(shards)
    wanted = max(
        2 * size / (config.pipeline.bucket_mib * _MIB), min(size / _WORTH_SHARING, _SHARED)
    )
    buckets = _FEWEST
    while buckets < min(wanted, _MOST):
        buckets *= 2
    return buckets
