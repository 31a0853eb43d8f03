"""Examples at an address: the same files as in a local folder, complete or absent."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from tests.pipeline.random_log import write_log
from tests.pipeline.stores import download, write_config

from multigate.configs import DataError, storage
from multigate.configs.examples_store import Unfinished, _identity, fetched, for_each, new_examples
from multigate.configs.files import ExamplesFolder
from multigate.configs.storage import Address
from multigate.pipeline.core.runner import BEAMS_RUNNER
from multigate.pipeline.job import run
from multigate.pipeline.read import places, ranges, sources
from multigate.pipeline.write import data_report
from multigate.verbs.command import main

ROOT = Path(__file__).parents[2]
BEAMS_OWN = [f"--runner={BEAMS_RUNNER}"]  # which encodes what travels
NUMBERS = {
    "contract.features.seen": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "pipeline.buckets": 4,
}


@pytest.fixture(scope="module")
def here(event_config, tmp_path_factory):
    """The log, its configuration, and what a run into a local folder makes of it."""
    log = write_log(tmp_path_factory.mktemp("store") / "log", files=3, rows=200, users=20)
    config = event_config(**NUMBERS)
    run(config, log, log.parent / "here")
    return log, config, log.parent / "here"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("shuffle", ["files", "beam"])
def test_a_bucket_holds_the_same_files(shuffle, here, bucket, same_folders, tmp_path):
    log, config, expected = here
    for path in log.iterdir():
        (bucket.address / "log" / path.name).upload(path)
    out = bucket.address / "examples" / "today"
    options = BEAMS_OWN if shuffle == "beam" else None
    manifest = run(config, bucket.address / "log", out, options, shuffle=shuffle)
    assert manifest["rows"]["rejects"] == 3
    same_folders(download(out, tmp_path / "out"), expected)
    with pytest.raises(DataError, match=f"{out}: already exists; choose another output folder"):
        run(config, log, out)
    same_folders(download(out, tmp_path / "again"), expected)


@pytest.mark.slow
def test_google_cloud_storage_holds_the_same_files(here, gs_address, same_folders, tmp_path):
    log, config, expected = here
    for path in log.iterdir():
        (gs_address / "log" / path.name).upload(path)
    run(config, gs_address / "log", gs_address / "out", BEAMS_OWN, shuffle="beam")
    same_folders(download(gs_address / "out", tmp_path / "out"), expected)


def test_the_launching_process_copies_no_part(here, bucket, monkeypatch):
    """Neither to disk, where `complete` uploads from, nor for the report, which scans the store."""
    log, config, expected = here
    local = []
    complete = Unfinished.complete

    def watched(self, manifest):
        local.extend(path for path in self.local.rglob("*") if path.is_file())
        complete(self, manifest)

    monkeypatch.setattr(Unfinished, "complete", watched)
    monkeypatch.setattr(Address, "download", None)
    monkeypatch.setattr(data_report, "_SMALL", 0)
    run(config, log, bucket.address / "out", BEAMS_OWN, shuffle="beam")
    assert {path.name for path in local} == {"identity", "report.json", "totals.json"}
    run(config, log, expected.parent / "scanned")
    assert data_report.read(bucket.address / "out") == data_report.read(expected.parent / "scanned")


@pytest.mark.parametrize("quoted", [False, True])
def test_a_large_log_is_downloaded_once(quoted, bucket, event_config, tmp_path, monkeypatch):
    """Parts count their lines while they read them; quotes before a part are not counted there."""
    log = write_log(tmp_path / "log", files=1, rows=20_000, users=20)
    (path,) = log.iterdir()
    address = bucket.address / "log" / path.name
    address.upload(path)
    received = []
    readinto = storage._Object.readinto

    def watched(self, buffer):
        received.append(readinto(self, buffer))
        return received[-1]

    monkeypatch.setattr(storage._Object, "readinto", watched)
    monkeypatch.setattr(sources, "_HEAD", 1 << 10)
    monkeypatch.setattr(places, "buffering", lambda _: 1 << 12)
    monkeypatch.setattr(ranges, "LONGEST", 300_000)
    config = event_config(**{"pipeline.log.format": {"type": "csv", "quoted": quoted}})
    run(config, bucket.address / "log", tmp_path / "there")
    assert sum(received) < 1.5 * path.stat().st_size  # with some for names, and between parts
    rejects = pl.read_parquet(tmp_path / "there" / "rejects" / "*.parquet")
    assert rejects["line"].to_list() == [20_002]


def test_what_stands_at_an_address_is_not_removed(here, bucket):
    log, config, _ = here
    (bucket.address / "precious" / "a.txt").write_bytes(b"1")
    with pytest.raises(DataError, match="precious: already exists"):
        run(config, log, bucket.address / "precious")
    assert list(bucket.address.files()) == ["precious/a.txt"]


@pytest.mark.parametrize("shuffle", ["files", "beam"])
def test_a_run_that_fails_leaves_only_its_rejects(shuffle, here, bucket, event_config):
    log, _, _ = here
    config = event_config(**NUMBERS, **{"pipeline.max_reject_rate": 0.001})
    out = bucket.address / "examples"
    with pytest.raises(DataError, match=f"3 of 603 rows were rejected .* look at {out}.rejects"):
        run(config, log, out, shuffle=shuffle)
    names = list(bucket.address.files())
    assert names == [f"examples.rejects/part-0000{at}.parquet" for at in range(3)]
    with (bucket.address / names[0]).open() as file:
        assert pl.read_parquet(file)["reason"][0].startswith("time: ")


def test_a_store_that_refuses_writes_leaves_no_manifest(here, bucket, monkeypatch):
    """A full bucket, or a role that may not write, shows when the parts are uploaded."""
    log, config, _ = here
    monkeypatch.setattr(storage, "_ATTEMPTS", 2)
    storage._connect.cache_clear()
    bucket.busy(10_000, "part-")
    with pytest.raises(DataError, match=r"part-.*: cannot be written: the store was busy at each"):
        run(config, log, bucket.address / "out")
    bucket.busy(0)
    assert list(bucket.address.files()) == []


@pytest.mark.parametrize("shuffle", ["files", "beam"])
def test_a_full_bucket_is_told_in_one_line_and_leaves_nothing(
    shuffle, here, bucket, tmp_path, capsys
):
    log, config, _ = here
    write_config(config, tmp_path)
    arguments = ["examples", "--config", str(tmp_path / "model.yaml"), "--data", str(log)]
    bucket.busy(10_000, "part-00001", "full")
    out = bucket.address / "out"
    assert main([*arguments, "--out", str(out), "--shuffle", shuffle]) == 2
    assert bucket.busy(0) > 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {out}/")
    assert "part-00001.parquet: cannot be written: the store has no room" in line
    assert list(bucket.address.files()) == []


@pytest.mark.slow  # the pauses between attempts
def test_a_busy_store_is_asked_again_until_all_is_written(here, bucket, same_folders, tmp_path):
    log, config, expected = here
    bucket.busy(3, "PUT")
    run(config, log, bucket.address / "out")
    assert bucket.busy(0) == 3
    same_folders(download(bucket.address / "out", tmp_path / "out"), expected)


KILLED = """
import os, signal, sys
from multigate.configs.storage import Address
from multigate.verbs.command import main

