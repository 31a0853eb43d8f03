"""The first stages: read the log's files, spread their events over buckets, judge the log."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa

from multigate.configs.files import ExamplesFolder
from multigate.configs.sections.log import JsonLinesFormat
from multigate.pipeline.core.facts import Damage, Day, LogFacts, ShardFacts, Verdict
from multigate.pipeline.plan import Plan
from multigate.pipeline.read import drift, erasure, inputs, log_end
from multigate.pipeline.read.inputs import wanted_columns
from multigate.pipeline.read.normalise import REJECTS, normalise
from multigate.pipeline.read.parse import NULL_LIKE
from multigate.pipeline.read.sources import Chunk, Shard
from multigate.pipeline.shuffle.buckets import SpreadBuffer
from multigate.pipeline.shuffle.parcel import Bundle, Output, Parcel
from multigate.pipeline.window import Window
from multigate.pipeline.write import manifest
from multigate.pipeline.write.parts import part_path, write_parquet

_REJECTS = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
_AT = "__at"
_SHOWN = 40  # characters of a value in a message
_LATE = {"time": pl.Datetime("us", "UTC"), **REJECTS}


def read_shard(shard: tuple[int, Shard], plan: Plan, tables: Bundle) -> Iterator[Output]:
    """Read one file, or a part of a large one.

    Args:
        shard: its number and place.
        plan: the run.
        tables: holds the users to forget, where there are any.

    Yields:
        `events`: pairs (bucket, parcel). `rejected`: parcels of rejects, with lines counted from
        the shard's beginning; and of the latest rows, which may lie after the end of the log.
        `facts`: the shard's.
    """
    number, source = shard
    config = plan.config
    form = drift.format_of(inputs.form(config, source.feedback), source.name)
    needed = set(wanted_columns(config, source.feedback))
    needed -= drift.optional_columns(config, source.feedback)
    forgotten = tables["forgotten"].read()["user"] if "forgotten" in tables else None
    redacted = config.pipeline.redact_rejects or forgotten is not None
    open_ended = plan.window is None and config.pipeline.cut_off is None
    reasons: Counter[str] = Counter()
    events: Counter[str] = Counter()
    unused: Counter[str] = Counter()
    null_like: Counter[str] = Counter()
    columns: list[str] = []
    rejected, late = [pl.DataFrame(schema=REJECTS)], [pl.DataFrame(schema=_LATE)]
    days: dict[int, Day] = {}
    rows, lines, damage = 0, 0, None
    held = SpreadBuffer(plan.carrier, plan.buckets, "events", number)
    types: dict[str, str] = {}
    bad_time: str | None = None
    groups: dict[str, tuple[int, int]] = {}
    for chunk in inputs.read_log(config, source):
        columns = list(dict.fromkeys([*columns, *chunk.columns]))
        if not isinstance(form, JsonLinesFormat) and not needed <= set(columns) and columns:
            break  # `manifest.problem` names the column
        good, rejects = normalise(chunk, config, source.name, source.feedback)
        if chunk.damage is not None:
            before = rows + len(good) + len(rejects) - 1  # one of the rejects says it
            damage = Damage(source.name, str(chunk.damage), before, chunk.damage.lost)
        rows += len(good) + len(rejects)
        lines = max(lines, chunk.lines_read)
        reasons.update(rejects["reason"].to_list())
        # A column without values has whatever type its writer chose: of text, often a float.
        types |= {
            n: t for n, t in chunk.types.items() if chunk.frame[n].null_count() < len(chunk.frame)
        }
        groups = _reject_groups(groups, rejects, chunk.group_ends)
        if bad_time is None and len(rejects):
            bad_time = _bad_time(chunk, rejects, inputs.roles(config, source.feedback)[0].time)
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
        yield from (("events", keyed) for keyed in held.add(good.drop(_AT)))
    yield from (("events", keyed) for keyed in held.flush())
    for kind, found in (("rejects", rejected), ("late", late)):
        table = pl.concat(found)
        if len(table):
            table = table.with_columns(text=pl.lit("")) if redacted else table
            yield "rejected", (number, plan.carrier.whole(table, kind, number))
    facts = ShardFacts(
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
        lines=lines,
        types=types,
        reject_groups=groups,
        first_group=source.start if types else 0,
        bad_time=bad_time,
    )
    yield "facts", facts


def _bad_time(chunk: Chunk, rejects: pl.DataFrame, column: str) -> str | None:
    """The first value of the time column that was rejected; it names nobody."""
    lines = rejects.filter(pl.col("reason").str.starts_with(manifest.NO_TIME))["line"]
    if not len(lines) or column not in chunk.frame.columns:
        return None
    values = chunk.frame[column].filter(chunk.line == lines[0])
    return str(values[0])[:_SHOWN] if len(values) else None


def _reject_groups(
    before: dict[str, tuple[int, int]], rejects: pl.DataFrame, ends: tuple[int, ...]
) -> dict[str, tuple[int, int]]:
    """By reason, the first row group with rejects and how many there are; see `ShardFacts`."""
    if not ends or not len(rejects):
        return before
    found = dict(before)
    for reason, line, count in (
        rejects.group_by("reason").agg(pl.col("line").min(), count=pl.len()).iter_rows()
    ):
        group, earlier = before.get(reason, (bisect_left(ends, line), 0))
        found[reason] = group, earlier + count
    return found


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
            values = events[name].filter(events[name].is_in(pl.Series(NULL_LIKE).implode()))
            counts = values.value_counts().iter_rows() if len(values) else ()
            found |= {f"{name} {value!r}": count for value, count in counts}
    return found


def _latest(events: pl.DataFrame, chunk: Chunk, rejects: pl.DataFrame, file: str) -> pl.DataFrame:
    """The latest rows of a chunk as rejects, which they are if the log ends before them."""
    latest = events.select(_AT, "time").drop_nulls().top_k(log_end.MOST, by="time")
    good = _good_rows(chunk.line, rejects["line"]).gather(latest[_AT])
    return latest.select(
        "time",
        file=pl.lit(file),
        line=chunk.line.gather(good),
        reason=pl.lit(""),
        text=chunk.text.gather(good).str.head(500),
    )


def _good_rows(line: pl.Series, rejected: pl.Series) -> pl.Series:
    """The rows of a chunk that are no rejects, in order, by the lines of the rejects.

    The rows of one line, which explode makes, have one text: which of them are bad is all one.
    """
    rows = pl.DataFrame({"line": line}).with_row_index("row")
    some = rows.filter(pl.col("line").is_in(rejected.implode()))
    if not len(some):  # the usual case, made cheap
        return rows["row"]
    some = some.with_columns(place=pl.int_range(pl.len()).over("line"))
    some = some.join(rejected.value_counts(name="bad"), on="line")
    bad = some.filter(pl.col("place") < pl.col("bad"))
    return rows.join(bad, on="row", how="anti", maintain_order="left")["row"]


def _inside(window: Window) -> pl.Expr:
    inside = pl.col("time") < window.end
    return inside if window.begin is None else inside & (pl.col("time") >= window.begin)


def judge(shards: Iterable[ShardFacts], plan: Plan) -> LogFacts:
    """Decide whether the log can be used, and where it ends, once all of it is read."""
    ordered = _of_whole_files(sorted(shards, key=lambda shard: shard.number))
    end, facts = None, ordered
    log = log_end.add(shard.days for shard in ordered)
    if plan.window is None and plan.config.pipeline.cut_off is None:
        end = log_end.end_of(log)
    if end is not None:
        facts = [_without_late(shard, end) for shard in ordered]
        log = log_end.add(shard.days for shard in facts)
    some_days = plan.window is not None
    problem = manifest.problem(plan.config, facts, plan.out, some_days)
    absent = manifest.missing_column(plan.config, facts, some_days)
    verdict = Verdict(
        problem=problem,
        absent=absent.name if absent is not None and absent.message == problem else None,
        cut_off=_cut_off(plan, log),
        end=end,
    )
    return LogFacts(verdict, tuple(facts))


def _of_whole_files(ordered: list[ShardFacts]) -> list[ShardFacts]:
    """The facts with damages that count the rows of the file's earlier parts too."""
    facts, rows = [], Counter[tuple[str, bool]]()
    for shard in ordered:
        damage, file = shard.damage, (shard.file, shard.feedback)
        if damage is not None:
            damage = replace(damage, rows=damage.rows + rows[file])
        facts.append(replace(shard, damage=damage))
        rows[file] += shard.rows
    return facts


