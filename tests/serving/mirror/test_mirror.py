"""Versions from object stores: complete and intact ones only, and what is here goes on."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import fs

from multigate.configs.errors import DataError, ServingError
from multigate.configs.storage import cache_folder, place
from multigate.configs.version_folders import MANIFEST, VersionFile, read_manifest, write_manifest
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.upload import upload
from multigate.serving.client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.verbs.command import main

COLUMNS = {"length": [1.0, 2.0]}


@pytest.fixture
def base(tmp_path, publish):
    """A local base folder with version 1."""
    base = tmp_path / "models"
    base.mkdir()
    publish(base, 1)
    return Base(base)


@pytest.fixture
def address(bucket):
    return bucket.address / "models/small"


def serving(run_server, address):
    return run_server(str(address), store_poll_wait_seconds=0.05)


def version(client, user="u1"):
    return client.rank(
        "small",
        user={"user_id": user},
        context={"hour": 1},
        item_ids=["i1", "i2"],
        columns=COLUMNS,
    ).model_version


def counted(running, name, result):
    return running.metric(f"multigate_store_{name}_total", model="small", result=result) or 0


def there(address):
    """Numbers of the versions in the store."""
    return {name.partition("/")[0] for name in address.files()}


def write(address, version, folder, manifest=True):
    """A version in the store, as `upload` writes it."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            (address / str(version) / name).upload(path)
            files[name] = VersionFile.of(path)
    if manifest:
        write_manifest(address / str(version), files)
    return files


OTHER_PROCESS = """
import sys
from pathlib import Path
from multigate.configs.files import in_use, temporary_folder
hold = {"uses": in_use, "writes": temporary_folder}[sys.argv[1]]
with hold(Path(sys.argv[2])) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_process(does, folder):
    """A process that uses a copy, or writes one, until it is killed; yields what it holds."""
    command = [sys.executable, "-c", OTHER_PROCESS, does, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def looked(running, until):
    """Wait until the server has looked at its store, from beginning to end, once more."""
    looks = counted(running, "looks", "read")
    until(lambda: counted(running, "looks", "read") > looks + 1)


def copies(running):
    """Names in the copy of the server's base path, without the lock."""
    folder = running.server.models.manager("small")._mirror.folder
    return {path.name for path in folder.iterdir()} - {".lock"}


def remove_bucket(bucket):
    server = fs.S3FileSystem(endpoint_override=bucket.endpoint, allow_bucket_deletion=True)
    server.delete_dir(bucket.address.key)


def test_servers_follow_what_is_published_to_a_store(base, address, publish, run_server, until):
    assert upload(base, address) == {"copied": [1], "removed": []}
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert version(client) == 1
        publish(base.root, 2)
        assert upload(base, address) == {"copied": [2], "removed": []}
        assert upload(base, address) == {"copied": [], "removed": []}
        until(lambda: version(client) == 2)
        trials.begin(base, 2, 100.0, None)
        upload(base, address)
        trial = {"model": "small", "version": "2", "side": "canary"}
        until(lambda: running.metric("multigate_trial_percent", **trial) == 100)
        assert running.metric("multigate_model_version", model="small") == 1
        assert version(client) == 2
        trials.stop(base)
        assert upload(base, address)["removed"] == [2]
        until(lambda: version(client) == 1)
        assert running.metric("multigate_store_read_timestamp_seconds", model="small") > 0
        (model,) = client.models().models
        assert (model.base_path, model.serving) == (str(address), 1)
    assert there(address) == {"1"}


def test_half_a_version_and_a_damaged_one_are_not_served(
    base, bucket, address, exported, run_server, until, caplog, monkeypatch
):
    monkeypatch.setattr("multigate.serving.mirror.mirror._FIRST_PAUSE", 3600.0)
    upload(base, address)
    write(address, 2, exported, manifest=False)
    files = write(address, 3, exported)
    (address / "3/saved_model.pb").write_bytes(b"x" * files["saved_model.pb"].size)
    (address / "4" / MANIFEST).write_bytes(b"{}")
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert version(client) == 1
        until(lambda: counted(running, "copies", "failed") == 1)
        looks = counted(running, "looks", "read")
        until(lambda: counted(running, "looks", "read") > looks + 2)
        # The next try comes after a pause; the others are read as usual.
        assert counted(running, "copies", "failed") == 1
        assert running.server.models.available_versions() == {"small": [1]}
        assert "expected the size and SHA-256 of its manifest.json" in caplog.text
        assert "4/manifest.json: damaged" in caplog.text
        write_manifest(address / "2", files)
        until(lambda: version(client) == 2)
    assert [path.name for path in cache_folder("versions").glob("*/.*.partial")] == []


