"""The command: whatever fails, the user reads one line, and nothing half-written is left."""

import argparse
import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multigate.jobs.simulate import simulate
from multigate.verbs import VERBS, module_of
from multigate.verbs.command import main


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command") / "logs"
    simulate(folder, seed=1, users=50, items=30, exposures=5_000)
    return folder


def one_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_an_output_below_a_file(logs, tmp_path, capfd):
    (tmp_path / "file").write_text("mine")
    out = str(tmp_path / "file" / "out")
    assert main(["examples", "--config", "demo", "--data", str(logs), "--out", out]) == 2
    line = one_line(capfd.readouterr().err)
    assert line.startswith("error: ")
    assert str(tmp_path / "file") in line
    assert "Not a directory" in line or "File exists" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_while_making_examples(logs, tmp_path, capfd, full_disk):
    out = tmp_path / "out"
    arguments = ["examples", "--config", "demo", "--data", str(logs), "--out", str(out)]
    with full_disk(20_000):
        status = main(arguments)
    assert status == 2
    line = one_line(capfd.readouterr().err)
    assert line.startswith("error: ")
    assert "File too large" in line
    assert "while running" not in line
    assert list(tmp_path.iterdir()) == []


HELD = """
import sys, time
from contextlib import contextmanager
from pathlib import Path
from multigate.pipeline.stages import records
from multigate.verbs.command import main

folder, new_part = Path(sys.argv.pop(1)), records.new_part

@contextmanager
def part(path):
    with new_part(path) as temporary:
        yield temporary
    (folder / "begun").touch()
    while not (folder / "go on").exists():
        time.sleep(0.01)

records.new_part = part
sys.exit(main(sys.argv[1:]))
"""
"""The command; a stage that has written something waits until it may go on."""


@pytest.mark.slow
def test_a_termination_signal_leaves_nothing(logs, tmp_path, tmp_path_factory):
    out, held = tmp_path / "out", tmp_path_factory.mktemp("held")
    command = ["examples", "--config", "demo", "--data", str(logs), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, held, *command], stderr=subprocess.PIPE, text=True
    )
    while not (held / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert list(tmp_path.glob(".*/*"))
    process.send_signal(signal.SIGTERM)
    (held / "go on").touch()
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "error: interrupted; nothing half-written is left\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "rest"),
    [
        ("train", "no half-written checkpoint is left; the same command with --resume continues "),
        ("run", "finished stages are kept, and the same command goes on where it stopped"),
        ("tune", "finished trials are kept, and the same command goes on with the one it was at"),
        ("evaluate", "nothing half-written is left"),
    ],
)
def test_an_interrupted_verb_says_in_one_line_whether_it_goes_on(verb, rest, capfd, monkeypatch):
    def interrupted(options: argparse.Namespace) -> dict:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(f"multigate.verbs.{verb}"), "execute", interrupted)
    own = {
        "train": ["--config", "demo", "--examples", "e", "--out", "c"],
        "run": ["--config", "demo", "--data", "logs", "--out", "runs"],
        "tune": ["--config", "demo", "--examples", "e", "--out", "c"],
        "evaluate": ["--checkpoint", "c", "--examples", "e"],
    }
    assert main([verb, *own[verb]]) == 130
    assert one_line(capfd.readouterr().err).startswith(f"error: interrupted; {rest}")


def test_the_exit_statuses_are_documented():
    """Which verbs may end with 1, by their own word, are those of the table."""
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    (row,) = re.findall(r"^\| 1 \| .*$", page, re.MULTILINE)
    with_verdict = {
        verb for verb in VERBS if hasattr(importlib.import_module(module_of(verb)), "status")
    }
    assert set(re.findall(r"`([a-z]+)[^`]*`", row)) == with_verdict
    assert re.findall(r"^\| (\d+) \| ", page, re.MULTILINE) == ["0", "1", "2", "130", "141"]


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "arguments", [["options"], ["options", "--json"], ["print-config", "demo"]]
)
def test_a_reader_that_goes_away_is_no_error(arguments):
    """As after `| head -1`: the status is that of a program which the signal ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "multigate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), stderr) == (128 + signal.SIGPIPE, "")


def test_a_failed_demo_leaves_no_empty_folder(tmp_path, capfd):
    out = tmp_path / "out"
    arguments = ["demo", "--config", "deskdrop", "--data", str(tmp_path / "no"), "--out", str(out)]
    assert main(arguments) == 2
    assert "no such folder" in one_line(capfd.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(module_of(verb)).add_arguments(parser)
    parsers, silent = [parser], []
    for one in parsers:
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif not action.help:
                silent.append(f"{one.prog} {action.dest}")
    assert silent == []


@pytest.mark.parametrize(
    "line",
    [
        "serve --model-name m --model-base-path=gone --rest-api-port 1",
        "serve --model_name m --model_base_path=gone --rest_api_port 1",
        "examples --config gone-too --data gone --out out_a --max-reject-rate 0.1",
    ],
)
def test_words_of_options_are_joined_by_either_sign(line, capfd, tmp_path, monkeypatch):
    """What follows an option keeps its own signs."""
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    assert one_line(capfd.readouterr().err).startswith("error: gone")
