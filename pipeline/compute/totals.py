"""Totals: what counters without a window have counted up to some instant, for the next run.

A run of the next days reads the totals of the run before, and of the log only what came after, with
a look-back for labels and windows. So a night costs what its own days cost, however long the log
has become. Totals hold one row per user (item) and set of events: how many, the first and the last
time, the largest value. All of them can be continued exactly.

    previous run:  ...... events ......| as_of        cut-off
    this run:        totals of these   |... events ...|......|...... examples ......| end
                                        read from here (less the look-back)

`as_of` is the first instant that an example of the next run may have: the cut-off less the longest
wait of a label. Events are counted in the totals if they were known before it.
"""

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.contract import Mean, fingerprint
from multigate.configs.files import ExamplesFolder, new_part, write_json
from multigate.configs.storage import Place
from multigate.pipeline.core.columns import counters, id_type
from multigate.pipeline.core.stored import read_parquet
from multigate.pipeline.label.labels import waits
from multigate.pipeline.plan import Plan
from multigate.pipeline.shuffle.parcel import Bundle

_log = logging.getLogger(__name__)

SIDES = {"users": "user", "items": "item"}
_META = "totals.json"
_TIME = pl.Datetime("us", "UTC")


@dataclass(frozen=True)
class Totals:
    """What counters counted of some users or items up to `as_of`.

    `rows`: the key, `set` (see `computed.sets`), `count`, `first`, `last`, `largest`.
    """

    as_of: datetime
    rows: pl.DataFrame
    key: str

    def after(self, events: pl.DataFrame) -> pl.DataFrame:
        """The events that the totals do not hold."""
        return events.filter(pl.col("time") >= self.as_of)

    def look_up(self, ids: pl.Series, set_: int) -> pl.DataFrame:
        """The totals of a set of events for each id (B,), in its order; 0 and null where none."""
        own = self.rows.filter(pl.col("set") == set_).drop("set")
        found = (
            ids.alias(self.key).to_frame().join(own, on=self.key, how="left", maintain_order="left")
        )
        return found.with_columns(pl.col("count").fill_null(0))


@dataclass(frozen=True)
class Found:
    """The totals that a run left in its folder of examples."""

    folder: Place
    as_of: datetime

    def parts(self, *sources: str) -> list[Place]:
        """The files of `users` or `items`, or of both."""
        folders = [self.folder / source for source in sources or SIDES]
        paths: list[Place] = [path for folder in folders for path in folder.glob("*.parquet")]
        return sorted(paths, key=str)

    def rows(self, source: str) -> pl.DataFrame:
        """Those of all `users` or `items`."""
        paths = self.parts(source)
        if not paths:
            raise DataError(
                f"{self.folder / source}: no totals here; do all workers see the folder of "
                "--previous?"
            )
        return pl.concat([read_parquet(path) for path in paths])


def since_of(plan: Plan) -> datetime | None:
    """The instant of the totals that a run continues from; None if it has none."""
    return None if plan.window is None else plan.window.totals


def until_of(plan: Plan, cut_off: datetime | None) -> datetime | None:
    """The instant of the totals that a run writes; None if it writes none.

    A run that did not go on from totals leaves them only if it read the log from its beginning.
    """
    window, unknown = plan.window, plan.config.pipeline.log.unknown_time is not None
    part = window is not None and window.begin is not None and window.totals is None
    if cut_off is None or part or unknown or not needed(plan.config):
        return None
    return as_of(plan.config, cut_off)


def before(plan: Plan, tables: Bundle, source: str, ids: pl.Series) -> Totals | None:
    """The totals that the counters of some `users` or `items` continue from; None without them."""
    since, key = since_of(plan), SIDES[source]
    if since is None:
        return None
    rows = tables[f"totals/{source}"].read()
    return Totals(since, rows.filter(pl.col(key).is_in(ids.unique().implode())), key)


def write_part(
    plan: Plan, source: str, number: int, counted: pl.DataFrame, known: Totals | None
) -> None:
    """Write the totals of a bucket's users or items; those of all others stay as they were."""
    parts = [counted] if known is None else [counted, known.rows]
    path = plan.examples.totals / source / f"part-{number:05d}.parquet"
    _write(add_up(parts, plan.config, SIDES[source]), path)


def _write(rows: pl.DataFrame, path: Place) -> None:
    with new_part(path) as temporary:
        rows.write_parquet(temporary, compression="zstd")


def finish(
    plan: Plan, made: Path, cut_off: datetime | None, found: Found | None, identity_: str
) -> None:
    """Copy the totals of users and items that this run did not see, and write `totals.json`.

    Args:
        plan: the run.
        made: the local folder that is published; see `examples_store.Unfinished`.
        cut_off: of the run.
        found: what it went on from.
        identity_: see `identity`.
    """
    until = until_of(plan, cut_off)
    if until is None:
        return
    folder = ExamplesFolder(made).totals
    for source, key in SIDES.items():
        (folder / source).mkdir(parents=True, exist_ok=True)
        if found is not None and since_of(plan) is not None:
            paths = (plan.examples.totals / source).glob("*.parquet")
            seen = [read_parquet(path)[key] for path in paths]
            others = found.rows(source)
            for ids in seen:
                others = others.filter(~pl.col(key).is_in(ids.implode()))
            _write(others, folder / source / "others.parquet")
    write_json(folder / _META, {"as_of": until.isoformat(), "identity": identity_})


