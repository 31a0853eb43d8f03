"""The first stages: read the log's files, spill their events into buckets, judge the log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import polars as pl
import pyarrow as pa

from multigate.configs.sections.log import Format, JsonLinesFormat, ParquetFormat
from multigate.pipeline import erasure, inputs, log_end, manifest
from multigate.pipeline.buckets import Piece, SpillBuffer
from multigate.pipeline.facts import Damage, Day, LogFacts, ShardFacts, Verdict
from multigate.pipeline.inputs import wanted_columns
from multigate.pipeline.normalise import REJECTS, normalise
from multigate.pipeline.plan import Plan
from multigate.pipeline.ranges import count_lines
from multigate.pipeline.sources import Chunk, Shard, read
from multigate.pipeline.window import Window
from multigate.pipeline.write import part_path, write_parquet

_REJECTS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
_AT = "__at"
_LATE = {"time": pl.Datetime("us", "UTC"), **REJECTS}
_NULL_LIKE = pl.Series(
    ["NULL", "null", "\\N", "None", "none", "NaN", "nan", "NA", "N/A", "n/a", "nil", "undefined"]
)


def read_shard(shard: tuple[int, Shard], plan: Plan) -> ShardFacts:
    """Read one file, set its rejects aside and spill its events into buckets."""
    number, source = shard
    config = plan.config
    wanted, form = wanted_columns(config, source.feedback), inputs.form(config, source.feedback)
    forgotten = plan.forgotten()
    redacted = config.pipeline.redact_rejects or forgotten is not None
    open_ended = plan.window is None and config.pipeline.cut_off is None
    reasons: Counter[str] = Counter()
    events: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    null_like: Counter[str] = Counter()
    columns: list[str] = []
    spilled: list[tuple[int, Piece]] = []
    rejected, late = [pl.DataFrame(schema=REJECTS)], [pl.DataFrame(schema=_LATE)]
    days: dict[int, Day] = {}
    rows, held, damage = 0, SpillBuffer(plan.buckets, plan.work, f"{number:05d}"), None
    single = inputs.single_columns(config, source.feedback)
    for chunk in read(source, form, wanted, single):
        columns = list(dict.fromkeys([*columns, *chunk.columns]))
        if not isinstance(form, JsonLinesFormat) and not set(wanted) <= set(columns) and columns:
            break  # `manifest.problem` names the column
        good, rejects = normalise(chunk, config, source.name, source.feedback)
        if chunk.damage is not None:
            before = rows + len(good) + len(rejects) - 1  # one of the rejects says it
            damage = Damage(source.name, str(chunk.damage), before, chunk.damage.lost)
        rows += len(good) + len(rejects)
        reasons.update(rejects["reason"].to_list())
        rejected.append(rejects)
        if "event" in good.columns:  # of forgotten users too: that a type exists names nobody
            events.update(dict(good["event"].value_counts().iter_rows()))
        null_like.update(_null_like(good))
        good = good.with_row_index(_AT)
        for name, left in _leave_out(good, plan, forgotten):
            unused[name] += len(good) - len(left)
            good = left
        days = log_end.add([days, log_end.days(good["time"])])
        if open_ended:
            late.append(_latest(good, chunk, rejects, source.name))
            late = [pl.concat(late).top_k(log_end.MOST, by="time")]
        spilled += held.add(good.drop(_AT))
    spilled += held.flush()
    for path, found in ((plan.rejects(number), rejected), (plan.late(number), late)):
        table = pl.concat(found)
        if len(table):
            table = table.with_columns(text=pl.lit("")) if redacted else table
            table.write_ipc(path, compression="lz4")
    return ShardFacts(
        number=number,
        file=source.name,
        feedback=source.feedback,
        rows=rows,
        columns=tuple(columns),
        reasons=dict(reasons),
        events=dict(events),
        unused=dict(unused),
        days=days,
        null_like=dict(null_like),
        damage=damage,
        lines=_lines(source, form),
        spilled=tuple(spilled),
    )


def _leave_out(
    events: pl.DataFrame, plan: Plan, forgotten: pl.Series | None
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Leave out events, one reason after another; yield each reason and the events that remain."""
    events = erasure.without(events, "user", forgotten)
    yield "forgotten", events
    cut_off, window = plan.config.pipeline.cut_off, plan.window
    if window is not None:
        events = events.filter(_inside(window))
        yield "outside", events
    elif cut_off is not None:
        yield "after_cut_off", log_end.before(events, cut_off.astimezone(UTC))


