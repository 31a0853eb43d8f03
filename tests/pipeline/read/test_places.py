"""Logs in a bucket of an S3 server: no path is local."""

import gzip
import io
import random
import zipfile

import polars as pl
import pytest
import yaml

from multigate.configs import DataError, storage
from multigate.configs.storage import Address
from multigate.pipeline.job import run
from multigate.pipeline.read.places import find
from multigate.verbs.command import main

HEADER = "time,event,item,user,session,value,device"


def lines(seed, rows=60):
    rng = random.Random(seed)
    kinds = ["VIEW"] * 6 + ["LIKE", "DISLIKE", "BUY", "RATE"]
    return [
        f"{1_700_000_000 + rng.randint(0, 9000)},{rng.choice(kinds)},i{rng.randint(0, 9)},"
        f"u{rng.randint(0, 5)},s,1,phone"
        for _ in range(rows)
    ]


def zipped(name, data):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(name, data)
    return sink.getvalue()


@pytest.fixture
def logs(bucket, tmp_path):
    """The same files in a bucket and in a folder; the bucket's address."""
    address = bucket.address / "logs"
    texts = [("\n".join([HEADER, *lines(seed)]) + "\n").encode() for seed in range(3)]
    files = {
        "date=2023-11-14/log.csv": texts[0],
        "date=2023-11-15/log.csv.gz": gzip.compress(texts[1], mtime=0),
        "date=2023-11-15/log.csv.zip": zipped("part.csv", texts[2]),
        "other.txt": b"",
    }
    for name, data in files.items():
        (address / name).write_bytes(data)
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    items = pl.DataFrame({"id": [f"i{n}" for n in range(10)], "topic": ["a", "b"] * 5})
    items.write_parquet(tmp_path / "logs/items.parquet")
    (address / "items.parquet").upload(tmp_path / "logs/items.parquet")
    return address


def test_a_bucket_gives_the_same_bytes_as_a_folder(logs, event_config, tmp_path):
    items = {"files": ["items.parquet"], "format": {"type": "parquet"}, "key": "id"}
    config = event_config(
        **{
            "pipeline.log.files": ["date=*/log.csv*"],
            "pipeline.items": items,
            "contract.features.topic": {"kind": "id", "side": "item", "source": "items"},
        }
    )
    run(config, logs, tmp_path / "remote")
    run(config, tmp_path / "logs", tmp_path / "local")
    written = {p.relative_to(tmp_path / "local") for p in (tmp_path / "local").rglob("*.*")}
    assert len(written) > 10
    for name in written:
        there = tmp_path / "remote" / name
        assert there.read_bytes() == (tmp_path / "local" / name).read_bytes(), name


def test_names_are_relative_to_the_address(logs):
    name = "date=2023-11-15/log.csv.gz"
    (found,) = find(logs, "date=2023-11-15/*.gz")
    assert found == (logs / name, name)
    assert found[0].size == len((logs / name).read_bytes())
    assert [name for _, name in find(logs, "date=*/*.csv*")] == [
        "date=2023-11-14/log.csv",
        "date=2023-11-15/log.csv.gz",
        "date=2023-11-15/log.csv.zip",
    ]


def test_what_cannot_be_listed_is_named(logs, event_config, tmp_path):
    holds = "the folder holds date=2023-11-14, date=2023-11-15, items.parquet, other.txt"
    with pytest.raises(DataError, match=rf"{logs}: no file matches 'log\*\.csv'; {holds}"):
        run(event_config(), logs, tmp_path / "out")
    with pytest.raises(DataError, match="there is no bucket 'no-such-bucket'; correct the address"):
        run(event_config(), "s3://no-such-bucket/logs", tmp_path / "out")
    with pytest.raises(DataError, match=r"nowhere://...: expected a local path, s3://bucket/key"):
        run(event_config(), "nowhere://x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_that_fails_in_the_middle_of_a_file_does_not_pass_for_a_damaged_file(
    bucket, logs, event_config, monkeypatch, tmp_path
):
    """Where damaged files are allowed, the rest of the log would be lost without a word."""
    config = event_config(
        **{"pipeline.log.files": ["date=*/log.csv*"], "pipeline.max_damaged_files": 5}
    )
    monkeypatch.setattr(storage, "_ATTEMPTS", 1)
    opened = Address.open

    def open_then_fail(self, mode="rb", buffering=1 << 20):
        file = opened(self, mode, buffering)
        if buffering > 16:
            bucket.busy(1000, "GET")
        return file

    monkeypatch.setattr(Address, "open", open_then_fail)
    with pytest.raises(DataError, match=r"log\.csv.*: cannot be read: the store was busy"):
        run(config, logs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_an_address(logs, event_config, tmp_path):
    config = event_config(**{"pipeline.log.files": ["date=*/log.csv*"]})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    out = tmp_path / "out"
    arguments = ["--config", str(tmp_path / "config.yaml"), "--data", str(logs), "--out", str(out)]
    assert main(["examples", *arguments]) == 0
    assert main(["audit", *arguments[:4], "--examples", str(out)]) == 0
