"""Parts are complete or absent, also where an engine runs a stage twice or kills a worker."""

import polars as pl
import pyarrow as pa
import pytest

from multigate.configs.files import new_file, new_part, remove_partial
from multigate.pipeline.write.parts import SplitWriter, write_parquet

SCHEMA = pa.schema([("meta/time", pa.int64())])
ROWS = pl.DataFrame({"meta/time": [1, 2], "split": ["train", "test"]})


def names(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_two_attempts_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "part.parquet"
    with new_file(path) as first, new_file(path) as second:
        assert first != second
        first.write_bytes(b"same")
        second.write_bytes(b"same")
        assert not path.exists()
    assert names(tmp_path) == ["part.parquet"]
    assert path.read_bytes() == b"same"


def test_an_attempt_that_fails_leaves_nothing_and_harms_no_other(tmp_path):
    write_parquet(ROWS, tmp_path / "part.parquet", SCHEMA)
    with pytest.raises(OSError, match="full"), new_file(tmp_path / "part.parquet") as temporary:
        temporary.write_bytes(b"half")
        raise OSError("full")
    assert names(tmp_path) == ["part.parquet"]
    assert pl.read_parquet(tmp_path / "part.parquet")["meta/time"].to_list() == [1, 2]


def test_parts_of_splits_appear_only_when_all_is_written(tmp_path):
    paths = {name: tmp_path / name / "part.parquet" for name in ("train", "test")}
    with pytest.raises(OSError, match="full"), SplitWriter(paths, SCHEMA) as writer:
        writer.write(ROWS)
        raise OSError("full")
    assert names(tmp_path) == []
    with SplitWriter(paths, SCHEMA) as writer:
        writer.write(ROWS)
        assert not any(path.exists() for path in paths.values())
    assert names(tmp_path) == ["part.parquet"] * 2
    assert pl.read_parquet(paths["test"])["meta/time"].to_list() == [2]


def test_what_killed_workers_left_is_removed(tmp_path):
    with new_part(tmp_path / "deep" / "part.parquet") as temporary:
        temporary.write_bytes(b"half")
        left = temporary.with_name(".part.parquet.0123abcd.partial")
        left.write_bytes(b"half")
    remove_partial(tmp_path)
    assert names(tmp_path) == ["part.parquet"]
