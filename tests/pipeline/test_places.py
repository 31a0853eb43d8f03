"""Logs on a filesystem that Beam knows by its scheme: the files are in memory, no path is local."""

import gzip
import io
import random
import zipfile

import polars as pl
import pytest
import yaml
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

from multigate.configs import DataError
from multigate.pipeline.job import run
from multigate.pipeline.places import Address, find
from multigate.verbs.command import main

FILES = {}


class MemoryFileSystem(FileSystem):
    """Objects in a dictionary: what a bucket is, without its network. Beam finds it by scheme."""

    @classmethod
    def scheme(cls):
        return "memory"

    def join(self, base, *parts):
        return "/".join([base.rstrip("/"), *parts])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def has_dirs(self):
        return False

    def mkdirs(self, path):
        raise BeamIOError("a bucket has no folders")

    def _list(self, prefix):
        for path in sorted(FILES):
            if path.startswith(prefix):
                yield FileMetadata(path, len(FILES[path]))

    def exists(self, path):
        return path in FILES

    def size(self, path):
        return len(FILES[path])

    def last_updated(self, path):
        return 0.0

    def checksum(self, path):
        return str(hash(FILES[path]))

    def metadata(self, path):
        return FileMetadata(path, len(FILES[path]))

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        assert compression_type == CompressionTypes.UNCOMPRESSED
        if path not in FILES:
            raise BeamIOError(f"no object {path}")
        return io.BytesIO(FILES[path])

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        raise BeamIOError("read only")

    def copy(self, source, destination):
        raise BeamIOError("read only")

    def rename(self, source, destination):
        raise BeamIOError("read only")

    def delete(self, paths):
        for path in paths:
            del FILES[path]


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
def bucket(tmp_path):
    """The same files in a bucket and in a folder."""
    texts = [("\n".join([HEADER, *lines(seed)]) + "\n").encode() for seed in range(3)]
    files = {
        "date=2023-11-14/log.csv": texts[0],
        "date=2023-11-15/log.csv.gz": gzip.compress(texts[1], mtime=0),
        "date=2023-11-15/log.csv.zip": zipped("part.csv", texts[2]),
        "other.txt": b"",
    }
    for name, data in files.items():
        FILES[f"memory://bucket/logs/{name}"] = data
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    items = pl.DataFrame({"id": [f"i{n}" for n in range(10)], "topic": ["a", "b"] * 5})
    items.write_parquet(tmp_path / "logs/items.parquet")
    FILES["memory://bucket/logs/items.parquet"] = (tmp_path / "logs/items.parquet").read_bytes()
    yield "memory://bucket/logs"
    FILES.clear()


def test_a_bucket_gives_the_same_bytes_as_a_folder(bucket, event_config, tmp_path):
    items = {"files": ["items.parquet"], "format": {"type": "parquet"}, "key": "id"}
    config = event_config(
        **{
            "pipeline.log.files": ["date=*/log.csv*"],
            "pipeline.items": items,
            "contract.features.topic": {"kind": "id", "side": "item", "source": "items"},
        }
    )
    run(config, bucket, tmp_path / "remote")
    run(config, tmp_path / "logs", tmp_path / "local")
    written = {p.relative_to(tmp_path / "local") for p in (tmp_path / "local").rglob("*.*")}
    assert len(written) > 10
    for name in written:
        there = tmp_path / "remote" / name
        assert there.read_bytes() == (tmp_path / "local" / name).read_bytes(), name


def test_names_are_relative_to_the_address(bucket):
    name = "date=2023-11-15/log.csv.gz"
    size = len(FILES[f"{bucket}/{name}"])
    assert find(bucket, "date=2023-11-15/*.gz") == [(Address(f"{bucket}/{name}", size), name)]
    assert [name for _, name in find(bucket + "/", "date=*/*.csv*")] == [
        "date=2023-11-14/log.csv",
        "date=2023-11-15/log.csv.gz",
        "date=2023-11-15/log.csv.zip",
    ]


def test_what_cannot_be_listed_is_named(bucket, event_config, tmp_path):
    with pytest.raises(DataError, match=r"memory://bucket/logs: no file matches 'log\*\.csv'; .*"):
        run(event_config(), bucket, tmp_path / "out")
    with pytest.raises(DataError, match=r"nowhere://x: cannot be listed: Unable to get filesystem"):
        run(event_config(), "nowhere://x", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_takes_an_address(bucket, event_config, tmp_path):
    config = event_config(**{"pipeline.log.files": ["date=*/log.csv*"]})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    out = tmp_path / "out"
    arguments = ["--config", str(tmp_path / "config.yaml"), "--data", bucket, "--out", str(out)]
    assert main(["examples", *arguments]) == 0
    assert main(["audit", *arguments[:4], "--examples", str(out)]) == 0
