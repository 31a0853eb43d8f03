"""Files of rows, a part at a time."""

import json
import math

import polars as pl
import pyarrow as pa
import pytest

from multigate.configs.config import load
from multigate.configs.errors import DataError
from multigate.jobs.scoring.rows import read_parts, writer


def test_a_field_of_later_json_lines_is_told_with_what_to_do(tmp_path):
    """As most files leave null fields out; Arrow reads the fields that its first block names."""
    contract, path = load("demo").contract, tmp_path / "rows.jsonl"
    rows = [{"user_id": "u", "item_id": "i", "note": "x" * 500}] * 9000
    late = [{"user_id": "u", "item_id": "i", "country": "DE"}]

    def write(lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return sum(part.num_rows for part in read_parts(path, contract))

    with pytest.raises(DataError, match=r"a row has a field that no row of the first 4 MiB has"):
        write([*rows, *late])
    assert write([rows[0] | {"country": None}, *rows, *late]) == 9002


def test_json_lines_hold_no_number_that_json_has_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    numbers = [1.5, math.nan, -math.inf, None]
    with writer(path, ".jsonl") as write:
        write(pa.table({"x": numbers, "of": [[one] for one in numbers], "note": ["NaN"] * 4}))
    read = pl.read_ndjson(path)  # stricter than Python's own reader
    assert read["x"].to_list() == [1.5, None, None, None]
    assert read["of"].to_list() == [[1.5], [None], [None], [None]]
    assert read["note"].to_list() == ["NaN"] * 4
