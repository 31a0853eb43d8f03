"""The bar of a run whose stages run in this process: stages done, and rows read.

Stages of a run on an engine run elsewhere, where nobody has begun a bar: they count nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from multigate.configs import progress
from multigate.pipeline.core.facts import ShardFacts


class StageBar:
    """Counts the shards and buckets with which stages are done.

    Args:
        bar: to draw on.
        stages: name of a stage -> what it does, and for how many shards or buckets; in their order.
    """

    def __init__(self, bar: progress.Bar, stages: Mapping[str, tuple[str, int]]) -> None:
        self._bar, self._stages = bar, stages
        self._names = list(stages)
        self._done: Counter[str] = Counter()
        self._latest, self._rows = 0, 0
        self._lock = threading.Lock()  # stages run in threads

    def count(self, stage: str, rows: int) -> None:
        """A stage is done with a shard or bucket, of which so many rows were read."""
        if stage not in self._stages:
            return
        with self._lock:
            self._done[stage] += 1
            self._rows += rows
            # A bucket without rows never comes: the next stage's first one says that all are done.
            before_it, self._latest = self._latest, max(self._latest, self._names.index(stage))
            name = self._names[self._latest]
            before = sum(self._stages[one][1] for one in self._names[: self._latest])
            what, total = self._stages[name]
            self._bar.show(
                before + min(self._done[name], total),
                f"{self._rows:,} rows read",
                f"{self._latest + 1}/{len(self._names)} {what}",
                at_once=self._latest > before_it,
            )


_under_way: StageBar | None = None


@contextmanager
def drawn(
    shards: int, buckets: int, item_buckets: int, *, negatives: bool, counters: bool
) -> Iterator[None]:
    """Draw the bar of the run that the block makes.

    Args:
        shards: of the log.
        buckets: of users.
        item_buckets: of items.
        negatives: whether some are sampled.
        counters: whether events of items are counted.
    """
    global _under_way  # noqa: PLW0603
    stages = {"read_shard": ("read", shards), "label_bucket": ("label", buckets)}
    stages["sample_bucket"] = ("sample negatives" if negatives else "split", buckets)
    if counters:
        stages["count_items"] = ("count", item_buckets)
    stages["finish_bucket"] = ("assemble", buckets)
    total = sum(count for _, count in stages.values())
    with progress.bar(f"1/{len(stages)} read", total) as bar:
        _under_way = StageBar(bar, stages)
        try:
            yield
        finally:
            _under_way = None


def counted(stage: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """The stage, which tells the bar of this process when it is done with a shard or bucket."""

    @wraps(stage)
    def run(element: Any, *rest: Any) -> Iterator[Any]:
        rows = 0
        for output in stage(element, *rest):
            if output[0] == "facts" and isinstance(output[1], ShardFacts):
                rows = output[1].rows
            yield output
        tell(stage.__name__, rows)

    return run


def tell(stage: str, rows: int) -> None:
    """Tell the bar of this process, if there is one.

    A function of the module: Beam would pickle the bar with one that a closure holds.
    """
    if _under_way is not None:
        _under_way.count(stage, rows)
