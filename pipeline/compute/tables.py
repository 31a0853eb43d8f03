"""Side tables of users and items: read whole, checked, and joined by id as of a time."""

import hashlib
import io
from dataclasses import replace

import numpy as np
import polars as pl

from multigate.configs import Config, DataError
from multigate.configs.files import TIME
from multigate.configs.sections.log import MixedFormat
from multigate.configs.sections.nearest import did_you_mean, listed
from multigate.configs.storage import Place
from multigate.features import Timeline
from multigate.pipeline.compute.encoders import encode
from multigate.pipeline.core.columns import (
    encoded_features,
    id_type,
    missing_or_needed,
    table_features,
)
from multigate.pipeline.read import drift, erasure, inputs
from multigate.pipeline.read.derive import derive, filled
from multigate.pipeline.read.parse import Parsed, parse_feature, parse_id, parse_time
from multigate.pipeline.read.sources import Chunk, expand, read

_KEY = {"users": "user", "items": "item"}
_WHERE, _TEXT = "__where", "__text/"

SINCE = "table/since"
"""The column of a dated table that says from when on a row holds."""


def read_table(
    config: Config, data: Place, source: str, forgotten: pl.Series | None
) -> pl.DataFrame | None:
    """Read the side table `source` (`users` or `items`), without the rows of users to forget.

    Returns:
        The key under the name of the user or item feature, `SINCE` where the table is dated, and
        the table's features; None where the configuration has no such table. Sorted by key and
        time.

    Raises:
        DataError: the table's files, columns or values cannot be used. A table is small and made
            on purpose, so that its first bad row stops the job. Messages name lines, not ids.
    """
    table = getattr(config.pipeline, source)
    if table is None:
        return None
    wanted, optional = _wanted(config, source), _optional(config, source)
    drift.check_rename(table.rename, wanted, f"pipeline.{source}.rename")
    features, made = table_features(config, source), table.derive
    separators = inputs.one_of_each(inputs.list_readers(features, made, made.values()))
    frames, given = [], set()
    for shard in expand(data, table.files):
        if isinstance(table.format, MixedFormat) and drift.is_marker(shard.name, table.files):
            continue
        for chunk in read(shard, table.format, wanted, rename=table.rename, separators=separators):
            given |= set(chunk.columns)
            if len(chunk.line) or len(chunk.rejects):
                raw = _raw(chunk, config, source, shard.name, optional)
                frames.append(_typed(raw, config, source, shard.name))
    if not frames:
        raise DataError(f"pipeline.{source}: {', '.join(table.files)}: the table has no rows")
    for name in sorted(optional - given):
        raise DataError(
            f"pipeline.{source}: {', '.join(table.files)}: no column {name!r} in any file; "
            f"{did_you_mean(name, sorted(given))}they have {listed(sorted(given))}"
        )
    rows = pl.concat(frames)
    names = [name for name in rows.columns if name != _WHERE]
    rows = rows.unique(names, keep="first", maintain_order=True)
    keys = [name for name in names if name in (getattr(config.contract, _KEY[source]), SINCE)]
    twice = rows.filter(pl.struct(keys).is_duplicated()).sort(*keys, maintain_order=True)
    if len(twice):
        one, other = twice[_WHERE][:2]
        per = "id" if table.time is None else "id and time"
        raise DataError(
            f"pipeline.{source}: {one} and {other} differ, and have the same "
            f"{' and '.join(n for n in (table.key, table.time) if n)}; expected one row per {per}"
        )
    if source == "users":
        rows = erasure.without(rows, config.contract.user, forgotten)
    rows = _with_vectors(rows, config, source)
    return rows.select(*keys, *table_features(config, source)).sort(*keys)


def _with_vectors(rows: pl.DataFrame, config: Config, source: str) -> pl.DataFrame:
    """The rows with the features that encoders make of their texts, the last thing to do."""
    rules = getattr(config.pipeline, source).encode
    if not rules:
        return rows
    texts = rows.select(pl.col(_TEXT + name).alias(name) for name in rules)
    vectors = encode(texts, rules, f"pipeline.{source}.encode")
    needed = set(required(config, source)) if SINCE in rows.columns else set()
    for name, feature in encoded_features(config, source).items():
        column = feature.column or name
        parsed = parse_feature(vectors[column], feature, config.pipeline.log.time_zone)
        wrong = _first_wrong(parsed, needed=name in needed)
        if wrong is not None:
            at, reason = wrong
            raise DataError(
                f"pipeline.{source}: {rows[_WHERE][at]}: {name}: {reason}, made by "
                f"{rules[column].by}"
            )
        rows = rows.with_columns(parsed.values.alias(name))
    return rows


def _first_wrong(column: Parsed, *, needed: bool) -> tuple[int, str] | None:
    """The first row that a table cannot have, and why; where every row is `needed`, a null is."""
    wrong = column.reasons.is_not_null()
    if needed:
        wrong |= column.values.is_null()
    at = wrong.arg_true()
    return (at[0], column.reasons[at[0]] or "missing; every row needs it") if len(at) else None


def digest(config: Config, source: str, table: pl.DataFrame | None) -> str | None:
    """Of the vectors that encoders made; None where there are none.

    A run that goes on where another one was killed must not mix the vectors of two encoders: no
    file's time says that a model or a library has changed.
    """
    if table is None:
        return None
    names = encoded_features(config, source)
    if not names:
        return None
    with io.BytesIO() as written:
        table.select(*names).write_ipc(written, compression="uncompressed")
        return hashlib.sha256(written.getbuffer()).hexdigest()