def _without_late(shard: ShardFacts, end: datetime) -> ShardFacts:
    """The facts with rows after the end of the log counted as rejects."""
    days = {number: day for number, day in shard.days.items() if day.latest < end}
    late = sum(day.rows for day in shard.days.values()) - sum(day.rows for day in days.values())
    reasons = shard.reasons | ({log_end.reason(end): late} if late else {})
    return replace(shard, days=days, reasons=reasons)


def write_rejects(shard: tuple[int, Iterable[Parcel]], log: LogFacts, plan: Plan) -> None:
    """Write a shard's rejects with line numbers in the file; a range counts its own from 1."""
    number, parcels = shard
    end, found = log.verdict.end, []
    for parcel in sorted(parcels, key=lambda one: one.place):
        rows = parcel.read()
        if parcel.kind == "late":
            if end is None:
                continue
            rows = rows.filter(pl.col("time") >= end)
            rows = rows.with_columns(reason=pl.lit(log_end.reason(end)))
        found.append(rows.select(*REJECTS))
    of_file = {s.number: (s.file, s.feedback) for s in log.shards}
    before = sum(
        s.lines for s in log.shards if of_file[s.number] == of_file[number] and s.number < number
    )
    rejects = pl.concat([pl.DataFrame(schema=REJECTS), *reversed(found)])
    if len(rejects):
        rejects = rejects.with_columns(pl.col("line") + before)
        path = part_path(plan.examples.rejects, number)
        write_parquet(rejects.sort("line", maintain_order=True), path, _REJECTS)


def _cut_off(plan: Plan, log: dict[int, Day]) -> datetime | None:
    config = plan.config
    if plan.window is not None:
        return plan.window.end
    if config.pipeline.cut_off is not None:
        return config.pipeline.cut_off.astimezone(UTC)
    latest = max((day.latest for day in log.values()), default=None)
    return None if latest is None else latest + timedelta(microseconds=1)


def write_no_rejects(plan: Plan, folder: Path) -> None:
    """Write an empty part where nothing was rejected, so that readers need no special case."""
    if not list(plan.examples.rejects.glob("*.parquet")):
        path = part_path(ExamplesFolder(folder).rejects, 0)
        write_parquet(pl.DataFrame(schema=REJECTS), path, _REJECTS)
