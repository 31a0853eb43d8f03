"""Turns raw columns into typed events, and unusable rows into rejects.

A row's first failed check is the reason of its reject.
"""

from collections.abc import Iterable
from functools import reduce

import numpy as np
import polars as pl

from multigate.configs import Config
from multigate.configs.sections.log import EventLog
from multigate.pipeline.core.columns import (
    COLUMN,
    FEATURE,
    KNOWN,
    id_type,
    known_columns,
    log_features,
    number_columns,
)
from multigate.pipeline.core.hashing import Hashes, combine, hash_values
from multigate.pipeline.read.inputs import exploded, role_exists, roles
from multigate.pipeline.read.parse import (
    Parsed,
    coalesce,
    no_reasons,
    parse_feature,
    parse_id,
    parse_time,
    parse_value,
    parse_weight,
)
from multigate.pipeline.read.sources import Chunk

_IDENTITY = ("user", "item", "time", "event", "request")

REJECTS = {"file": pl.String, "line": pl.Int64, "reason": pl.String, "text": pl.String}


def normalise(
    chunk: Chunk, config: Config, file: str, feedback: bool = False
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Type a chunk of the log.

    Args:
        chunk: raw rows. A column that it lacks is null everywhere.
        config: names, types and rules for missing values.
        file: the name in the rejects.
        feedback: whether the rows come from the feedback's own files.

    Returns:
        Events (see `columns`) and rejects (file, line, reason, text). Together, these are all rows.
    """
    log, contract = config.pipeline.log, config.contract
    columns, unit = roles(config, feedback)
    rows = len(chunk.line)

    def raw(name: str | None) -> pl.Series:
        if name in chunk.frame.columns:
            return chunk.frame[name]
        return pl.Series("", [None] * rows, dtype=pl.String)

    def role(name: str) -> pl.Series:
        return raw(getattr(columns, name))

    time = parse_time(role("time"), unit, log.unknown_time, log.time_zone)
    parsed = {
        "time": time if log.unknown_time is not None else time.required(),
        "user": parse_id(role("user"), id_type(config, contract.user)),
        "item": parse_id(role("item"), id_type(config, contract.item)).required(),
    }
    if columns.user is not None:
        parsed["user"] = parsed["user"].required()
    for name in ("event_id", "session", "request"):
        if role_exists(config, name):
            parsed[name] = parse_id(role(name), "string")
    impression = pl.Series([True] * rows, dtype=pl.Boolean)
    if isinstance(log, EventLog):
        shown = pl.Series([log.impression] * rows, dtype=pl.String)
        kind = shown if getattr(columns, "event", None) is None else role("event")
        parsed["event"] = parse_id(kind, "string").required()
        impression = (parsed["event"].values == log.impression).fill_null(False)
        if role_exists(config, "value"):
            parsed["value"] = parse_value(role("value"))
    if log.columns.weight is not None:
        weight = parse_weight(raw(None if feedback else log.columns.weight))
        parsed["weight"] = weight.excused(~impression)
    for name, feature in log_features(config).items():
        values = raw(None if feedback else feature.column or name)
        column = parse_feature(values, feature, log.time_zone)
        if feature.missing == "error":
            column = column.required("missing, and the contract says missing: error")
        # Only impressions carry features into examples.
        parsed[FEATURE + name] = column.excused(~impression)
    for name in number_columns(config):
        parsed[COLUMN + name] = parse_value(raw(name))
    for name in known_columns(config):
        parsed[KNOWN + name] = parse_time(raw(name), unit, log.unknown_time, log.time_zone)
    if columns.user is None:
        parsed["user"] = Parsed(_visits(parsed), no_reasons(rows))
    named: tuple[str, ...] = ("event_id", "user")
    if not feedback and exploded(config) is not None:
        named += ("item",)  # the id is that of the row which became one for each item
    return _separate(chunk, parsed, file, feedback, named)


def _visits(parsed: dict[str, Parsed]) -> pl.Series:
    """A user for each request; for a row without request, for each event id, else for each row.

    Rows that agree in all columns are duplicates, and have one user.
    """
    each = (hash_values(parsed[name].values) for name in sorted(parsed))
    of_row = pl.Series(reduce(combine, each), dtype=pl.UInt64).cast(pl.String)
    named = [parsed[name].values for name in ("request", "event_id") if name in parsed]
    return coalesce(*named, of_row)


def _separate(
    chunk: Chunk,
    parsed: dict[str, Parsed],
    file: str,
    feedback: bool,
    named: tuple[str, ...],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    given = {
        n: column.reasons
        for n, column in parsed.items()
        if column.reasons.null_count() < len(chunk.line)
    }
    reason = coalesce(
        *(f"{name.split('/')[-1]}: " + reasons for name, reasons in given.items()),
        no_reasons(len(chunk.line)),
    )
    bad = reason.is_not_null()
    events = pl.DataFrame([column.values.alias(name) for name, column in parsed.items()])
    events = _identify(events.filter(~bad) if bad.any() else events, feedback, named)
    rejects = pl.DataFrame(
        {
            "line": chunk.line.filter(bad),
            "reason": reason.filter(bad),
            "text": chunk.text.filter(bad).str.head(500),
        }
    )
    rejects = pl.concat([chunk.rejects, rejects]).with_columns(file=pl.lit(file)).select(*REJECTS)
    return events, rejects.sort("line", maintain_order=True)


def _identify(events: pl.DataFrame, feedback: bool, named: tuple[str, ...]) -> pl.DataFrame:
    """Add each event's `identity` and `fingerprint`; see `columns`.

    The ids of events in the feedback's own files are a space of their own. `named` are the columns
    by which a row that has an event id is told apart.
    """
    hashes = {name: hash_values(events[name]) for name in sorted(events.columns)}

    def together(names: Iterable[str]) -> Hashes:
        space = np.full(len(events), feedback, np.uint64)
        return reduce(combine, (hashes[name] for name in names), space)

    identity = together(name for name in _IDENTITY if name in hashes)
    if "event_id" in hashes:
        has_id = events["event_id"].is_not_null().to_numpy()
        identity = np.where(has_id, together(named), identity)
    return events.with_columns(
        identity=pl.Series(identity, dtype=pl.UInt64),
        fingerprint=pl.Series(together(hashes), dtype=pl.UInt64),
    )
