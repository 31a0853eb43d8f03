"""Which files the job reads, and what their columns hold.

A log is one set of files, or two: impressions (such as the server's log) and feedback.
"""

from dataclasses import replace
from pathlib import Path

from multigate.configs import Config
from multigate.configs.contract import IdListFeature, VectorFeature
from multigate.configs.sections.log import EventColumns, EventLog, Format, ImpressionColumns
from multigate.pipeline import ranges
from multigate.pipeline.columns import known_columns, log_features, number_columns
from multigate.pipeline.sources import Shard, expand


def shards(config: Config, data: Path | str) -> list[Shard]:
    """All files of the log.

    Raises:
        DataError: no such folder, or no file for a pattern.
    """
    log = config.pipeline.log
    found = expand(data, log.files)
    if isinstance(log, EventLog) and log.feedback is not None:
        more = expand(data, log.feedback.files)
        found += [replace(shard, feedback=True) for shard in more]
    return found


def divide_log(config: Config, found: list[Shard]) -> list[Shard]:
    """Divide large files among workers."""
    parts: list[Shard] = []
    for feedback in (False, True):
        of_side = [shard for shard in found if shard.feedback == feedback]
        parts += ranges.divide_shards(
            of_side, form(config, feedback), wanted_columns(config, feedback)
        )
    return parts


def form(config: Config, feedback: bool) -> Format:
    """The format of the log's files, or of its feedback's files."""
    log = config.pipeline.log
    if feedback and isinstance(log, EventLog) and log.feedback is not None:
        return log.feedback.format
    return log.format


def roles(config: Config, feedback: bool) -> tuple[EventColumns | ImpressionColumns, str]:
    """The columns' roles and the time's unit, in the log's files or in its feedback's files."""
    log = config.pipeline.log
    if feedback and isinstance(log, EventLog) and log.feedback is not None:
        return log.feedback.columns, log.feedback.time_unit
    return log.columns, log.time_unit


def role_exists(config: Config, role: str) -> bool:
    """Whether any of the log's files have a column for a role."""
    return any(getattr(roles(config, side)[0], role, None) is not None for side in (False, True))


def single_columns(config: Config, feedback: bool = False) -> set[str]:
    """The wanted columns that hold one value a row and no list."""
    lists = {
        feature.column or name
        for name, feature in log_features(config).items()
        if isinstance(feature, IdListFeature | VectorFeature)
    }
    return set(wanted_columns(config, feedback)) - (set() if feedback else lists)


def wanted_columns(config: Config, feedback: bool = False) -> list[str]:
    """All columns that the job reads from the log's files, or from its feedback's files."""
    columns, _ = roles(config, feedback)
    names = {name for name in columns.model_dump().values() if name is not None}
    log = config.pipeline.log
    apart = isinstance(log, EventLog) and log.feedback is not None
    if not feedback:
        names |= {feature.column or name for name, feature in log_features(config).items()}
    if feedback or not apart:
        names |= {*number_columns(config), *known_columns(config)}
    return sorted(names)
