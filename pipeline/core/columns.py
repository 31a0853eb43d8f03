"""Names and types of the tables inside the job, and which columns of the files they need."""

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from multigate.configs import Config, ConfigError
from multigate.configs.contract import VISIT, Feature, IdFeature, IdListFeature, NumberFeature
from multigate.configs.errors import one_line
from multigate.configs.files import IMPRESSION, LABEL, REQUEST, SAMPLED, TIME, WEIGHT
from multigate.configs.sections.labels import ColumnLabel, DwellLabel, EventLabel, RatioLabel
from multigate.configs.sections.log import EventLog

# Columns of normalised events: user, item, time; event, value, session, request, weight and
# event_id where the log has them; two hashes, by which events are told apart:
#   identity: the event id of this user where the row has one (and the item, where a row of the
#     file became one for each item), else user, item, time, event and request. Random splits, draws
#     and the numbers of impressions depend on it alone.
#   fingerprint: all columns that the configuration reads, as typed. Rows without an event id are
#     duplicates where it is equal.
# and:
FEATURE = "feature/"  # a feature's value
COLUMN = "column/"  # a number that labels, histories or counters read
ENTRY = "entry/"  # an item's feature as of an event, for histories
KNOWN = "known/"  # when a feedback column of an impression log is known

# Column of impressions, where negatives are downsampled:
POSITIVE = "__positive"  # a label for `downsample` is 1, whichever run and split may hold it


def log_features(config: Config) -> dict[str, Feature]:
    """The features that columns of the log hold, besides the user's and the item's ids."""
    contract = config.contract
    return {
        name: feature
        for name, feature in contract.features.items()
        if feature.source == "log"
        and name not in (contract.user, contract.item)
        and not (isinstance(feature, IdListFeature) and (feature.history or feature.entry))
        and not (isinstance(feature, NumberFeature) and feature.counter is not None)
    }


def table_features(config: Config, source: str) -> dict[str, Feature]:
    """The features that the side table `source` (`users` or `items`) holds."""
    features = config.contract.features
    return {name: feature for name, feature in features.items() if feature.source == source}


def missing_or_needed(features: Mapping[str, Feature]) -> tuple[set[str], set[str]]:
    """Columns of features that may be missing, and of features that may not."""
    columns = {True: set[str](), False: set[str]()}
    for name, feature in features.items():
        columns[feature.missing != "error"].add(feature.column or name)
    return columns[True], columns[False]


def encoded_features(config: Config, source: str) -> dict[str, Feature]:
    """The features of a side table that its encoders make."""
    rules = getattr(config.pipeline, source).encode
    features = table_features(config, source)
    return {name: one for name, one in features.items() if (one.column or name) in rules}


def history_features(config: Config) -> dict[str, IdListFeature]:
    """The features that are computed from the user's past."""
    return {
        name: feature
        for name, feature in config.contract.features.items()
        if isinstance(feature, IdListFeature) and feature.history is not None
    }


def entry_lists(config: Config) -> dict[str, IdListFeature]:
    """The lists beside histories, see `History.with_`."""
    return {
        name: feature
        for name, feature in config.contract.features.items()
        if isinstance(feature, IdListFeature) and feature.entry is not None
    }


def entry_categories(config: Config) -> list[str]:
    """The item's features that histories hold of each entry."""
    features = config.contract.features
    wanted = {f.entry.what for f in entry_lists(config).values() if f.entry is not None}
    return sorted(wanted & features.keys() - {"event", "age"})


def counters(config: Config, of: str) -> dict[str, NumberFeature]:
    """The numbers that are computed from past events of the `user` or of the `item`."""
    return {
        name: feature
        for name, feature in config.contract.features.items()
        if isinstance(feature, NumberFeature)
        and feature.counter is not None
        and feature.counter.of == of
    }


def number_columns(config: Config) -> list[str]:
    """The columns that labels, histories and counters read as numbers.

    Of an event log: the divisors of its values.
    """
    names: list[str] = []
    for task in config.contract.tasks.values():
        rule = task.label
        if isinstance(rule, ColumnLabel | RatioLabel):
            names += rule.columns
        elif isinstance(rule, EventLabel) and rule.over is not None:
            names.append(rule.over)
    if isinstance(config.pipeline.log, EventLog):
        return sorted(set(names))
    return sorted({*names, *feedback_columns(config)})


def feedback_columns(config: Config) -> set[str]:
    """The feedback columns of an impression log that histories and counters read."""
    if isinstance(config.pipeline.log, EventLog):
        return set()
    events = config.contract.computed_events().values()
    return {name for names in events for name in names if name != "impression"}


def known_columns(config: Config) -> list[str]:
    """The columns that say when feedback was known, for labels, histories and counters."""
    log = config.pipeline.log
    if isinstance(log, EventLog):
        return []
    names = feedback_columns(config)
    if log.known_after is not None:  # where labels from columns close
        for task in config.contract.tasks.values():
            if isinstance(task.label, ColumnLabel | RatioLabel):
                names |= set(task.label.columns)
    return sorted({log.known_at[name] for name in names if name in log.known_at})


