"""The lock between processes, and the command that is told how a run ended."""

import json
import logging
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from multigate.configs import ConfigError
from multigate.configs.errors import RunError
from multigate.configs.sections.base import parse
from multigate.configs.sections.run import RunConfig
from multigate.jobs.lock import is_held, locked
from multigate.jobs.night.notify import notify

ROOT = Path(__file__).parents[3]

HOLDER = """
import sys, pathlib
from multigate.jobs.lock import locked
with locked(pathlib.Path(sys.argv[1]), "night of the holder"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with process:
        yield process
        process.kill()


def test_the_message_names_the_holder_and_a_killed_one_leaves_nothing(holder, tmp_path):
    path = tmp_path / "lock"
    assert is_held(path)
    with (
        pytest.raises(RunError, match=rf"held by night of the holder \(process {holder.pid} on "),
        locked(path, "second"),
    ):
        pytest.fail("two hold it")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not is_held(path)
    with locked(path, "second"):
        assert path.read_text().startswith(f"second (process {os.getpid()} on ")


def test_who_waits_gets_it_when_the_holder_ends(holder, tmp_path):
    holder.stdin.close()  # it lets go as soon as it reads that
    with locked(tmp_path / "lock", "second", wait=200):
        assert is_held(tmp_path / "lock")


def test_a_lock_that_nobody_ever_took(tmp_path):
    assert not is_held(tmp_path / "lock")


def options(command: str, seconds: float = 200) -> RunConfig:
    return RunConfig(notify=command, notify_timeout=timedelta(seconds=seconds))


def test_the_command_gets_the_message(tmp_path):
    path = tmp_path / "told.json"
    message = {"event": "failed", "message": "größer als '0'"}
    assert notify(options(f"sh -c 'cat > {path}'"), message)
    assert json.loads(path.read_text()) == message


def test_no_command_tells_nobody():
    assert not notify(RunConfig(), {"event": "published"})


@pytest.mark.parametrize(
    ("command", "seconds", "words"),
    [
        ("/no/such/program", 200, "No such file or directory"),
        ("sh -c 'echo no route >&2; exit 3'", 200, "exit status 3: no route"),
        ("sleep 60", 0.2, "no end after 0.2 s"),
        ("true", 200, None),  # reads nothing of what it is told
    ],
)
def test_a_command_that_fails_is_logged_and_no_more(command, seconds, words, caplog):
    with caplog.at_level(logging.ERROR):
        assert notify(options(command, seconds), {"event": "failed"}) == (words is None)
    assert (words in caplog.text) if words else not caplog.text


@pytest.mark.parametrize("command", ["  ", "sh -c 'cat"])
def test_a_command_that_is_none_is_refused(command):
    with pytest.raises(ConfigError, match=r"night\.yaml: .*notify"):
        parse(RunConfig, {"notify": command}, "night.yaml")
