"""Which files the job reads, and what their columns hold.

A log is one set of files, or two: impressions (such as the server's log) and feedback.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from multigate.configs import Config
from multigate.configs.contract import IdListFeature, VectorFeature
from multigate.configs.sections.derive import Derived, Explode, sources, with_read
from multigate.configs.sections.log import (
    EventColumns,
    EventLog,
    Format,
    ImpressionColumns,
    MixedFormat,
)
from multigate.configs.storage import Place
from multigate.pipeline.core.columns import known_columns, log_features, number_columns
from multigate.pipeline.read import drift, ranges
from multigate.pipeline.read.derive import derive, explode
from multigate.pipeline.read.sources import Chunk, Shard, expand, read


def shards(config: Config, data: Place) -> list[Shard]:
    """All files of the log.

    Raises:
        DataError: no such folder, or no file for a pattern.
    """
    log = config.pipeline.log
    found = _files(config, data, log.files, feedback=False)
    if isinstance(log, EventLog) and log.feedback is not None:
        more = _files(config, data, log.feedback.files, feedback=True)
        found += [replace(shard, feedback=True) for shard in more]
    return found


def _files(config: Config, data: Place, patterns: tuple[str, ...], feedback: bool) -> list[Shard]:
    """The files of one side of the log, each of a known format."""
    where = f"pipeline.log.{'feedback.' if feedback else ''}rename"
    drift.check_rename(rename(config, feedback), wanted_columns(config, feedback), where)
    found, mixed = expand(data, patterns), form(config, feedback)
    if isinstance(mixed, MixedFormat):
        found = [shard for shard in found if not drift.is_marker(shard.name, patterns)]
        for shard in found:
            drift.format_of(mixed, shard.name)
    return found


def read_log(config: Config, shard: Shard) -> Iterator[Chunk]:
    """Read one file of the log, as `sources.read` does, with the derived columns beside its own."""
    side, log = shard.feedback, config.pipeline.log
    wanted, single = wanted_columns(config, side), single_columns(config, side)
    rules = with_read(derived(config, side), _named(config, side))
    _, unit = roles(config, side)
    dividing, old = separators(config, side), rename(config, side)
    for chunk in read(shard, form(config, side), wanted, single, old, dividing):
        yield derive(explode(chunk, exploded(config)), rules, unit, log.unknown_time, log.time_zone)


def divide_log(config: Config, found: list[Shard]) -> list[Shard]:
    """Divide large files among workers."""
    parts: list[Shard] = []
    longest = ranges.longest_part(found)
    for feedback in (False, True):
        earlier = [name for names in rename(config, feedback).values() for name in names]
        wanted = [*wanted_columns(config, feedback), *earlier]
        for shard in found:
            if shard.feedback == feedback:
                format_ = drift.format_of(form(config, feedback), shard.name)
                parts += ranges.divide_shards([shard], format_, wanted, longest)
    return parts


def form(config: Config, feedback: bool) -> Format:
    """The format of the log's files, or of its feedback's files."""
    return config.pipeline.log.side(feedback).format


def rename(config: Config, feedback: bool) -> dict[str, tuple[str, ...]]:
    """The earlier names of the columns, in the log's files or in its feedback's files."""
    return config.pipeline.log.side(feedback).rename


def derived(config: Config, feedback: bool) -> dict[str, Derived]:
    """The derived columns of the log's files, or of its feedback's files."""
    return config.pipeline.log.side(feedback).derive


def exploded(config: Config) -> Explode | None:
    """Which columns hold lists that become rows."""
    return getattr(config.pipeline.log, "explode", None)


def roles(config: Config, feedback: bool) -> tuple[EventColumns | ImpressionColumns, str]:
    """The columns' roles and the time's unit, in the log's files or in its feedback's files."""
    side = config.pipeline.log.side(feedback)
    return side.columns, side.time_unit


def role_exists(config: Config, role: str) -> bool:
    """Whether any of the log's files have a column for a role."""
    return any(getattr(roles(config, side)[0], role, None) is not None for side in (False, True))


def single_columns(config: Config, feedback: bool = False) -> set[str]:
    """The wanted columns that hold one value a row and no list."""
    vectors = {
        feature.column or name
        for name, feature in ({} if feedback else log_features(config)).items()
        if isinstance(feature, VectorFeature)
    } - derived(config, feedback).keys()
    lists = {name for name, _ in _lists(config, feedback)}
    return set(wanted_columns(config, feedback)) - lists - vectors


def separators(config: Config, feedback: bool = False) -> dict[str, str]:
    """By wanted column of lists, what divides one that is written as a text; see `one_of_each`."""
    return one_of_each(_lists(config, feedback))


def one_of_each(readers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The separator of each column, where all that read it as lists divide it alike.

    Args:
        readers: what `list_readers` gives. Vectors are not among them: any separator does for
            numbers, which hold none.
    """
    found: dict[str, set[str]] = {}
    for name, separator in readers:
        found.setdefault(name, set()).add(separator)
    return {name: by.pop() for name, by in found.items() if len(by) == 1}


def list_readers(
    features: Mapping[str, Any], made: Mapping[str, Derived], rules: Iterable[Derived]
) -> Iterator[tuple[str, str]]:
    """Each reader of a column of lists: the column, and what divides its texts.

    Args:
        features: of some files.
        made: the derived columns, which the files do not hold.
        rules: of derived columns that are made.
    """
    for name, feature in features.items():
        if isinstance(feature, IdListFeature) and (feature.column or name) not in made:
            yield feature.column or name, feature.separator
    for rule in rules:
        if rule.reads_list is not None:
            yield rule.reads_list, rule.separator


def _lists(config: Config, feedback: bool) -> Iterator[tuple[str, str]]:
    """The readers of the log's columns of lists, or of its feedback's."""
    made = derived(config, feedback)
    rules = with_read(made, _named(config, feedback)).values()
    yield from list_readers({} if feedback else log_features(config), made, rules)
    if (whole := exploded(config)) is not None:
        yield from ((name, whole.separator) for name in whole.columns)


def wanted_columns(config: Config, feedback: bool = False) -> list[str]:
    """All columns that the job reads from the log's files, or from its feedback's files."""
    return sorted(sources(derived(config, feedback), _named(config, feedback)))


def _named(config: Config, feedback: bool) -> set[str]:
    """The columns that the configuration names, derived ones among them."""
    columns, _ = roles(config, feedback)
    names = {name for name in columns.model_dump().values() if name is not None}
    log = config.pipeline.log
    apart = isinstance(log, EventLog) and log.feedback is not None
    if not feedback:
        names |= {feature.column or name for name, feature in log_features(config).items()}
    if feedback or not apart:
        names |= {*number_columns(config), *known_columns(config)}
    return names
