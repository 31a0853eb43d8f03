"""The audit: proves on any output that examples tell only what had happened by then.

For a sample of examples, labels (`relabel`), histories and counters (`recompute`), rates of past
labels (`audit_rates`) and what side tables give are computed again from the raw log, one event at a
time, and compared. Sampled negatives must have been there to be drawn, and must not give themselves
away (`giveaway`).
"""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from multigate.configs import Config, DataError, FrozenContract, Statistics, progress
from multigate.configs.contract import Feature, IdListFeature, NumberFeature, VectorFeature
from multigate.configs.difference import difference
from multigate.configs.files import (
    IMPRESSION,
    LABEL,
    REQUEST,
    SAMPLED,
    SPLITS,
    TIME,
    ExamplesFolder,
)
from multigate.configs.sections.log import EventLog
from multigate.configs.storage import Place, place
from multigate.pipeline.audit import audit_labels, audit_rates, giveaway
from multigate.pipeline.audit.recompute import (
    Row,
    add_categories,
    compute,
    events_of,
    groups,
    plain,
)
from multigate.pipeline.compute.rates import categories
from multigate.pipeline.compute.tables import SINCE, read_table
from multigate.pipeline.core.columns import (
    counters,
    encoded_features,
    entry_lists,
    history_features,
    table_features,
)
from multigate.pipeline.read.erasure import read_list

_SOURCES = ("users", "items")

_ROUNDING = 1e-3
"""Of an encoder that computes a text's vector again: of a place's range over the table."""


def audit(
    config: Config,
    data: Place | str,
    examples: Path,
    sample: int = 500,
    seed: int = 0,
    *,
    forget: Place | None = None,
) -> dict[str, Any]:
    """Check a sample of examples against the log that they were made from.

    Every example's labels must be those of docs/labels.md, masked where they had not closed before
    the cut-off (`hold_back`) or before the next split began (`embargo`). Its histories and counters
    must be those of the events strictly before it, its rates those of the labels that had closed
    before it, its features of side tables those of the latest
    row that is not later than it. A logged impression must be in the log; a sampled negative must
    have been shown by then (lately, under `recent`), and its user must not have touched it up to
    then (ever, under `exclude: ever`), unless it stands in the user's lists exactly as often as its
    positive does. Nothing but taste may tell sampled negatives from logged impressions. The
    cut-off must be that of docs/labels.md, which no row after the log's end moves.

    Args:
        config: the configuration that made the examples.
        data: the folder that holds the log's files.
        examples: the folder of examples.
        sample: how many examples to check, at most.
        seed: of the sample.
        forget: the list of users that the job was given, whose events count nowhere.

    Returns:
        `examples` and `negatives`: how many were checked; `features`: the features that were
        computed again; `values`: how many values; `giveaway`: see `giveaway.GiveAway`, or None
        where there is nothing to compare.

    Raises:
        DataError: an example differs, by split, number and feature; or the folder was made by
            another contract.
    """
    data, folder = place(data), ExamplesFolder(examples)
    frozen = FrozenContract.read(folder.contract)
    if frozen.schema_fingerprint != config.contract.schema_fingerprint():
        raise DataError(
            f"{folder.contract}: schema fingerprint: expected that of the configuration, "
            f"{config.contract.schema_fingerprint()}, received "
            f"{frozen.schema_fingerprint}: {difference(config.contract, frozen.contract)}; audit "
            "with the configuration that made the examples"
        )
    features = (
        history_features(config)
        | entry_lists(config)
        | counters(config, "user")
        | counters(config, "item")
    )
    rated = config.contract.label_counters()
    tabled = {name: source for source in _SOURCES for name in table_features(config, source)}
    forgotten = read_list(config, data, forget)
    tables = {source: read_table(config, data, source, forgotten) for source in _SOURCES}
    lists = _lists(config)
    names = [*features, *rated, *tabled, *lists, *categories(config)]
    rows = _sample(config, folder, names, sample, seed)
    partners = _partners(config, folder, rows, lists)
    instants = audit_labels.Instants.read(config, folder)
    whole = audit_rates.needs_whole_users(config)
    events, times = events_of(config, data, rows, forgotten, instants.cut_off, whole)
    wrong = audit_labels.wrong_cut_off(config, instants, times)
    if wrong is not None:
        raise DataError(f"{folder.manifest}: cut_off: {wrong}")
    wrong = audit_rates.wrong_prior(config, folder) if rated else None
    if wrong is not None:
        raise DataError(f"{folder.statistics}: {wrong}")
    priors = Statistics.read(folder.statistics).priors
    rates = audit_rates.AuditedRates(config, events, priors, tables["items"])
    items = tables["items"]
    add_categories(events, config, [] if items is None else items.to_dicts())
    by_user, by_item = groups(events, "user"), groups(events, "item")
    for row in progress.track(rows, "audit", len(rows), "examples"):
        user, item = row[config.contract.user], row[config.contract.item]
        own, others = by_user[user], by_item[item]
        where = f"{examples}: {row['split']}: {IMPRESSION} {row[IMPRESSION]}"
        problem = _occurrence(config, row, own, others, lists, partners)
        problem = problem or audit_labels.problem(config, row, own, instants)
        if problem is not None:
            raise DataError(f"{where}: {problem}")
        for name, rule in rated.items():
            problem = rates.problem(name, rule, row)
            if problem is not None:
                raise DataError(f"{where}: feature {name!r}: {problem}")
        for name, feature in features.items():
            if name in rated:
                continue
            past = (
                others if isinstance(feature, NumberFeature) and _side(feature) == "item" else own
            )
            found = row[name]
            once = [event for event in past if not event["repeated"]]
            expected = compute(feature, once, row[TIME], config)
            if expected != found:
                why = _leak(feature, past, once, row[TIME], config, found)
                raise DataError(
                    f"{where}: feature {name!r}: expected {expected!r} from the events before "
                    f"{row[TIME]}, received {found!r}{why}"
                )
    for source, table in tables.items():
        if table is not None:
            _check_table(config, source, table, rows, str(examples))
    users = {row[config.contract.user] for row in rows}
    absent = audit_labels.missing(config, folder, {u: by_user[u] for u in users}, instants)
    if absent is not None:
        raise DataError(f"{examples}: {absent}")
    told = giveaway.check(config, folder, seed)
    return {
        "giveaway": None if told is None else asdict(told),
        "examples": len(rows),
        "negatives": sum(row[SAMPLED] for row in rows),
        "features": list(dict.fromkeys([*features, *rated, *tabled])),
        "values": len(rows) * len({*features, *rated, *tabled}),
    }


