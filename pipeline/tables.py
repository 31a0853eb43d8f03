"""Side tables of users and items: read whole, checked, joined by id."""

from pathlib import Path

import polars as pl

from configs import Config, DataError
from pipeline.columns import id_type, table_features
from pipeline.normalise import parse_feature, parse_id
from pipeline.sources import expand, read

_KEY = {"users": "user", "items": "item"}


def read_table(config: Config, data: Path | str, source: str) -> pl.DataFrame | None:
    """Read the side table `source` (`users` or `items`).

    Returns:
        The key under the name of the user or item feature, and the table's features; None where
        the configuration has no such table. Sorted by key.

    Raises:
        DataError: the table's files, columns or values cannot be used; a table is small and
            written on purpose, so that its first bad row stops the job.
    """
    table = getattr(config.pipeline, source)
    if table is None:
        return None
    key = getattr(config.contract, _KEY[source])
    features = table_features(config, source)
    wanted = {table.key, *(feature.column or name for name, feature in features.items())}
    frames = []
    for shard in expand(data, table.files):
        where = f"pipeline.{source}: {shard.name}"
        for chunk in read(shard, table.format, sorted(wanted)):
            missing = sorted(wanted - set(chunk.columns))
            if len(chunk.rejects):
                line, reason, _ = chunk.rejects.row(0)
                raise DataError(f"{where}: line {line}: {reason}")
            if missing:
                raise DataError(
                    f"{where}: no column {missing[0]!r}; the file has {', '.join(chunk.columns)}"
                )
            parsed = {key: parse_id(chunk.frame[table.key], id_type(config, key))}
            for name, feature in features.items():
                parsed[name] = parse_feature(chunk.frame[feature.column or name], feature)
            for name, column in parsed.items():
                reasons = column.reasons.to_frame("reason").with_row_index("at").drop_nulls()
                if len(reasons):
                    line = chunk.line[reasons["at"][0]]
                    raise DataError(f"{where}: line {line}: {name}: {reasons['reason'][0]}")
            frames.append(pl.DataFrame([c.values.alias(n) for n, c in parsed.items()]))
    if not frames or not sum(len(frame) for frame in frames):
        raise DataError(f"pipeline.{source}: {', '.join(table.files)}: the table has no rows")
    rows = pl.concat(frames).unique(maintain_order=True)
    empty, twice = rows[key].is_null(), rows[key].is_duplicated()
    if empty.any():
        raise DataError(f"pipeline.{source}: a row has no {table.key}; every row needs its id")
    if twice.any():
        raise DataError(
            f"pipeline.{source}: {table.key} {rows.filter(twice)[key][0]!r} has several different "
            "rows; expected one row per id"
        )
    return rows.sort(key)


def join(frame: pl.DataFrame, config: Config, source: str, table: pl.DataFrame) -> pl.DataFrame:
    """Add the features of a side table, null where the table lacks the id."""
    key = getattr(config.contract, _KEY[source])
    names = list(table_features(config, source))
    return frame.join(table.select(key, *names), on=key, how="left", maintain_order="left")


def required(config: Config, source: str) -> list[str]:
    """The features of a side table that every example must have."""
    return [n for n, f in table_features(config, source).items() if f.missing == "error"]
