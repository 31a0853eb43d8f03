"""Stage records: a run that was killed on this machine continues from its finished stages.

Where rows travel through files (`LocalFiles`), a stage's output for one shard or bucket is some
files and a few small values. Once a stage is done with a shard or bucket, its record holds these
values and names these files. The next run of the same identity takes them from the record.
joblib.Memory was considered: it compares the content of its arguments, here the rows.

    .examples.1a2b3c4d.partial/.work/identity                       what the run depends on
    .examples.1a2b3c4d.partial/.work/stages/label_bucket-00007.pickle

The identity covers the configuration, the files that are read (sizes and times), the code, and the
boot of the machine: after a power cut, files may lack what was written last. What stages return
depends on these alone, so that a run that continues makes the same examples.
"""

import pickle
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import multigate
from multigate import configs, features
from multigate.configs import Config
from multigate.configs.contract import fingerprint
from multigate.configs.files import new_part
from multigate.configs.storage import Place
from multigate.pipeline.compute.totals import Found
from multigate.pipeline.plan import Plan
from multigate.pipeline.read import places
from multigate.pipeline.read.sources import Shard, expand

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def recorded(stage: Callable[..., Iterator[Any]], plan: Plan) -> Callable[..., Iterator[Any]]:
    """A stage that yields what its record holds, or runs and leaves a record.

    Args:
        stage: its first argument is a pair of the number of a shard or bucket, and the input.
        plan: says where records are; the stage itself is returned where there are none.
    """
    folder = plan.finished
    if folder is None:
        return stage

    @wraps(stage)
    def run(element: tuple[int, Any], *rest: Any) -> Iterator[Any]:
        path = folder / f"{stage.__name__}-{element[0]:05d}.pickle"
        if path.exists():
            yield from pickle.loads(path.read_bytes())
            return
        outputs = []
        for output in stage(element, *rest):
            outputs.append(output)
            yield output
        with new_part(path) as temporary:
            temporary.write_bytes(pickle.dumps(outputs))

    return run


def identity(
    config: Config,
    data: Place,
    shards: list[Shard],
    forgotten: pl.Series | None,
    before: Found | None,
    *others: Any,
) -> str | None:
    """A fingerprint of all that the stages' outputs depend on; None if the boot is unknown.

    Args:
        config: the configuration.
        data: the folder of the log's files.
        shards: what is read.
        forgotten: users to forget.
        before: the totals that the run goes on from.
        others: what else says what the run makes.
    """
    if not _BOOT.exists():
        return None
    read: list[Any] = [
        [s.name, s.member, s.start, s.stop, s.feedback, s.damage, *places.stamp(s.path)]
        for s in shards
    ]
    for table in (config.pipeline.users, config.pipeline.items):
        if table is not None:
            read += [places.stamp(shard.path) for shard in expand(data, table.files)]
    if before is not None:
        read += [places.stamp(path) for path in before.parts()]
    values = {
        "config": config.model_dump(mode="json"),
        "read": read,
        "forgotten": [] if forgotten is None else forgotten.to_list(),
        "others": [str(other) for other in others],
        "code": [multigate.__version__, pl.__version__, pa.__version__, *_sources()],
        "boot": _BOOT.read_text(),
    }
    return fingerprint(values)


def _sources() -> list[list[str | int]]:
    """Stamps of the modules that stages run."""
    packages = [*configs.__path__, *features.__path__, str(Path(__file__).parents[1])]
    return [
        places.stamp(path) for folder in packages for path in sorted(Path(folder).rglob("*.py"))
    ]