def _check_table(
    config: Config, source: str, table: pl.DataFrame, rows: list[Row], examples: str
) -> None:
    """Look up each example's row of a side table again, one row of the table at a time.

    Raises:
        DataError: an example holds something else.
    """
    key = config.contract.user if source == "users" else config.contract.item
    allowed = {name: _rounding(table[name]) for name in encoded_features(config, source)}
    by_id = groups(table.filter(pl.col(key).is_in([row[key] for row in rows])).to_dicts(), key)
    for row in rows:
        known: Row = {}
        for candidate in by_id[row[key]]:  # in the order of time
            since = candidate.get(SINCE)
            if since is None or since.replace(tzinfo=None) <= row[TIME]:
                known = candidate
        for name, feature in table_features(config, source).items():
            expected: Any = known.get(name)
            if isinstance(feature, NumberFeature) and feature.age is not None:
                expected = _age(expected, row[TIME])
            origin, problem = f"the {source} table as of {row[TIME]}", None
            there = expected is not None and row[name] is not None
            if isinstance(feature, VectorFeature) and there:
                problem = _differs(expected, row[name], allowed.get(name), origin)
            elif row[name] != expected:
                problem = f"expected {expected!r} from {origin}, received {row[name]!r}"
            if problem is not None:
                where = f"{examples}: {row['split']}: {IMPRESSION} {row[IMPRESSION]}"
                raise DataError(f"{where}: feature {name!r}: {problem}")


def _rounding(vectors: pl.Series) -> NDArray[np.float64]:
    """How far a vector that an encoder makes again may be from the first one, (size,)."""
    known = np.asarray(vectors.drop_nulls().to_list(), np.float64)
    if not len(known):
        return np.zeros(1)
    range_ = known.max(axis=0) - known.min(axis=0)
    return _ROUNDING * range_ + 8 * np.finfo(np.float32).eps * np.abs(known).max(axis=0)


def _differs(
    expected: list[float], received: list[float], allowed: NDArray[np.float64] | None, origin: str
) -> str | None:
    """Say where a vector differs from that of a side table; None where it does not.

    Args:
        expected: of the table.
        received: of the example.
        allowed: (size,) of what an encoder made, which may round otherwise.
        origin: where the table's is from, in words.
    """
    again, made = np.asarray(expected, np.float64), np.asarray(received, np.float64)
    if again.shape != made.shape:
        return f"expected {len(again)} numbers from {origin}, received {len(made)}"
    places = np.flatnonzero(~(np.abs(again - made) <= (0.0 if allowed is None else allowed)))
    if not len(places):
        return None
    at = places[0]
    hint = "; does its encoder give a text the same vector each time?"
    return (
        f"number {at + 1} of {len(again)}: expected {again[at]} from {origin}, received "
        f"{made[at]}{'' if allowed is None else hint}"
    )


def _age(since: datetime | None, time: datetime | None) -> float | None:
    """Seconds from an instant to an example's time, as the examples hold them."""
    if since is None or time is None:
        return None
    return float(np.float32(max((time - since.replace(tzinfo=None)).total_seconds(), 0.0)))


def _leak(
    feature: Feature,
    past: list[Row],
    once: list[Row],
    time: datetime | None,
    config: Config,
    found: Any,
) -> str:
    """Name the leak that explains a feature's wrong value, for the message."""
    if compute(feature, once, time, config, early=True) == found:
        return "; it counts feedback before it was known (known_after, known_at)"
    if compute(feature, [e for e in once if not e["shares_id"]], time, config) == found:
        return audit_labels.SHARED_IDS
    if compute(feature, past, time, config) == found:
        return "; it counts repeated impressions, which collapse leaves out"
    late = (compute(feature, once, time, config, until) for until in (time, datetime.max))
    return "; it counts what happened at that time or later" if found in late else ""


