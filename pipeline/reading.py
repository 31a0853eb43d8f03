"""The first stages: read the log's files, spill their events into buckets, judge the log."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa

from multigate.configs.sections.log import Format, JsonLinesFormat, ParquetFormat
from multigate.pipeline import erasure, inputs, manifest
from multigate.pipeline.buckets import Held, Piece
from multigate.pipeline.facts import LogFacts, ShardFacts, Verdict
from multigate.pipeline.inputs import wanted_columns
from multigate.pipeline.normalise import REJECTS, normalise
from multigate.pipeline.plan import Plan
from multigate.pipeline.ranges import count_lines
from multigate.pipeline.sources import Shard, read
from multigate.pipeline.window import Window
from multigate.pipeline.write import part, write_parquet

_REJECTS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)


def read_shard(shard: tuple[int, Shard], plan: Plan) -> ShardFacts:
    """Read one file, write its rejects and spill its events into buckets."""
    number, source = shard
    config = plan.config
    wanted, form = wanted_columns(config, source.feedback), inputs.form(config, source.feedback)
    forgotten, window = plan.forgotten(), plan.window
    redacted = config.pipeline.redact_rejects or forgotten is not None
    reasons: Counter[str] = Counter()
    events: Counter[str] = Counter()
    columns: list[str] = []
    spilled: list[tuple[int, Piece]] = []
    rejected = []
    unused: Counter[str] = Counter()
    rows, latest, held = 0, None, Held(plan.buckets, plan.work, f"{number:05d}")
    single = inputs.single_columns(config, source.feedback)
    for chunk in read(source, form, wanted, single):
        columns = list(dict.fromkeys([*columns, *chunk.columns]))
        if not isinstance(form, JsonLinesFormat) and not set(wanted) <= set(columns) and columns:
            break  # `manifest.problem` names the column
        good, rejects = normalise(chunk, config, source.name, source.feedback)
        rows += len(good) + len(rejects)
        reasons.update(rejects["reason"].to_list())
        rejected.append(rejects.with_columns(text=pl.lit("")) if redacted else rejects)
        if "event" in good.columns:  # of forgotten users too: that a type exists names nobody
            events.update(dict(good["event"].value_counts().iter_rows()))
        others = erasure.without(good, "user", forgotten)
        unused["forgotten"] += len(good) - len(others)
        good = others if window is None else others.filter(_inside(window))
        unused["outside"] += len(others) - len(good)
        times = [t for t in (latest, good["time"].max()) if t is not None]
        latest = max(times, default=None)
        spilled += held.add(good)
    spilled += held.flush()
    if sum(reasons.values()):
        write_parquet(pl.concat(rejected), part(plan.examples.rejects, number), _REJECTS)
    return ShardFacts(
        number=number,
        file=source.name,
        feedback=source.feedback,
        rows=rows,
        columns=tuple(columns),
        reasons=dict(reasons),
        events=dict(events),
        unused=dict(unused),
        latest=latest,
        lines=_lines(source, form),
        spilled=tuple(spilled),
    )


def _inside(window: Window) -> pl.Expr:
    inside = pl.col("time") < window.end
    return inside if window.begin is None else inside & (pl.col("time") >= window.begin)


def _lines(source: Shard, form: Format) -> int | None:
    ranged = source.stop is not None and not isinstance(form, ParquetFormat)
    return count_lines(source) if ranged else None


def judge(_: Any, shards: Iterable[ShardFacts], plan: Plan) -> Verdict:
    """Once the whole log is read: decide whether it can be used."""
    ordered = sorted(shards, key=lambda shard: shard.number)
    _number_lines(ordered, plan)
    facts = tuple(replace(shard, spilled=()) for shard in ordered)
    verdict = Verdict(
        problem=manifest.problem(plan.config, facts, plan.out, some_days=plan.window is not None),
        cut_off=_cut_off(plan, [shard.latest for shard in facts]),
    )
    LogFacts(verdict, facts).write(plan.log_facts)
    return verdict


def _number_lines(shards: list[ShardFacts], plan: Plan) -> None:
    """Give the rejects of a range of bytes their lines in the file: so far they counted from 1."""
    for _, parts in groupby(shards, key=lambda shard: shard.file):
        before = 0
        for shard in parts:
            path = part(plan.examples.rejects, shard.number)
            if before and shard.reasons:
                rejects = pl.read_parquet(path)
                write_parquet(rejects.with_columns(pl.col("line") + before), path, _REJECTS)
            before += shard.lines or 0


def _cut_off(plan: Plan, latest: list[datetime | None]) -> datetime | None:
    config = plan.config
    if plan.window is not None:
        return plan.window.end
    if config.pipeline.cut_off is not None:
        return config.pipeline.cut_off.astimezone(UTC)
    times = [time for time in latest if time is not None]
    return max(times) + timedelta(microseconds=1) if times else None


def write_no_rejects(plan: Plan) -> None:
    """Write an empty part where nothing was rejected, so that readers need no special case."""
    if not plan.examples.rejects.exists():
        write_parquet(pl.DataFrame(schema=REJECTS), part(plan.examples.rejects, 0), _REJECTS)
