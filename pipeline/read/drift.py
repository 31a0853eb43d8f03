"""Schema drift: files of one log that differ in format, columns, names or types.

| a file ...                             | is read as                                             |
| -------------------------------------- | ------------------------------------------------------ |
| has another format (`type: mixed`)     | its name says                                          |
| lacks a column of a feature            | missing values, where the feature allows them          |
| has an earlier name of a column        | the column (`rename`)                                  |
| lacks a column that its folder names   | the folder's value: `country=DE/part.parquet` (Hive)   |
| has another type that reads alike      | the values; where they do not, one error names both    |
"""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import polars as pl

from multigate.configs import Config, ConfigError, DataError
from multigate.configs.contract import IdFeature
from multigate.configs.sections.derive import sources
from multigate.configs.sections.log import (
    Format,
    JsonLinesFormat,
    MixedFormat,
    OrcFormat,
    ParquetFormat,
)
from multigate.pipeline.core.columns import (
    known_columns,
    log_features,
    missing_or_needed,
    number_columns,
)
from multigate.pipeline.core.facts import ShardFacts
from multigate.pipeline.read.json_lines import as_text

_PACKED = re.compile(r"\.(gz|bz2|xz|zst)$")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_DELIMITED, _LINES = (".csv", ".tsv", ".txt"), (".jsonl", ".ndjson", ".json")


def is_marker(name: str, patterns: Sequence[str] = ()) -> bool:
    """Whether a file is no data, such as `_SUCCESS`, `.part.crc` or `_delta_log/0.json`.

    As in Spark: its name, or that of a folder that it lies in, begins with `.`, or with `_` and has
    no `=`.

    Args:
        name: of the file, relative to the data folder.
        patterns: of the log's files; names that they spell out are data.
    """
    spelled = {part for pattern in patterns for part in pattern.split("/")}
    return any(
        part.startswith(".") or (part.startswith("_") and "=" not in part)
        for part in name.split("/")
        if part not in spelled
    )


def format_of(form: Format, name: str) -> Format:
    """The format of one file.

    Args:
        form: of the log.
        name: of the file; `archive.zip#member` counts as the member.

    Raises:
        DataError: `mixed`, and the name says no format.
    """
    if not isinstance(form, MixedFormat):
        return form
    plain = _PACKED.sub("", name.rpartition("#")[2].lower())
    nulls = form.null_values
    if plain.endswith(_DELIMITED):
        changes = {"delimiter": "\t"} if plain.endswith(".tsv") else {}
        both = tuple(dict.fromkeys([*nulls, *form.csv.null_values]))
        return form.csv.model_copy(update={**changes, "null_values": both})
    if plain.endswith(_LINES):
        return JsonLinesFormat(type="jsonl", null_values=nulls)
    if plain.endswith(".parquet"):
        return ParquetFormat(type="parquet", null_values=nulls)
    if plain.endswith(".orc"):
        return OrcFormat(type="orc", null_values=nulls)
    raise DataError(
        f"{name}: format mixed: expected a name that ends in .csv, .tsv, .txt, .jsonl, .ndjson, "
        ".json, .parquet or .orc; rename the file, or name its format and give it a glob of its own"
    )


def check_rename(rename: Mapping[str, Sequence[str]], wanted: Sequence[str], where: str) -> None:
    """Refuse earlier names that are of no use, or of a column that the configuration reads.

    Args:
        rename: the earlier names of columns.
        wanted: the columns that the configuration reads.
        where: the key, for messages.

    Raises:
        ConfigError: the first of them.
    """
    for name, earlier in rename.items():
        if name not in wanted:
            raise ConfigError(
                f"{where}: expected columns that the configuration reads ({', '.join(wanted)}), "
                f"received {name!r}"
            )
        for old in earlier:
            if old in wanted:
                raise ConfigError(
                    f"{where}: {old!r} cannot be an earlier name of {name!r}: the configuration "
                    "reads it as a column of its own"
                )


def renamed(
    frame: pl.DataFrame,
    rename: Mapping[str, Sequence[str]],
    separators: Mapping[str, str],
) -> pl.DataFrame:
    """Rename columns that have an earlier name.

    In each row, the newest name that has a value counts. Where one name holds lists and another
    one texts, all become texts, with the column's separator (`|` without one) between the values.
    """
    for name, earlier in rename.items():
        found = [n for n in (name, *earlier) if n in frame.columns]
        if not found or found == [name]:
            continue
        texts = [pl.col(n).replace("", None) for n in found if frame[n].dtype == pl.String]
        frame = frame.with_columns(texts)  # an empty text is a missing value
        columns = [frame[n] for n in found]
        if len({str(column.dtype) for column in columns}) > 1:
            columns = [as_text(column, separators.get(name, "|")) for column in columns]
        first = pl.DataFrame([c.alias(str(at)) for at, c in enumerate(columns)])
        values = first.select(pl.coalesce(pl.all())).to_series().alias(name)
        frame = frame.drop(found).with_columns(values)
    return frame


def partitions(name: str, absent: Sequence[str]) -> dict[str, str | None]:
    """The values of columns that a file lacks and its folders name, as Hive and Spark write them.

    Args:
        name: of the file, such as `country=DE/part.parquet`.
        absent: the wanted columns that the file lacks.
    """
    found: dict[str, str | None] = {}
    for part in name.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and unquote(key) in absent:
            found[unquote(key)] = None if value == _HIVE_NULL else unquote(value)
    return found