def _null_like(events: pl.DataFrame) -> dict[str, int]:
    """Users and items that may stand for a missing value, and their rows."""
    found: dict[str, int] = {}
    for name in ("user", "item"):
        if events[name].dtype == pl.String:
            values = events[name].filter(events[name].is_in(_NULL_LIKE.implode()))
            counts = values.value_counts().iter_rows() if len(values) else ()
            found |= {f"{name} {value!r}": count for value, count in counts}
    return found


def _latest(events: pl.DataFrame, chunk: Chunk, rejects: pl.DataFrame, file: str) -> pl.DataFrame:
    """The latest rows of a chunk, as the rejects that they are if the log ends before them."""
    latest = events.select(_AT, "time").drop_nulls().top_k(log_end.MOST, by="time")
    good = (~chunk.line.is_in(rejects["line"].implode())).arg_true().gather(latest[_AT])
    return latest.select(
        "time",
        file=pl.lit(file),
        line=chunk.line.gather(good),
        reason=pl.lit(""),
        text=chunk.text.gather(good).str.head(500),
    )


def _inside(window: Window) -> pl.Expr:
    inside = pl.col("time") < window.end
    return inside if window.begin is None else inside & (pl.col("time") >= window.begin)


def _lines(source: Shard, form: Format) -> int | None:
    ranged = source.stop is not None and not isinstance(form, ParquetFormat)
    return count_lines(source) if ranged else None


def judge(_: Any, shards: Iterable[ShardFacts], plan: Plan) -> Verdict:
    """Once the whole log is read: decide whether it can be used, and where it ends."""
    ordered = [replace(s, spilled=()) for s in sorted(shards, key=lambda shard: shard.number)]
    end, facts = None, ordered
    log = log_end.add(shard.days for shard in ordered)
    if plan.window is None and plan.config.pipeline.cut_off is None:
        end = log_end.end_of(log)
    if end is not None:
        facts = [_without_late(shard, end) for shard in ordered]
        log = log_end.add(shard.days for shard in facts)
    _write_rejects(ordered, end, plan)
    verdict = Verdict(
        problem=manifest.problem(plan.config, facts, plan.out, some_days=plan.window is not None),
        cut_off=_cut_off(plan, log),
        end=end,
    )
    LogFacts(verdict, tuple(facts)).write(plan.log_facts)
    return verdict


def _without_late(shard: ShardFacts, end: datetime) -> ShardFacts:
    """The facts, where rows after the end of the log are rejects."""
    days = {number: day for number, day in shard.days.items() if day.latest < end}
    late = sum(day.rows for day in shard.days.values()) - sum(day.rows for day in days.values())
    reasons = shard.reasons | ({log_end.reason(end): late} if late else {})
    return replace(shard, days=days, reasons=reasons)


def _write_rejects(shards: list[ShardFacts], end: datetime | None, plan: Plan) -> None:
    """Write the rejects with their lines in the file: those of a range of bytes count from 1."""
    for _, parts in groupby(shards, key=lambda shard: shard.file):
        before = 0
        for shard in parts:
            found = [pl.DataFrame(schema=REJECTS)]
            if plan.rejects(shard.number).exists():
                found.append(pl.read_ipc(plan.rejects(shard.number)))
            if end is not None and plan.late(shard.number).exists():
                late = pl.read_ipc(plan.late(shard.number)).filter(pl.col("time") >= end)
                found.append(late.select(*REJECTS).with_columns(reason=pl.lit(log_end.reason(end))))
            rejects = pl.concat(found).with_columns(pl.col("line") + before)
            if len(rejects):
                path = part_path(plan.examples.rejects, shard.number)
                write_parquet(rejects.sort("line", maintain_order=True), path, _REJECTS)
            before += shard.lines or 0


def _cut_off(plan: Plan, log: dict[int, Day]) -> datetime | None:
    config = plan.config
    if plan.window is not None:
        return plan.window.end
    if config.pipeline.cut_off is not None:
        return config.pipeline.cut_off.astimezone(UTC)
    latest = max((day.latest for day in log.values()), default=None)
    return None if latest is None else latest + timedelta(microseconds=1)


def write_no_rejects(plan: Plan) -> None:
    """Write an empty part where nothing was rejected, so that readers need no special case."""
    if not plan.examples.rejects.exists():
        write_parquet(pl.DataFrame(schema=REJECTS), part_path(plan.examples.rejects, 0), _REJECTS)
