"""The first rows of each of a log's files, read, typed and labelled by the pipeline's own code."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, timedelta

import polars as pl

from multigate.configs import Config, progress
from multigate.configs.files import TIME
from multigate.configs.sections.log import ParquetFormat
from multigate.configs.storage import Place
from multigate.jobs.onboarding.tables.rows import count_rows
from multigate.pipeline.compute import tables
from multigate.pipeline.compute.examples import Bucket, make_examples
from multigate.pipeline.core.columns import log_features
from multigate.pipeline.core.facts import ShardFacts
from multigate.pipeline.label import labels, split
from multigate.pipeline.read import drift, erasure, inputs, log_end
from multigate.pipeline.read.normalise import normalise
from multigate.pipeline.read.sources import Chunk, Shard
from multigate.pipeline.stages.labelling import split_limits

_MOST_FILES = 32


@dataclass(frozen=True)
class BadValue:
    """The first row that was rejected for a reason."""

    file: str
    line: int
    reason: str
    rows: int
    """Rows of the sample that were rejected for it."""
    column: str
    """The column that holds the value; "" where the row itself is malformed."""
    value: str


@dataclass(frozen=True)
class Sample:
    """Some rows of a log."""

    events: pl.DataFrame
    """Typed, in the order that the pipeline labels them in."""
    rows: int
    """Rows that were looked at, rejects included; those of a file that is read for impressions and
    for feedback once."""
    rejected: int
    """Of `rows`."""
    reject_rate: float
    """The share of rejects as the pipeline counts them: rows of such a file twice."""
    bad: tuple[BadValue, ...]
    facts: tuple[ShardFacts, ...]
    """What the pipeline's own checks of a log look at."""
    whole: bool
    """Whether these are all rows of the log."""
    log_rows: int
    """How many rows the log has: counted where all were read or the files say it, else estimated
    from the files' sizes."""
    seconds: float
    """CPU time of reading and typing."""