upload = Address.upload

def last(self, path):
    upload(self, path)
    if self.parent.name == "train":
        os.kill(os.getpid(), signal.SIGKILL)

Address.upload = last
sys.exit(main(sys.argv[1:]))
"""
"""The command, which kills itself once it has written a part."""


@pytest.mark.slow
def test_a_killed_run_leaves_no_manifest_and_the_next_one_succeeds(
    here, bucket, same_folders, tmp_path
):
    log, config, expected = here
    write_config(config, tmp_path)
    out = bucket.address / "examples"
    arguments = ["examples", "--config", str(tmp_path / "model.yaml"), "--data", str(log)]
    arguments += ["--out", str(out), "--shuffle", "beam"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    left = out.files()
    assert ".writing" in left
    assert any(name.startswith("train/") for name in left)
    assert "manifest.json" not in left
    with pytest.raises(DataError, match=r"no manifest here: .* was killed leaves none"):
        _identity(out)
    assert main(arguments) == 0
    same_folders(download(out, tmp_path / "out"), expected)


def test_of_two_runs_at_one_address_one_is_told(bucket):
    out = bucket.address / "out"
    told = pytest.raises(DataError, match="another run began to write to this address meanwhile")
    with told, new_examples(out) as first:
        (first.local / "part").write_bytes(b"first")
        with new_examples(out) as second:
            (second.local / "part").write_bytes(b"second")
            second.complete({"cut_off": None})
        (out / "manifest.json").unlink()
        first.complete({"cut_off": None})


def test_a_dead_runs_workers_add_nothing(bucket):
    with new_examples(bucket.address / "out") as made:
        (bucket.address / "out" / "train" / "part-00007.parquet").write_bytes(b"of another run")
        (made.local / "train").mkdir()
        (made.local / "train" / "part-00000.parquet").write_bytes(b"own")
        made.complete({"cut_off": None})
    assert list(bucket.address.files()) == ["out/manifest.json", "out/train/part-00000.parquet"]


@pytest.fixture
def stored(here, bucket):
    """An address that holds the examples of `here`."""
    address = bucket.address / "runs" / "2023-11-14"
    names = [p.relative_to(here[2]).as_posix() for p in here[2].rglob("*") if p.is_file()]
    for_each(lambda name: (address / name).upload(here[2] / name), names)
    return address


def test_examples_are_copied_once(here, stored, monkeypatch):
    copied = []
    download = Address.download
    monkeypatch.setattr(Address, "download", lambda *a: (copied.append(a), download(*a)))
    with fetched(stored) as first:
        assert first.name == "2023-11-14"
        for path in here[2].rglob("*.parquet"):
            name = path.relative_to(here[2])
            assert (first / name).read_bytes() == path.read_bytes()
        count = len(copied)
        assert count > 20
    with fetched(stored) as again:
        assert again == first
        assert len(copied) == count
    # Other examples at the same address, with a manifest of the same content.
    manifest = ExamplesFolder(stored).manifest
    time.sleep(1.1)  # S3 knows seconds
    manifest.write_bytes(manifest.read_bytes())
    with fetched(stored) as other:
        assert other != first


def test_copies_that_nobody_uses_are_removed(stored, bucket):
    with fetched(stored) as used:
        os.utime(used.parent, (0, 0))
        (bucket.address / "other" / "manifest.json").write_bytes(b"{}")
        with fetched(bucket.address / "other") as other:
            assert used.exists()  # in use
    os.utime(used.parent, (0, 0))
    with fetched(bucket.address / "other"):
        assert not used.exists()
        assert other.exists()


def test_a_copy_that_fails_leaves_no_half(stored, monkeypatch):
    download = Address.download

    def fail(self, path):
        if self.name == "statistics.json":
            raise DataError("network")
        download(self, path)

    monkeypatch.setattr(Address, "download", fail)
    with pytest.raises(DataError, match="network"), fetched(stored):
        pass
    monkeypatch.setattr(Address, "download", download)
    with fetched(stored) as folder:
        assert ExamplesFolder(folder).statistics.exists()


def audit(tmp_path, config, *more):
    write_config(config, tmp_path)
    return main(["audit", "--config", str(tmp_path / "model.yaml"), *map(str, more)])


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "named", [["{}/*"], ["{}", "--days", "2"], ["{}/2023-11-14"], ["{}/2023-11-14/"]]
)
def test_verbs_read_examples_at_addresses(named, here, stored, tmp_path, capsys):
    log, config, _ = here
    examples = [text.format(stored.parent) for text in named]
    assert audit(tmp_path, config, "--data", log, "--examples", *examples) == 0
    assert "agree with the raw log" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["{}/x*"], r"--examples {}/x\*: nothing matches; expected folders"),
        (["{}/none"], r"{}/none/manifest.json: no manifest here: expected examples that"),
        (["{}/2023-11-14", "--days", "1"], "no examples in its folders; --days expects"),
    ],
)
def test_addresses_without_examples_are_named(named, message, here, stored, tmp_path, capsys):
    log, config, _ = here
    examples = [text.format(stored.parent) for text in named]
    assert audit(tmp_path, config, "--data", log, "--examples", *examples) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message.replace("{}", str(stored.parent)).replace("\\", "") in line


@pytest.mark.slow
def test_totals_go_on_from_an_address(event_config, bucket, same_folders, tmp_path):
    log = write_log(tmp_path / "log", files=3, rows=200, users=20)
    config = event_config(**NUMBERS, **{"pipeline.attribution": "1h"})
    instants = [datetime.fromtimestamp(1_700_000_000 + s, UTC) for s in (0, 30_000, 60_000)]
    spans = list(pairwise(instants))
    run(config, log, tmp_path / "one", span=spans[0])
    run(config, log, tmp_path / "two", span=spans[1], previous=tmp_path / "one")
    assert (tmp_path / "two" / "totals" / "totals.json").exists()
    run(config, log, bucket.address / "one", span=spans[0])
    for shuffle in ("files", "beam"):
        out = bucket.address / shuffle
        run(config, log, out, span=spans[1], previous=bucket.address / "one", shuffle=shuffle)
        same_folders(download(out, tmp_path / shuffle), tmp_path / "two")


@pytest.mark.slow
def test_a_model_is_trained_evaluated_and_exported_from_an_address(
    here, stored, event_config, tmp_path, capsys
):
    _, _, folder = here
    small = {"train.epochs": 1, "model.experts": {"count": 4, "units": [8]}}
    write_config(event_config(**NUMBERS, **small), tmp_path)
    config = ["--config", str(tmp_path / "model.yaml"), "--json"]
    rows, versions = [], []
    for at, examples in enumerate((folder, stored)):
        out = str(tmp_path / f"checkpoint{at}")
        assert main(["train", *config, "--examples", str(examples), "--out", out]) == 0
        arguments = ["--checkpoint", out, "--examples", str(examples), "--json"]
        capsys.readouterr()
        assert main(["evaluate", *arguments]) == 0
        rows.append(json.loads(capsys.readouterr().out)["tasks"])
        models = str(tmp_path / f"models{at}")
        assert main(["export", "--checkpoint", out, *arguments[2:], "--out", models]) == 0
        versions.append(Path(json.loads(capsys.readouterr().out)["export"]) / "assets.extra")
    assert rows[0] == rows[1]
    names = [p.relative_to(versions[0]) for p in versions[0].rglob("*") if p.is_file()]
    of_examples = [name for name in names if name.parts[0] in ("snapshot", "popular.json")]
    assert len(of_examples) > 2
    for name in (Path("golden.json"), *of_examples):
        assert (versions[0] / name).read_bytes() == (versions[1] / name).read_bytes()