def hint(config: Config, data: Place, column: str) -> str:
    """What to say of a column that the log lacks and a side table has; "" where none has it."""
    for source in ("users", "items"):
        table = getattr(config.pipeline, source)
        for shard in expand(data, table.files) if table is not None else ():
            for chunk in read(shard, table.format, [column]):
                if column in chunk.columns:
                    return f"; table pipeline.{source} has it: set source: {source}"
                break
    return ""


def _wanted(config: Config, source: str) -> list[str]:
    table, features = getattr(config.pipeline, source), table_features(config, source)
    names = {table.key, *(feature.column or name for name, feature in features.items())}
    names |= set() if table.time is None else {table.time}
    return sorted(table.sources(names))


def _optional(config: Config, source: str) -> set[str]:
    """The columns that some files may lack: those of features that may be missing."""
    table = getattr(config.pipeline, source)
    allowing, needed = missing_or_needed(table_features(config, source))
    needed |= {table.key} if table.time is None else {table.key, table.time}
    optional: set[str] = table.sources(allowing) - table.sources(needed)
    return optional


def _raw(chunk: Chunk, config: Config, source: str, file: str, optional: set[str]) -> pl.DataFrame:
    """A piece of a table with the derived columns beside its own; `_WHERE` has each row's line."""
    table, where = getattr(config.pipeline, source), f"pipeline.{source}: {file}"
    if len(chunk.rejects):
        line, reason, _ = chunk.rejects.row(0)
        raise DataError(f"{where}: line {line}: {reason}")
    frame = chunk.frame
    for name in _wanted(config, source):
        if name not in chunk.columns and name not in optional:
            hint = did_you_mean(name, chunk.columns)
            raise DataError(
                f"{where}: no column {name!r}; {hint}the file has {listed(chunk.columns)}"
            )
        if name not in frame.columns:
            nothing = pl.Series(name, [None], dtype=pl.String).new_from_index(0, len(chunk.line))
            frame = pl.DataFrame([*frame, nothing])
    zone = config.pipeline.log.time_zone
    whole = replace(chunk, frame=frame)
    frame = derive(whole, table.derive, table.time_unit, None, zone).frame
    return frame.with_columns(chunk.line.alias(_WHERE))


def _typed(frame: pl.DataFrame, config: Config, source: str, file: str) -> pl.DataFrame:
    """A typed piece of a table; `_WHERE` names each row's file and line."""
    table, where = getattr(config.pipeline, source), f"pipeline.{source}: {file}"
    key, zone = getattr(config.contract, _KEY[source]), config.pipeline.log.time_zone
    parsed = {key: parse_id(frame[table.key], id_type(config, key))}
    needed = {key: table.key}
    if table.time is not None:
        parsed[SINCE] = parse_time(frame[table.time], table.time_unit, None, zone)
        # If an item's later rows lacked a value, a negative could be drawn that lacks it. An
        # undated table has one answer for all times.
        needed |= {SINCE: table.time, **{name: name for name in required(config, source)}}
    encoded = encoded_features(config, source)
    for name, feature in table_features(config, source).items():
        if name not in encoded:
            parsed[name] = parse_feature(frame[feature.column or name], feature, zone)
    for name, column in parsed.items():
        wrong = _first_wrong(column, needed=name in needed)
        if wrong is not None:
            at, reason = wrong
            shown = needed.get(name, name)
            raise DataError(f"{where}: line {frame[_WHERE][at]}: {shown}: {reason}")
    columns = [column.values.alias(name) for name, column in parsed.items()]
    columns += [filled(frame[rule.text]).alias(_TEXT + name) for name, rule in table.encode.items()]
    lines = f"{file}: line " + frame[_WHERE].cast(pl.String)
    return pl.DataFrame([*columns, lines.alias(_WHERE)])


def join_table(
    frame: pl.DataFrame, config: Config, source: str, table: pl.DataFrame, time: str = TIME
) -> pl.DataFrame:
    """Add the features of a side table; null where the table lacks the id.

    Args:
        frame: has the id, and column `time`.
        config: names the features.
        source: `users` or `items`.
        table: what `read_table` returned. From a dated table, a row of the frame gets the id's
            latest row that is not later than the frame's time.
        time: the frame's column.
    """
    key = getattr(config.contract, _KEY[source])
    names = list(table_features(config, source))
    if SINCE not in table.columns:
        return frame.join(table.select(key, *names), on=key, how="left", maintain_order="left")
    timeline = Timeline(table, [key], SINCE)
    start, stop, _ = timeline.earlier(frame, time, inclusive=True)
    found = np.flatnonzero(stop > start)
    rows = timeline.rows[stop[found] - 1]
    known = table[rows.tolist()].select(names).with_columns(__at=found)
    at = frame.with_row_index("__at").with_columns(pl.col("__at").cast(pl.Int64))
    return at.join(known, on="__at", how="left", maintain_order="left").drop("__at")


def required(config: Config, source: str) -> list[str]:
    """The features of a side table that every example must have."""
    return [n for n, f in table_features(config, source).items() if f.missing == "error"]
