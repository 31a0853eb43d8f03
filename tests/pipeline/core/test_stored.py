"""Files of a store are scanned as local ones are: columns, filters, first rows, several parts."""

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.pipeline.core import stored

ROWS = pl.DataFrame(
    {
        "id": pl.Series(range(1000), dtype=pl.Int64),
        "text": [None if at % 7 == 0 else f"t{at % 5}" for at in range(1000)],
        "list": [[at] * (at % 3) for at in range(1000)],
        "flag": [at % 2 == 0 for at in range(1000)],
    }
)
QUERIES = {
    "all": lambda rows: rows,
    "columns": lambda rows: rows.select("text", "id"),
    "filter": lambda rows: rows.filter(~pl.col("flag")).select("id"),
    "first": lambda rows: rows.select("text").head(430),
    "first of some": lambda rows: rows.filter(pl.col("flag")).select("list").head(300),
    "none": lambda rows: rows.filter(pl.col("id") > 5000),
    "count": lambda rows: rows.select(pl.len()),
    "groups": lambda rows: rows.group_by("text").agg(pl.col("id").sum()).sort("text"),
    "quantile": lambda rows: rows.select(pl.col("id").quantile(0.3)),
}


@pytest.fixture
def parts(bucket, tmp_path):
    """The rows in two files of small row groups: in a store, and here."""
    found = []
    for number, rows in enumerate((ROWS.head(400), ROWS.slice(400))):
        path = tmp_path / f"part-{number}.parquet"
        rows.write_parquet(path, row_group_size=150)
        (bucket.address / path.name).upload(path)
        found.append(path)
    return list(bucket.address.glob("*")), found


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
@pytest.mark.parametrize("query", QUERIES)
def test_a_store_is_scanned_as_a_folder(query, engine, parts):
    in_store, here = (QUERIES[query](stored.scan(some)) for some in parts)
    expected = QUERIES[query](ROWS.lazy()).collect()
    assert here.collect(engine=engine).equals(expected)
    assert in_store.collect(engine=engine).equals(expected)
    assert in_store.collect_schema() == here.collect_schema()


def test_a_file_is_read_and_measured_at_any_place(parts):
    for first, _ in parts:
        assert stored.read_parquet(first).equals(ROWS.head(400))
        assert stored.count_rows(first) == 400
        assert stored.size(first) == stored.size(parts[1][0]) > 0


def test_a_file_that_goes_away_is_named(parts):
    (first, second), _ = parts
    rows = stored.scan([first, second])
    second.unlink()
    with pytest.raises((DataError, FileNotFoundError), match=r"part-1|No such file"):
        rows.collect()