def schema(config: Config, key: str) -> dict[str, Any]:
    """The columns of totals."""
    contract = config.contract
    name = contract.user if key == "user" else contract.item
    id_ = pl.String() if id_type(config, name) == "string" else pl.Int64()
    times = {"first": _TIME, "last": _TIME}
    return {key: id_, "set": pl.Int16(), "count": pl.Int64(), **times, "largest": pl.Float64()}


def needed(config: Config) -> bool:
    """Whether the configuration has counters that totals continue."""
    features = [*counters(config, "user").values(), *counters(config, "item").values()]
    rules = [f.event_counter for f in features if f.event_counter is not None]
    return any(rule.within is None and not isinstance(rule, Mean) for rule in rules)


def as_of(config: Config, cut_off: datetime) -> datetime:
    """The first instant that an example of the next run may have."""
    longest = max(waits(config).values()) if config.pipeline.hold_back else timedelta(0)
    # Feedback of the last seconds may still move to an impression that comes later.
    return cut_off - max(longest, config.pipeline.clock_skew or timedelta(0))


def add_up(parts: list[pl.DataFrame], config: Config, key: str) -> pl.DataFrame:
    """Merge totals; sorted."""
    rows = pl.concat([pl.DataFrame(schema=schema(config, key)), *parts])
    return (
        rows.group_by(key, "set")
        .agg(
            pl.col("count").sum(),
            pl.col("first").min(),
            pl.col("last").max(),
            pl.col("largest").max(),
        )
        .sort(key, "set")
    )


def count(
    sets: list[pl.DataFrame], config: Config, key: str, since: datetime | None, until: datetime
) -> pl.DataFrame:
    """Count events that were known in [since, until).

    Args:
        sets: the events of each set: the key, `time` and, where values count, `value`.
        config: names the counters.
        key: `user` or `item`.
        since: as of when the totals before are; None for the log's beginning.
        until: as of when the new totals are.
    """
    inside = pl.col(key).is_not_null() & (pl.col("time") < until)
    if since is not None:
        inside &= pl.col("time") >= since
    parts = []
    for at, events in enumerate(sets):
        value = pl.col("value") if "value" in events.columns else pl.lit(None)
        parts.append(
            events.filter(inside).select(
                pl.col(key),
                set=pl.lit(at, pl.Int16),
                count=pl.lit(1, pl.Int64),
                first=pl.col("time").cast(_TIME),
                last=pl.col("time").cast(_TIME),
                largest=value.cast(pl.Float64),
            )
        )
    return add_up(parts, config, key)


def find(
    config: Config, previous: Place, since: datetime, forgotten: pl.Series | None
) -> Found | None:
    """The totals of the previous run, if a run that begins at `since` can continue from them.

    Raises:
        DataError: the file that describes them is damaged.
    """
    folder = ExamplesFolder(previous).totals
    if not needed(config) or not (folder / _META).is_file():
        return None
    try:
        meta = json.loads((folder / _META).read_text(encoding="utf-8"))
        seen = folder.absolute() if isinstance(folder, Path) else folder
        found = Found(seen, datetime.fromisoformat(meta["as_of"]))
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{folder / _META}: damaged: {error}; make these examples again, or give others "
            "as --previous"
        ) from None
    if meta["identity"] != identity(config, forgotten):
        why = "they are of another configuration of log, counters or users to forget"
    elif found.as_of > as_of(config, since):
        why = f"they hold events up to {found.as_of.isoformat()}, later than this run's first row"
    else:
        return found
    _log.warning("%s: not used: %s; the log is read from its beginning", folder, why)
    return None


def identity(config: Config, forgotten: pl.Series | None) -> str:
    """What totals depend on, besides the log's rows."""
    pipeline, contract = config.pipeline, config.contract
    log = pipeline.log.model_dump(mode="json", exclude={"files", "format", "rename", "partition"})
    rules = {
        of: [f.event_counter.model_dump(mode="json") for f in found.values() if f.event_counter]
        for of, found in ((of, counters(config, of)) for of in ("user", "item"))
    }
    values = {
        "log": log,
        "rules": rules,
        "ids": [id_type(config, contract.user), id_type(config, contract.item)],
        "rows": [str(v) for v in (pipeline.collapse, pipeline.clock_skew, pipeline.attribution)],
        "attribute_by": pipeline.attribute_by,
        "forgotten": [] if forgotten is None else sorted(map(str, forgotten)),
    }
    return fingerprint(values)
