"""Makes one row for each value of a row's lists, such as the items that a request showed."""

from dataclasses import replace

import polars as pl

from multigate.configs.sections.derive import Explode
from multigate.pipeline.read.json_lines import as_text
from multigate.pipeline.read.lines import reject
from multigate.pipeline.read.sources import Chunk

PLACE = "__place"
"""The column that holds each value's place in its list, from 0."""


def explode(chunk: Chunk, rule: Explode | None) -> Chunk:
    """Make one row for each value of the lists of a row.

    Args:
        chunk: raw rows (B,). A column that the file lacks holds no values.
        rule: which columns hold lists; None leaves the rows as they are.

    Returns:
        The rows, each with the line and the text that it comes from, and `PLACE`. Rows whose lists
        differ in length are rejects; a row with empty lists vanishes.
    """
    if rule is None or not chunk.columns:
        return chunk
    names = [name for name in rule.columns if name in chunk.frame.columns]
    lists = chunk.frame.with_columns(as_lists(chunk.frame[n], rule.separator) for n in names)
    lengths = [pl.col(name).list.len() for name in names]
    frame = lists.with_columns(
        __line=chunk.line,
        __text=chunk.text,
        __length=pl.max_horizontal(lengths) if names else pl.lit(0),
        __least=pl.min_horizontal(lengths) if names else pl.lit(0),
    )
    uneven = frame.filter(pl.col("__least") != pl.col("__length"))
    rejects = [
        reject(line, f"{' and '.join(names)}: expected lists of one length", text)
        for line, text in uneven.select("__line", "__text").iter_rows()
    ]
    even = frame.filter((pl.col("__least") == pl.col("__length")) & (pl.col("__length") > 0))
    places = pl.int_ranges(0, pl.col("__length")).alias(PLACE)
    rows = even.with_columns(places).explode(*names, PLACE)
    return replace(
        chunk,
        frame=rows.drop("__line", "__text", "__length", "__least"),
        line=rows["__line"].alias(chunk.line.name),
        text=rows["__text"].alias(chunk.text.name),
        rejects=pl.concat([chunk.rejects, *rejects]) if rejects else chunk.rejects,
    )


def as_lists(column: pl.Series, separator: str) -> pl.Series:
    """Lists of texts (B,), of lists or of texts that `separator` splits; empty ones are null."""
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if isinstance(column.dtype, pl.List):
        lists = column.cast(pl.List(pl.String))
    else:
        text = as_text(column).str.strip_chars()
        lists = text.replace("", None).str.split(separator)
    return lists.list.eval(pl.element().str.strip_chars().replace("", None)).list.drop_nulls()