def test_a_store_that_is_gone_costs_no_version(
    base, bucket, address, run_server, until, tmp_path, monkeypatch
):
    upload(base, address)
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        remove_bucket(bucket)
        until(lambda: counted(running, "looks", "failed") > 0)
        assert version(client) == 1
    # A server that starts now has the copy; its files are compared again.
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert version(client) == 1
        assert counted(running, "looks", "failed") > 0
        assert running.metric("multigate_store_read_timestamp_seconds", model="small") is None
    monkeypatch.setenv("MULTIGATE_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ServingError, match=r"s3://.*: there is no bucket"):
        serving(run_server, address).__enter__()


def test_a_copy_that_was_damaged_here_is_copied_anew(base, address, run_server):
    upload(base, address)
    serving_once = serving(run_server, address)
    with serving_once:
        pass
    (graph,) = cache_folder("versions").glob("*/1/saved_model.pb")
    content = graph.read_bytes()
    graph.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with serving(run_server, address) as running:
        assert counted(running, "copies", "copied") == 1
    assert graph.read_bytes() == content


def test_a_busy_store_is_asked_again(base, bucket, address, run_server):
    upload(base, address)
    bucket.busy(1, "GET")
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert version(client) == 1
        assert counted(running, "looks", "failed") == 0


def test_an_empty_base_path_is_one_line(address, run_server, bucket):
    with pytest.raises(ServingError, match=r"expected complete versions, such as s3://.*/small/1"):
        serving(run_server, address).__enter__()


def test_versions_of_another_base_folder_are_not_removed(base, address, publish, tmp_path):
    upload(base, address)
    other = tmp_path / "other"
    other.mkdir()
    publish(other, 7)
    with pytest.raises(DataError, match=r"small/1: .*other never had this version"):
        upload(Base(other), address)
    assert there(address) == {"1"}


def test_an_upload_that_was_killed_is_continued(base, address):
    files = {name.name: name for name in (base.root / "1").iterdir() if name.is_file()}
    (address / "1/saved_model.pb").upload(files["saved_model.pb"])
    assert read_manifest(address / "1") is None
    assert upload(base, address)["copied"] == [1]
    assert set(read_manifest(address / "1")) == {
        path.relative_to(base.root / "1").as_posix()
        for path in (base.root / "1").rglob("*")
        if path.is_file()
    }


def test_a_manifest_names_files_below_it(base, address):
    files = {"../../../etc/passwd": VersionFile(1, "0")}
    write_manifest(address / "1", files)
    with pytest.raises(ValueError, match="expected names below it"):
        read_manifest(address / "1")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"files": {"a": 1}}',
        b'{"files": {"a\\u0000b": {"size": 1, "sha256": "0"}}}',
        b'{"files": {"\\ud800": {"size": 1, "sha256": "0"}}}',
    ],
    ids=["empty", "no UTF-8", "a list", "deep", "no object", "a zero", "half a character"],
)
def test_a_manifest_that_is_none_says_so(address, content):
    """Any other error would end the look at the store, and no later version would come."""
    (address / "1" / MANIFEST).write_bytes(content)
    with pytest.raises(ValueError, match=r"^s3://.*/small/1/manifest.json: (damaged|expected)"):
        read_manifest(address / "1")


def test_an_address_is_an_option_and_a_configuration(tmp_path):
    options = ServerOptions(model_name="m", model_base_path="s3://bucket/models/m/")
    assert str(options.model_base_path) == "s3://bucket/models/m"
    with pytest.raises(
        ServingError, match=r"^--model_base_path: http://...: expected a local path"
    ):
        ServerOptions(model_name="m", model_base_path="http://bucket/m")


def test_publish_to_a_store(base, address, capsys):
    shutil.copytree(base.root / "1", base.root / "2")
    arguments = ["publish", "--base", str(base.root), "--to", str(address)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["uploaded"] == {"copied": [1, 2], "removed": []}
    assert main([*arguments, "--rollback"]) == 0
    assert there(address) == {"1"}
    assert main([*arguments[:-1], "models"]) == 2
    assert "--to: expected an address such as s3://" in capsys.readouterr().err


def test_copies_go_once_the_store_is_ahead_and_nobody_uses_them(
    base, address, publish, run_server, until
):
    upload(base, address)
    with (
        serving(run_server, address) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        (folder,) = cache_folder("versions").iterdir()
        with other_process("uses", folder / "1") as held:
            assert held == "True"
            publish(base.root, 2)
            upload(base, address)
            until(lambda: running.server.models.available_versions() == {"small": [2]})
            looked(running, until)
            assert copies(running) == {"1", "2"}
        until(lambda: copies(running) == {"2"})
        # A version that is withdrawn leaves its number at once, and the disk with its last user.
        with other_process("uses", folder / "2") as held:
            assert held == "True"
            base.rollback()
            upload(base, address)
            until(lambda: version(client) == 1)
            looked(running, until)
            assert "2" not in copies(running)
            (kept,) = folder.glob(".2.*")
            assert (kept / "saved_model.pb").is_file()
        until(lambda: copies(running) == {"1"})


def test_what_a_killed_process_had_half_written_goes(base, address, run_server, until):
    upload(base, address)
    with serving(run_server, address) as running:
        (folder,) = cache_folder("versions").iterdir()
        for other in (folder / "5", folder / ".trial/5", folder.with_name("f" * 24) / "5"):
            with other_process("writes", other) as held:
                (Path(held) / "saved_model.pb").write_bytes(b"half")
                looked(running, until)
                assert Path(held).is_dir()
            until(lambda left=Path(held): not left.exists())


def test_base_paths_that_no_process_has_served_for_a_week_go(base, address, run_server):
    upload(base, address)
    with serving(run_server, address):
        (served,) = cache_folder("versions").iterdir()
    lately, long_ago, in_use = (served.with_name(letter * 24) for letter in "abc")
    old = time.time() - 8 * 24 * 3600
    for other in (lately, long_ago, in_use):
        shutil.copytree(served, other)
    for one in (served, long_ago, in_use):
        os.utime(one, (old, old))
    with other_process("uses", in_use) as held, serving(run_server, address):
        assert held == "True"
        assert set(served.parent.iterdir()) == {served, lately, in_use}


def test_google_cloud_storage_serves_as_well(base, gs_address, run_server, tmp_path, monkeypatch):
    monkeypatch.setenv("MULTIGATE_CACHE", str(tmp_path / "cache"))
    upload(base, place(str(gs_address / "small")))
    with (
        serving(run_server, gs_address / "small") as running,
        RankClient(running.target, timeout=120) as client,
    ):
        assert version(client) == 1