def _side(feature: NumberFeature) -> str:
    return feature.event_counter.of if feature.event_counter is not None else "user"


def _sample(
    config: Config, folder: ExamplesFolder, features: list[str], sample: int, seed: int
) -> list[Row]:
    """Draw a sample of examples, as rows with their split; times have no zone (UTC)."""
    frames = {name: pl.scan_parquet(folder.split(name) / "*.parquet") for name in SPLITS}
    numbers = pl.concat(frames[name].select(IMPRESSION) for name in SPLITS).collect()
    ordered = numbers[IMPRESSION].sort()
    size = min(sample, len(ordered))
    drawn = np.random.default_rng(seed).choice(len(ordered), size, replace=False)
    chosen = ordered.gather(np.sort(drawn)).implode()
    names = list(dict.fromkeys([config.contract.user, config.contract.item, *features]))
    names += [LABEL + name for name in config.contract.tasks]
    rows = []
    for name, frame in frames.items():
        found = frame.filter(pl.col(IMPRESSION).is_in(chosen))
        found = found.select(*names, plain(TIME), REQUEST, SAMPLED, IMPRESSION, split=pl.lit(name))
        rows += found.collect().to_dicts()
    return rows


def _lists(config: Config) -> list[str]:
    """The user's lists of items, which may contain the candidate item."""
    contract = config.contract
    return [
        name
        for name, feature in contract.features.items()
        if isinstance(feature, IdListFeature)
        and feature.side != "item"
        and (
            feature.history is not None
            or contract.vocabulary_of(name) == contract.vocabulary_of(contract.item)
        )
    ]


def _matches(config: Config, row: Row, lists: list[str]) -> tuple[int, ...]:
    """Count how often each list contains the row's item."""
    return tuple((row[name] or []).count(row[config.contract.item]) for name in lists)


def _partners(
    config: Config, folder: ExamplesFolder, rows: list[Row], lists: list[str]
) -> set[tuple[Any, ...]]:
    """What the logged impressions of the sampled rows' requests match: see `_match_key`."""
    requests = pl.Series([row[REQUEST] for row in rows if row[SAMPLED]], dtype=pl.String)
    found = set()
    for name in SPLITS:
        frame = pl.scan_parquet(folder.split(name) / "*.parquet")
        logged = frame.filter(~pl.col(SAMPLED) & pl.col(REQUEST).is_in(requests.implode()))
        names = dict.fromkeys([config.contract.user, config.contract.item, *lists])
        for row in logged.select(*names, plain(TIME), REQUEST).collect().to_dicts():
            found.add(_match_key(config, row, lists))
    return found


def _match_key(config: Config, row: Row, lists: list[str]) -> tuple[Any, ...]:
    """Request, user, time and match counts: what a negative that matches shares with a positive."""
    key = (row[REQUEST], row[config.contract.user], row[TIME])
    return (*key, _matches(config, row, lists))


def _occurrence(
    config: Config,
    row: Row,
    own: list[Row],
    others: list[Row],
    lists: list[str],
    partners: set[tuple[Any, ...]],
) -> str | None:
    """Say why the run should not have made an example, if it should not have.

    Args:
        config: the configuration.
        row: the example.
        own: its user's events.
        others: its item's events.
        lists: see `_lists`.
        partners: see `_partners`.
    """
    log, negatives, time = config.pipeline.log, config.pipeline.negatives, row[TIME]
    shown = [e for e in others if not isinstance(log, EventLog) or e["event"] == log.impression]
    if not row[SAMPLED]:
        user = row[config.contract.user]
        if any(e["user"] == user and e["time"] == time for e in shown):
            return None
        return "the log has no impression of this user and item at this time"
    if negatives is None:
        return "a sampled negative, and pipeline.negatives asks for none"
    ever = negatives.exclude == "ever"
    matches = dict(zip(lists, _matches(config, row, lists), strict=True))
    if any(matches.values()):
        if _match_key(config, row, lists) not in partners:
            stands = ", ".join(f"{count} times in {name!r}" for name, count in matches.items())
            return f"a sampled negative that stands {stands}, and no positive of its request does"
        own = []  # the positive had been touched as well
    for event in own:
        known = ever or event["time"] is None or (time is not None and event["time"] <= time)
        within = negatives.exclude_within
        if known and within is not None and event["time"] < time - within:
            continue
        if known and event["item"] == row[config.contract.item]:
            return f"a sampled negative that its user had touched at {event['time']}"
    if ever and negatives.recent is None:
        return None
    if time is None:
        return "a sampled negative of a positive whose time is unknown"
    since = datetime.min if negatives.recent is None else time - negatives.recent
    if any(e["time"] is not None and since <= e["time"] < time for e in shown):
        return None
    return f"a sampled negative that was not shown between {since} and {time}"