def read_sample(config: Config, data: Place, rows: int) -> Sample:
    """Read the first rows of each file; of at most 32 files, evenly chosen.

    Args:
        config: how the log is read.
        data: its folder.
        rows: how many rows to read in all, about.

    Raises:
        DataError: no such folder, or no file for a pattern.
    """
    shards = inputs.shards(config, data)
    # Of both sides alike: feedback needs the impressions of its day.
    step = -(-len(shards) // _MOST_FILES)
    sides = ([one for one in shards if one.feedback == side] for side in (False, True))
    chosen = [one for side in sides for one in side[::step]]
    started = time.process_time()
    parts = [
        _read_head(number, shard, config, -(-rows // len(chosen)))
        for number, shard in enumerate(
            progress.track(chosen, "read a sample", len(chosen), "files")
        )
    ]
    frames = [frame for part in parts for frame in part.frames]
    events = pl.concat(frames) if frames else pl.DataFrame()
    if len(events):
        events = events.sort("user", "time", "fingerprint", nulls_last=False)
    seconds = time.process_time() - started
    read = sum(part.facts.rows for part in parts)
    whole = len(chosen) == len(shards) and all(part.whole for part in parts)
    width = sum(part.bytes for part in parts) / max(read, 1)
    ended = [(part, one) for part, one in zip(parts, chosen, strict=True) if part.whole]
    known = sum(one.size for _, one in ended)
    rate = sum(part.facts.rows for part, _ in ended) / known if known else None
    rows_of = {part.facts.file: part.facts.rows for part in parts}
    files = {shard.name: shard for shard in shards}
    looked_at = sum(rows_of.values())
    rejects: dict[tuple[str, str], int] = {}
    for part in parts:
        for reason, count in part.facts.reasons.items():
            where = reason, part.facts.file
            rejects[where] = max(count, rejects.get(where, 0))
    return Sample(
        events=events,
        rows=looked_at,
        rejected=sum(rejects.values()),
        reject_rate=sum(sum(part.facts.reasons.values()) for part in parts) / max(read, 1),
        bad=_by_reason((one for part in parts for one in part.bad), rejects),
        facts=tuple(part.facts for part in parts),
        whole=whole,
        log_rows=looked_at
        if whole
        else max(looked_at, sum(_rows(config, s, width, rate) for s in files.values())),
        seconds=seconds,
    )


def label(sample: Sample, config: Config, side_tables: dict[str, pl.DataFrame]) -> Bucket:
    """Label the impressions of a sample, as of its end where the configuration has no cut-off.

    Args:
        sample: with at least one row.
        config: of the log, the labels and the features.
        side_tables: `users` and `items`, where the log has them.
    """
    cut_off = config.pipeline.cut_off
    if cut_off is None:
        latest = sample.events["time"].max()
        cut_off = None if latest is None else latest + timedelta(microseconds=1)
    utc = None if cut_off is None else cut_off.astimezone(UTC)
    return make_examples(sample.events, config, side_tables, utc)


@dataclass(frozen=True)
class Labelled:
    """The labelled impressions of a sample."""

    impressions: pl.DataFrame
    """Columns as in the examples of a log."""
    splits: pl.Series
    """Of each: `train`, `validation` or `test`."""
    times: float
    """How many times as many rows the log has as the sample, about."""


def label_sample(config: Config, data: Place, rows: int) -> Labelled | None:
    """Read a sample of a log, label it and divide it; None where it holds no impression.

    Args:
        config: of the log, the labels and the features.
        data: its folder.
        rows: how many rows to read in all, about.

    Raises:
        DataError: no such folder, or no file for a pattern.
    """
    sample = read_sample(config, data, rows)
    if not len(sample.events):
        return None
    gone = erasure.read_list(config, data, None)
    read = {side: tables.read_table(config, data, side, gone) for side in ("users", "items")}
    made = label(sample, config, {name: one for name, one in read.items() if one is not None})
    if not len(made.impressions):
        return None
    return Labelled(*divide(config, made.impressions), sample.log_rows / max(sample.rows, 1))


def divide(config: Config, impressions: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Divide the sample as the pipeline divides a log; labels under the embargo are masked."""
    chosen, times = config.pipeline.split, impressions[TIME]
    cells = split.find_cells(chosen, split.count_cells(times)) if split.by_shares(chosen) else None
    instants = None if cells is None else split.count_instants(times, cells)
    starts = split_limits(config, cells, instants).starts
    seed = config.pipeline.seed
    splits = split.assign(impressions, config.contract.user, chosen, seed, starts)
    flags = split.embargoed(config, starts)
    masked = impressions.with_columns(split=splits).with_columns(labels.masked(flags))
    return masked.drop("split"), splits


@dataclass(frozen=True)
class _Head:
    """The first rows of one file."""

    frames: list[pl.DataFrame]
    bad: list[BadValue]
    facts: ShardFacts
    bytes: int
    """Of the rows' text."""
    whole: bool


def _read_head(number: int, shard: Shard, config: Config, rows: int) -> _Head:
    frames, bad, width, read = [], [], 0, 0
    reasons: Counter[str] = Counter()
    columns: dict[str, None] = {}
    types: dict[str, str] = {}
    chunks = inputs.read_log(config, shard)
    for chunk in chunks:
        head = _first_rows(chunk, rows - read)
        good, rejects = normalise(head, config, shard.name, shard.feedback)
        frames.append(good)
        bad += _bad_values(head, rejects, config, shard)
        reasons.update(rejects["reason"].to_list())
        columns |= dict.fromkeys(chunk.columns)
        types |= chunk.types
        once = (head.line != head.line.shift()).fill_null(True)  # explode repeats a line's text
        width += int(head.text.filter(once).str.len_bytes().sum() or 0)
        read += len(good) + len(rejects)
        if len(head.line) < len(chunk.line) or read >= rows:
            break
    whole = (not frames or len(head.line) == len(chunk.line)) and next(chunks, None) is None
    events = pl.concat(frames) if frames else pl.DataFrame()
    counted = events["event"].value_counts().iter_rows() if "event" in events.columns else ()
    facts = ShardFacts(
        number=number,
        file=shard.name,
        feedback=shard.feedback,
        rows=read,
        columns=tuple(columns),
        reasons=dict(reasons),
        events=dict(counted),
        unused={},
        days=log_end.days(events["time"]) if len(events) else {},
        null_like={},
        damage=None,
        lines=0,
        types=types,
    )
    return _Head(frames, bad, facts, width, whole)


def _first_rows(chunk: Chunk, rows: int) -> Chunk:
    if len(chunk.line) <= rows:
        return chunk
    line = chunk.line.head(rows)
    return replace(
        chunk,
        frame=chunk.frame.head(rows),
        line=line,
        text=chunk.text.head(rows),
        rejects=chunk.rejects.filter(pl.col("line") <= line[-1]),
        damage=None,
    )


def _bad_values(
    chunk: Chunk, rejects: pl.DataFrame, config: Config, shard: Shard
) -> list[BadValue]:
    """For each reason, its first row in a chunk, with the value that is to blame."""
    found = []
    lines = {line: at for at, line in enumerate(chunk.line.to_list())} if len(rejects) else {}
    for reason, group in rejects.group_by("reason", maintain_order=True):
        line, text = group["line"][0], group["text"][0]
        column = _column(str(reason[0]).partition(":")[0], config, shard.feedback)
        at = lines.get(line)
        if at is None or column not in chunk.frame.columns:
            column, value = "", text
        else:
            given = chunk.frame[column][at]
            value = "" if given is None else str(given)
        found.append(BadValue(shard.name, line, str(reason[0]), len(group), column, value[:80]))
    return found


def _column(name: str, config: Config, feedback: bool) -> str:
    """The column of a role, a feature or a number that a reject names."""
    roles, _ = inputs.roles(config, feedback)
    if getattr(roles, name, None) is not None:
        return str(getattr(roles, name))
    feature = log_features(config).get(name)
    return name if feature is None else feature.column or name


def _by_reason(
    bad: Iterable[BadValue], rejects: dict[tuple[str, str], int]
) -> tuple[BadValue, ...]:
    """The first row of each reason, with the rows of all files; the most frequent one first."""
    first: dict[str, BadValue] = {}
    for one in bad:
        first.setdefault(one.reason, one)
    rows: Counter[str] = Counter()
    for (reason, _), count in rejects.items():
        rows[reason] += count
    found = (replace(one, rows=rows[one.reason]) for one in first.values())
    return tuple(sorted(found, key=lambda one: -one.rows))


def _rows(config: Config, shard: Shard, width: float, rate: float | None) -> int:
    form = drift.format_of(inputs.form(config, shard.feedback), shard.name)
    is_parquet = isinstance(form, ParquetFormat)
    return round(count_rows(shard, width, is_parquet, rate)) if is_parquet or width else 0