def event_types(config: Config) -> dict[str, str]:
    """Event types that the configuration names, and where it does; `impression` left out."""
    log = config.pipeline.log
    if not isinstance(log, EventLog):
        return {}
    found = {log.impression: "pipeline.log.impression"}
    for where, events in config.contract.computed_events().items():
        for event in events:
            if event != "impression":
                found.setdefault(event, f"contract.features.{where}")
    for name, task in config.contract.tasks.items():
        if isinstance(task.label, EventLabel):
            for event in task.label.events:
                found.setdefault(event, f"contract.tasks.{name}.label.events")
        if isinstance(task.label, DwellLabel) and isinstance(task.label.ends, tuple):
            for event in task.label.ends:
                found.setdefault(event, f"contract.tasks.{name}.label.ends")
    return found


def example_schema(config: Config) -> pa.Schema:
    """The columns of the examples, in the contract's order."""
    fields = [(name, arrow_type(f)) for name, f in config.contract.features.items()]
    fields += [(LABEL + name, pa.float32()) for name in config.contract.tasks]
    fields += [
        (TIME, pa.timestamp("us", "UTC")),
        (REQUEST, pa.string()),
        (SAMPLED, pa.bool_()),
        (IMPRESSION, pa.int64()),
    ]
    if config.pipeline.log.columns.weight is not None:
        fields.append((WEIGHT, pa.float32()))
    return pa.schema(fields)


def arrow_type(feature: Feature) -> pa.DataType:
    """The Parquet type of a feature's raw value."""
    if feature.kind == "number":
        return pa.float32()
    if feature.kind == "vector":
        return pa.list_(pa.float32())
    if feature.kind == "position":
        return pa.int64()
    value = pa.string() if feature.dtype == "string" else pa.int64()
    return pa.list_(value) if feature.kind == "id_list" else value


def check(config: Config) -> None:
    """Check that the contract fits the log's shape.

    Raises:
        ConfigError: the user or the item is no column of the log, a side table is missing, or
            negatives would lack a feature that every example must have.
    """
    contract, columns = config.contract, config.pipeline.log.columns
    for name, column in ((contract.user, columns.user), (contract.item, columns.item)):
        feature = contract.features[name]
        if name == VISIT:
            if column is None:
                _check_visits(config)
            continue
        if column is None:
            raise ConfigError(
                f"pipeline.log.columns.user: required: contract.user is {name!r}; name the column "
                "that holds it, or leave contract.user out"
            )
        if feature.source != "log" or (feature.column or name) != column:
            where = f"{feature.source} column {feature.column or name!r}"
            raise ConfigError(
                f"contract.features.{name}: expected the log's column {column!r}, which "
                f"pipeline.log.columns names; received {where}"
            )
    for source in ("users", "items"):
        names = table_features(config, source)
        if names and getattr(config.pipeline, source) is None:
            raise ConfigError(
                f"contract.features.{next(iter(names))}: source: {source} needs pipeline.{source}"
            )
        wrong = [n for n, f in names.items() if f.side == ("item" if source == "users" else "user")]
        if wrong:
            raise ConfigError(
                f"contract.features.{wrong[0]}: a feature of the {source} table cannot be of side "
                f"{names[wrong[0]].side!r}"
            )
    _check_ever(config)
    for name, feature in contract.features.items():
        pattern = getattr(feature, "pattern", None)
        if pattern is not None:
            _check_pattern(name, pattern)


def _check_visits(config: Config) -> None:
    """Where the log names no users, no feature can be of a user's past."""
    features = {**history_features(config), **counters(config, "user")}
    features |= {name: config.contract.features[name] for name in config.contract.crosses()}
    if features:
        raise ConfigError(
            f"contract.features.{next(iter(features))}: is of the user's past, and the log names "
            "no user; name the user's column under pipeline.log.columns.user (derive makes one of "
            "several columns), or leave the feature out (of rates: of: [item])"
        )


def _check_ever(config: Config) -> None:
    """Of all items that are ever shown, some have no row in a dated table yet."""
    pipeline = config.pipeline
    if pipeline.negatives is None or pipeline.negatives.exclude != "ever":
        return
    needed = [n for n, f in table_features(config, "items").items() if f.missing == "error"]
    if needed and pipeline.items is not None and pipeline.items.time is not None:
        raise ConfigError(
            f"pipeline.negatives.exclude: 'ever' draws items that the dated table pipeline.items "
            f"holds only later, and contract.features.{needed[0]} may not be missing; take "
            "exclude: past, or missing: indicator"
        )


def _check_pattern(name: str, pattern: str) -> None:
    """Polars' expressions are those of Rust: some of Python's are unknown there."""
    try:
        pl.Series([""]).str.extract(pattern, 1)
    except pl.exceptions.ComputeError as error:
        reason = one_line(error)
        raise ConfigError(f"contract.features.{name}.pattern: {pattern!r}: {reason}") from None


def id_type(config: Config, name: str) -> str:
    """`string` or `int`: the type of the user's or the item's id."""
    feature = config.contract.features[name]
    return feature.dtype if isinstance(feature, IdFeature) else "string"
