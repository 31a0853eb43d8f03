"""Files of one log that differ in format, columns, names or types."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from multigate.configs import ConfigError, DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run

START = 1_700_000_000
KINDS = ("LIKE", "DISLIKE", "BUY", "RATE")
FEATURES = {
    "contract.features.price": {"kind": "number", "side": "context", "missing": "indicator"},
    "pipeline.negatives": None,
    "pipeline.max_reject_rate": 0.01,
}


def rows(first: int, count: int = 30) -> pl.DataFrame:
    """Events with every column of the configuration."""
    at = range(first, first + count)
    return pl.DataFrame(
        {
            "time": [START + 60 * n for n in at],
            "event": ["VIEW" if n % 3 else KINDS[n // 3 % 4] for n in at],
            "item": [f"i{n // 3 % 7}" for n in at],
            "user": [f"u{n // 3 % 4}" for n in at],
            "session": ["s"] * count,
            "value": [1.0] * count,
            "device": ["phone" if n % 2 else "tv" for n in at],
            "price": [float(n) for n in at],
        }
    )


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".orc":
        orc.write_table(frame.to_arrow().cast(_plain(frame)), path)
    elif path.suffix == ".parquet":
        pq.write_table(frame.to_arrow(), path, row_group_size=10)
    elif path.suffix == ".jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")


def _plain(frame: pl.DataFrame) -> pa.Schema:
    """ORC has no large strings."""
    schema = frame.to_arrow().schema
    return pa.schema(
        [(f.name, pa.string() if f.type == pa.large_string() else f.type) for f in schema]
    )


def settings(**changes):
    return {"pipeline.log.format": {"type": "mixed"}, "pipeline.log.files": ["**/*"]} | (
        FEATURES | changes
    )


@pytest.fixture(scope="module")
def expected(event_config, read_examples, tmp_path_factory):
    """The examples of 90 events in one file."""
    folder = tmp_path_factory.mktemp("drift")
    write(rows(0, 90), folder / "log" / "all.parquet")
    run(event_config(**settings()), folder / "log", folder / "out")
    found = read_examples(folder / "out")
    assert found["device"].null_count() == found["price"].null_count() == 0
    assert len(found) > 50
    return found


def test_formats_may_be_mixed(event_config, read_examples, tmp_path, expected):
    log = tmp_path / "log"
    for at, suffix in enumerate(("csv", "tsv", "jsonl", "parquet", "orc")):
        write(rows(18 * at, 18), log / f"day{at}.{suffix}")
    (log / "_SUCCESS").write_text("")
    (log / ".day3.parquet.crc").write_bytes(b"\x00\xff")
    config = event_config(**settings())
    run(config, log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)
    assert audit(config, log, tmp_path / "out", 20)["examples"] == 20


def test_folders_that_hold_no_data_are_skipped(event_config, read_examples, tmp_path, expected):
    log = tmp_path / "log"
    write(rows(0, 45), log / "_day=1" / "a.parquet")
    write(rows(45, 45), log / "day=2" / "b.parquet")
    for name in ("_delta_log/00.json", "day=2/_temporary/0/c.parquet", ".spark/d.csv"):
        (log / name).parent.mkdir(parents=True)
        (log / name).write_text("no rows of the log")
    run(event_config(**settings()), log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)


def test_a_folder_that_is_spelled_out_is_data(event_config, read_examples, tmp_path, expected):
    write(rows(0, 90), tmp_path / "log" / "_raw" / "a.parquet")
    write(rows(0, 90), tmp_path / "log" / "_raw" / "_b.parquet")
    files = {"pipeline.log.files": ["_raw/*"]}
    run(event_config(**settings(**files)), tmp_path / "log", tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)


def test_a_name_without_a_format_is_refused(event_config, tmp_path):
    write(rows(0), tmp_path / "log" / "a.csv")
    (tmp_path / "log" / "b.dat").write_text("x")
    with pytest.raises(DataError, match=r"^b\.dat: format mixed: expected a name that ends in"):
        run(event_config(**settings()), tmp_path / "log", tmp_path / "out")


def test_orc_is_read_like_parquet(event_config, read_examples, tmp_path, expected):
    log = tmp_path / "log"
    write(rows(0, 90), log / "all.orc")
    config = event_config(**settings(**{"pipeline.log.format": {"type": "orc"}}))
    run(config, log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)
    content = (log / "all.orc").read_bytes()
    (log / "all.orc").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"all\.orc: damaged file, nothing of it was read"):
        run(config, log, tmp_path / "broken")


@pytest.mark.parametrize("suffix", ["parquet", "orc"])
def test_a_file_with_no_column_of_ours_is_not_skipped(event_config, tmp_path, suffix):
    """As old Hive writes them: _col0, _col1, ..."""
    log = tmp_path / "log"
    write(rows(0, 30), log / f"a.{suffix}")
    nameless = rows(30, 30)
    write(
        nameless.rename({n: f"_col{at}" for at, n in enumerate(nameless.columns)}),
        log / f"b.{suffix}",
    )
    config = event_config(**settings(**{"pipeline.log.format": {"type": suffix}}))
    with pytest.raises(DataError, match=rf"b\.{suffix}: no column .*_col0"):
        run(config, log, tmp_path / "out")


def test_an_earlier_name_is_not_a_column_of_today(event_config, tmp_path):
    write(rows(0), tmp_path / "log" / "a.csv")
    config = event_config(**settings(**{"pipeline.log.rename": {"item": ["user"]}}))
    with pytest.raises(ConfigError, match=r"rename: 'user' cannot be an earlier name of 'item'"):
        run(config, tmp_path / "log", tmp_path / "out")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "orc"])
def test_older_files_may_lack_what_features_may_lack(
    event_config, read_examples, tmp_path, expected, suffix
):
    log = tmp_path / "log"
    write(rows(0, 45).drop("price"), log / f"old.{suffix}")
    write(rows(45, 45), log / f"new.{suffix}")
    manifest = run(event_config(**settings()), log, tmp_path / "out")
    early = pl.col("meta/time").dt.timestamp() < (START + 45 * 60) * 1_000_000
    price = pl.when(early).then(None).otherwise(pl.col("price")).alias("price")
    assert read_examples(tmp_path / "out").equals(expected.with_columns(price))
    line = f"column 'price' is absent from 1 of 2 files, the first of them old.{suffix}"
    assert any(advice.startswith(line) for advice in manifest["advice"]) == (suffix != "jsonl")


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("price", {"contract.features.price.missing": "error"}),
        ("value", {}),
        ("session", {}),
    ],
)
def test_other_columns_must_be_in_every_file(event_config, tmp_path, column, changes):
    log = tmp_path / "log"
    write(rows(0).drop(column), log / "old.csv")
    write(rows(30), log / "new.parquet")
    with pytest.raises(DataError, match=rf"old\.csv: no column '{column}'; the file has time, ev"):
        run(event_config(**settings(**changes)), log, tmp_path / "out")


def test_a_column_that_no_file_has_is_refused(event_config, tmp_path):
    write(rows(0).drop("price"), tmp_path / "log" / "a.csv")
    write(rows(30).drop("price"), tmp_path / "log" / "b.parquet")
    with pytest.raises(DataError, match=r"a\.csv: no column 'price'"):
        run(event_config(**settings()), tmp_path / "log", tmp_path / "out")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "orc"])
def test_renamed_columns_map_by_a_list(event_config, read_examples, tmp_path, expected, suffix):
    log = tmp_path / "log"
    write(rows(0, 30).rename({"device": "dev", "user": "uid"}), log / f"oldest.{suffix}")
    write(rows(30, 30).rename({"device": "device_type"}), log / f"old.{suffix}")
    half = rows(60, 30)
    # Both names in one file: each row has its value under one of them.
    at = pl.int_range(30) < 15
    half = half.with_columns(
        device=pl.when(~at).then("device"), dev=pl.when(at).then("device")
    ).select(*half.columns, "dev")
    write(half, log / f"new.{suffix}")
    rename = {"device": ["device_type", "dev"], "user": ["uid"]}
    config = event_config(**settings(**{"pipeline.log.rename": rename}))
    manifest = run(config, log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)
    assert not any("absent" in line for line in manifest["advice"])
    assert audit(config, log, tmp_path / "out", 20)["examples"] == 20


def test_a_rename_of_nothing_is_refused(event_config, tmp_path):
    write(rows(0), tmp_path / "log" / "a.csv")
    config = event_config(**settings(**{"pipeline.log.rename": {"devise": ["dev"]}}))
    with pytest.raises(
        ConfigError, match=r"log\.rename: expected columns that .*received 'devise'"
    ):
        run(config, tmp_path / "log", tmp_path / "out")
    with pytest.raises(ConfigError, match="'dev' stands for price and device"):
        event_config(**settings(**{"pipeline.log.rename": {"device": ["dev"], "price": ["dev"]}}))


def test_folders_give_columns(event_config, read_examples, tmp_path, expected):
    log = tmp_path / "log"
    for name in ("phone", "tv"):
        some = rows(0, 90).filter(pl.col("device") == name).drop("device")
        write(some, log / f"dt=2023-11-14/device={name}" / "part-0.parquet")
    run(event_config(**settings()), log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)
    nothing = rows(0, 90).drop("device")
    write(nothing, tmp_path / "none" / "device=__HIVE_DEFAULT_PARTITION__" / "part-0.csv")
    run(event_config(**settings()), tmp_path / "none", tmp_path / "out2")
    assert read_examples(tmp_path / "out2")["device"].null_count() == len(expected)


def test_a_changed_type_is_one_line(event_config, tmp_path):
    log = tmp_path / "log"
    write(rows(0), log / "a.parquet")
    words = pl.Series(["cheap" if n >= 20 else str(n) for n in range(30)])
    write(rows(30).with_columns(price=words), log / "b.parquet")
    expected = (
        r"^b\.parquet, row group 2: column 'price' has type large_string, in a\.parquet it has "
        r"double: 7 of 30 rows were rejected \(price: expected a number\); write one type"
    )
    with pytest.raises(DataError, match=expected):
        run(event_config(**settings()), log, tmp_path / "out")


def test_a_type_that_reads_alike_is_no_problem(event_config, read_examples, tmp_path, expected):
    log = tmp_path / "log"
    write(rows(0, 30), log / "a.parquet")
    write(rows(30, 30).with_columns(pl.col("price").cast(pl.String)), log / "b.parquet")
    write(rows(60, 30).with_columns(pl.col("price", "time").cast(pl.Int32)), log / "c.parquet")
    run(event_config(**settings()), log, tmp_path / "out")
    assert read_examples(tmp_path / "out").equals(expected)


def test_ids_that_became_floats_are_refused(event_config, tmp_path):
    """A column of integers with a null becomes floats in pandas: 12 and 12.0 would be two users."""
    log = tmp_path / "log"
    write(rows(0).with_columns(user=pl.int_range(30) % 4), log / "a.parquet")
    write(rows(30).with_columns(user=(pl.int_range(30) % 4).cast(pl.Float64)), log / "b.parquet")
    expected = (
        r"^b\.parquet, row group 0: column 'user' has type double, in a\.parquet it has int64"
    )
    with pytest.raises(DataError, match=expected):
        run(event_config(**settings()), log, tmp_path / "out")


@pytest.mark.parametrize("type_", [pl.Null, pl.Float64, pl.Int32])
@pytest.mark.parametrize("first", [True, False])
def test_a_file_whose_text_ids_are_all_missing_is_read(
    first, type_, event_config, read_examples, tmp_path
):
    """pandas writes a column without values as floats, Arrow as nulls."""
    log = tmp_path / "log"
    write(rows(0 if first else 30), log / "a.parquet")
    nothing = pl.lit(None).cast(type_).alias("device")
    empty = rows(30 if first else 0).with_columns(nothing)
    pq.write_table(empty.to_arrow(), log / "b.parquet", row_group_size=10)
    run(event_config(**settings()), log, tmp_path / "out")
    found = read_examples(tmp_path / "out")["device"]
    assert found.null_count() == len(found) // 2
    assert set(found.drop_nulls()) == {"phone", "tv"}


def test_side_tables_drift_too(event_config, read_examples, tmp_path):
    log = tmp_path / "log"
    write(rows(0, 90), log / "log.csv")
    items = [f"i{n}" for n in range(7)]
    write(pl.DataFrame({"id": items[:3]}), tmp_path / "log" / "items" / "old.csv")
    new = pl.DataFrame({"item": items[3:], "topic": list("abab")})
    write(new, tmp_path / "log" / "items" / "new.parquet")
    topic = {"kind": "id", "side": "item", "source": "items", "missing": "indicator"}
    table = {
        "files": ["items/*"],
        "format": {"type": "mixed"},
        "key": "item",
        "rename": {"item": ["id"]},
    }
    changes = {"contract.features.topic": topic, "pipeline.items": table}
    config = event_config(**settings(**changes, **{"pipeline.log.files": ["*.csv"]}))
    run(config, log, tmp_path / "out")
    found = read_examples(tmp_path / "out").select("item_id", "topic").unique().sort("item_id")
    assert found["topic"].to_list() == [None, None, None, "a", "b", "a", "b"]
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"]["rows_in"] == 90