def optional_columns(config: Config, feedback: bool) -> set[str]:
    """The log's columns that files may lack: only features read them, and these may be missing."""
    if feedback:
        return set()
    log = config.pipeline.log
    allowing, needed = missing_or_needed(log_features(config))
    needed |= {name for name in log.columns.model_dump().values() if name is not None}
    needed |= {*number_columns(config), *known_columns(config)}
    return sources(log.derive, allowing) - sources(log.derive, needed)


def absent_columns(config: Config, shards: Sequence[ShardFacts]) -> list[str]:
    """Name the columns that some files lack, one line each. JSON files are not checked."""
    lines = []
    asked = [shard for shard in shards if shard.columns and not shard.feedback]
    asked = [s for s in asked if not isinstance(form_of(config, s), JsonLinesFormat)]
    files = sorted({shard.file for shard in asked})
    for name in sorted(optional_columns(config, feedback=False)):
        without = sorted({shard.file for shard in asked if name not in shard.columns})
        if without:
            lines.append(
                f"column {name!r} is absent from {len(without)} of {len(files)} files, the first "
                f"of them {without[0]}: its values are missing there; if it has another name in "
                "them, list that name under rename"
            )
    return lines


def form_of(config: Config, shard: ShardFacts) -> Format:
    """The format of a file that was read."""
    return format_of(config.pipeline.log.side(shard.feedback).format, shard.file)


def changed_type(config: Config, shards: Sequence[ShardFacts]) -> str | None:
    """Name a column that has another type in some file, if its values cannot be used.

    A type that reads alike is no problem: numbers as text, timestamps for numbers.

    Args:
        config: what the columns hold.
        shards: what was read, in the order of the files.
    """
    for feedback in (False, True):
        side = [shard for shard in shards if shard.feedback == feedback and shard.types]
        for column in sorted({name for shard in side for name in shard.types}):
            known = [shard for shard in side if column in shard.types]
            first = known[0]
            for shard in known[1:]:
                if _kind(shard.types[column]) == _kind(first.types[column]):
                    continue
                why = _unlike(config, column, first, shard)
                if why is None:
                    continue
                wrong, group, reason = why
                other = first if wrong is shard else shard
                return (
                    f"{wrong.file}, row group {group}: column {column!r} has type "
                    f"{wrong.types[column]}, in {other.file} it has {other.types[column]}: {reason}"
                    "; write one type in all files, or give the new column a name of its own"
                )
    return None


def _kind(type_: str) -> str:
    """Types of one kind give the same values, whatever their width."""
    if type_.startswith(("int", "uint")):
        return "integer"
    for kind in ("string", "timestamp"):  # large_string, string_view, timestamp[us]
        if kind in type_.partition("[")[0] and not type_.startswith(("list", "large_list")):
            return kind
    return "float" if type_ in ("float", "double", "halffloat") else type_


def _unlike(
    config: Config, column: str, first: ShardFacts, shard: ShardFacts
) -> tuple[ShardFacts, int, str] | None:
    """Which of two files cannot be used together with the other, the row group, and why."""
    names = _names(config, column, shard.feedback)
    for one in (shard, first):
        for reason, (group, count) in one.reject_groups.items():
            if reason.partition(":")[0] in names and count > (
                config.pipeline.max_reject_rate * one.rows
            ):
                return one, group, f"{count} of {one.rows} rows were rejected ({reason})"
    kinds = {_kind(one.types[column]) for one in (first, shard)}
    if "float" in kinds and len(kinds) > 1 and _is_text_id(config, column, shard.feedback):
        return shard, shard.first_group, "as ids, 12 and 12.0 are two texts"
    return None


def _names(config: Config, column: str, feedback: bool) -> set[str]:
    """What rejects call a column: its roles and features."""
    columns, derive = _roles(config, feedback), config.pipeline.log.side(feedback).derive
    made = {name for name in derive if column in sources(derive, {name})} | {column}
    found = {role for role, name in columns.items() if name in made} | {column}
    features = {} if feedback else log_features(config)
    return found | {n for n, f in features.items() if (f.column or n) in made}


def _is_text_id(config: Config, column: str, feedback: bool) -> bool:
    """Whether a column holds ids that are texts."""
    contract, columns = config.contract, _roles(config, feedback)
    features = [contract.features[contract.user], contract.features[contract.item]]
    named = [columns.get("user"), columns.get("item")]
    ids = [(f, name) for f, name in zip(features, named, strict=True)]
    ids += [] if feedback else [(f, f.column or n) for n, f in log_features(config).items()]
    texts = {name for f, name in ids if isinstance(f, IdFeature) and f.dtype == "string"}
    texts |= {columns.get(role) for role in ("event_id", "session", "request", "event")}
    derive = config.pipeline.log.side(feedback).derive
    whole = {
        name for name, rule in derive.items() if rule.hour_of or rule.weekday_of or rule.number
    }
    return column in sources(derive, {name for name in texts - whole if name is not None})


def _roles(config: Config, feedback: bool) -> dict[str, str | None]:
    return dict(config.pipeline.log.side(feedback).columns.model_dump())
