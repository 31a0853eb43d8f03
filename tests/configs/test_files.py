"""Folders are complete or absent."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from multigate.configs import DataError
from multigate.configs.files import new_file, new_folder, write_bytes, write_json, write_text


def test_folder_appears_whole(tmp_path):
    path = tmp_path / "deep" / "out"
    with new_folder(path) as folder:
        (folder / "a").write_text("1")
        assert not path.exists()
    assert (path / "a").read_text() == "1"
    assert [p.name for p in path.parent.iterdir()] == ["out"]


def test_failure_leaves_nothing(tmp_path):
    path = tmp_path / "deep" / "deeper" / "out"
    with pytest.raises(RuntimeError), new_folder(path) as folder:
        (folder / "a").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(DataError, match="out: already exists; choose another output folder"),
        new_folder(tmp_path / "out"),
    ):
        pass


def test_json_is_written_whole_and_refuses_nan(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": "é"})
    assert json.loads(path.read_text()) == {"a": "é"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": "é"}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    """Two attempts at one stage, of which the first is still writing."""
    path = tmp_path / "x.json"
    with new_file(path) as first:
        first.write_bytes(b"1")
        write_bytes(path, b"2")
        assert path.read_bytes() == b"2"
    assert path.read_bytes() == b"1"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_what_killed_writers_of_a_file_left_is_removed_after_an_hour(tmp_path):
    path = tmp_path / "x[1].json"
    old, new = (tmp_path / f".{path.name}.{n * 8}.partial" for n in "01")
    other = tmp_path / ".y.json.00000000.partial"
    for left in (old, new, other):
        left.touch()
    for left in (old, other):
        os.utime(left, (0, 0))
    write_bytes(path, b"1")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([new.name, other.name, path.name])


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    """In a container every run has the same process id."""
    with new_folder(tmp_path / "out"):
        (left,) = tmp_path.iterdir()
    shutil.rmtree(tmp_path / "out")
    left.mkdir()
    (left / "half").touch()
    with new_folder(tmp_path / "out"):
        assert not left.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


WRITER = """
import sys, time
from pathlib import Path
from multigate.configs.files import new_folder
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print("writing", flush=True)
    time.sleep(600)
"""


def test_only_what_dead_writers_left_is_removed(tmp_path):
    (tmp_path / ".hidden.partial").mkdir()  # not a name of ours
    root = Path(__file__).parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path / "1"], stdout=subprocess.PIPE, cwd=root
    )
    try:
        assert writer.stdout.readline() == b"writing\n"
        (left,) = tmp_path.glob(".1.*")
        with new_folder(tmp_path / "2"):
            pass
        assert (left / "half").exists()  # its writer lives
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert left.exists()
    with new_folder(tmp_path / "3"):
        assert not left.exists()
    assert {p.name for p in tmp_path.iterdir()} == {".hidden.partial", "2", "3"}


def test_a_folder_that_another_wrote_meanwhile_stays(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(DataError, match="out: already exists"), new_folder(path):
        path.mkdir()
        (path / "theirs").write_text("1")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (path / "theirs").read_text() == "1"


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
