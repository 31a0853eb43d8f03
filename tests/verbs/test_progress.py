"""Progress: a bar on a terminal while a verb works, a clean line after it, nothing in a pipe."""

import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from multigate.configs import progress
from multigate.jobs.simulate import simulate
from multigate.verbs import VERBS
from multigate.verbs.command import main

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMANDS = {
    "examples": ("--config CONFIG --data LOGS --out OUT", r"\d/\d assemble"),
    "init": ("--data LOGS --out OUT", "init"),
    "check": ("--config CONFIG --data LOGS", "check"),
    "audit": ("--config CONFIG --data LOGS --examples EXAMPLES --sample 10", "audit"),
    "train": ("--config CONFIG --examples EXAMPLES --out OUT", r"epoch 1/1 .*\d+/\d+ steps"),
    "evaluate": ("--version VERSION --examples EXAMPLES", "evaluate"),
    "compare": ("--candidate VERSION --examples EXAMPLES", "compare"),
    "export": ("--checkpoint CHECKPOINT --examples EXAMPLES --out OUT", "export"),
    "score": ("--version VERSION --examples EXAMPLES --out OUT.parquet", r"score .* rows"),
    "explain": ("--model VERSION --examples EXAMPLES --row 0 --pairs 2", "explain"),
    "tune": ("--config CONFIG --examples EXAMPLES --out OUT --trials 1", "tune .*0/1 trials"),
    "candidates": ("train --config CONFIG --examples EXAMPLES --out OUT", "train .* epochs"),
    "demo": ("--config CONFIG --data LOGS --out OUT", r"epoch 1/1 .*\d+/\d+ steps"),
    "run": ("--config CONFIG --data LOGS --out OUT --date 2026-01-30", r"run .*\d/\d stages"),
}
"""Verb -> its command line, and what its bar says."""
ELSEWHERE = {"trial", "publish", "features"}
"""Verbs that need more than the small run: each has a test of its own."""
QUICK = {
    *("options", "print-config", "completion", "runs"),
    *("models", "reload", "rank", "recommend"),  # a server answers, or --timeout ends
    "serve",  # never ends, and writes a log
}
"""Verbs that take no more than a few seconds, or draw nothing for another reason."""
SLOW = dict.fromkeys(("train", "candidates", "compare"), pytest.mark.slow)
SLOW |= dict.fromkeys(("tune", "export", "evaluate", "demo", "run"), pytest.mark.long)


class Terminal:
    """A pseudo-terminal in place of standard error; what is written to it is read at once."""

    def __init__(self) -> None:
        self._main, self.side = pty.openpty()
        self._read: list[bytes] = []
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            while found := os.read(self._main, 65_536):
                self._read.append(found)
        except OSError:  # nobody has it open any more
            pass

    def text(self) -> str:
        """All that was written, once nobody writes any more."""
        os.close(self.side)
        self._thread.join()
        os.close(self._main)
        return b"".join(self._read).decode()


class StandardError(Terminal):
    """Takes the place of standard error from now on, until it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._before, self._stream = os.dup(2), sys.stderr
        os.dup2(self.side, 2)
        sys.stderr = os.fdopen(os.dup(2), "w")
        self._found: str | None = None

    def text(self) -> str:
        """Give standard error back, and tell what was written."""
        if self._found is None:
            sys.stderr.close()
            sys.stderr = self._stream
            os.dup2(self._before, 2)
            os.close(self._before)
            self._found = super().text()
        return self._found


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], StandardError]:
    """Makes standard error a terminal, within the test: between phases pytest moves it itself."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return StandardError


def last_line(text: str) -> str:
    """What stands on the line of the cursor."""
    rest = re.split(r"\x1b\[2K|\r\n", text)[-1]
    return ESCAPE.sub("", rest).strip("\r")


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "verb", [pytest.param(v, marks=SLOW[v]) if v in SLOW else v for v in COMMANDS]
)
def test_a_verb_shows_a_bar_and_leaves_a_clean_line(verb, words_of, terminal):
    text, expected = COMMANDS[verb]
    words = words_of(text)
    seen = terminal()
    status = main([verb, *words])
    text = seen.text()
    assert status in (0, 1)
    assert re.search(expected, ESCAPE.sub("", text))
    assert "\x1b[?25l" in text  # while there is a bar, there is no cursor
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert last_line(text) == ""


def test_every_verb_draws_a_bar_or_is_known_to_be_quick():
    assert {*COMMANDS, *ELSEWHERE, *QUICK} == set(VERBS)
    assert not QUICK & {*COMMANDS, *ELSEWHERE}


def test_a_trial_shows_a_bar(on_trial, terminal):
    base, shown = on_trial("user_id")
    seen = terminal()
    status = main(["trial", "--base", str(base), "--log", str(shown)])
    text = seen.text()
    assert status == 1, text  # eight users are too few to bless
    assert re.search("trial .* 0/3", ESCAPE.sub("", text))
    assert last_line(text) == ""


def test_publication_in_a_store_shows_a_bar(words_of, terminal, bucket):
    words = words_of("--base BASE --to TO", TO=str(bucket.address / "models"))
    seen = terminal()
    status = main(["publish", *words])
    text = seen.text()
    assert status == 0, text
    assert re.search("publish to .* versions", ESCAPE.sub("", text))
    assert last_line(text) == ""


def test_features_show_a_bar_while_they_are_loaded(words_of, terminal, tmp_path, lacking):
    program = shutil.which("redis-server")
    if program is None:
        lacking("redis-server is not installed")
    path = tmp_path / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)]
    redis = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            while made.connect_ex(str(path)) and redis.poll() is None:
                time.sleep(0.02)
        seen = terminal()
        words = words_of("load --snapshot EXAMPLES --to ADDRESS", ADDRESS=f"unix://{path}?db=0")
        status = main(["features", *words])
        text = seen.text()
    finally:
        redis.terminate()
        redis.wait()
    assert status == 0, text
    assert re.search("load (users|items)", ESCAPE.sub("", text))
    assert last_line(text) == ""


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_a_verb_shows_no_bar_where_it_is_not_wanted(option, small_run, tmp_path, terminal):
    out = tmp_path / "my.yaml"
    seen = terminal()
    status = main(["init", "--data", str(small_run.root / "logs"), "--out", str(out), option])
    assert "\x1b" not in seen.text()
    assert status == 0


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("progress") / "logs"
    simulate(folder, seed=1, users=50, items=30, exposures=3_000)
    return folder


@pytest.mark.sweep(1)
@pytest.mark.parametrize("shown", [True, False])
def test_a_process_draws_on_a_terminal_only(shown, logs, tmp_path):
    """Results go to standard output either way, without a bar."""
    command = ["examples", "--config", "demo", "--data", logs, "--out", tmp_path / "examples"]
    terminal = Terminal() if shown else None
    process = subprocess.Popen(
        [sys.executable, "-m", "multigate", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if terminal is None else terminal.side,
        text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    out, err = process.communicate()
    if terminal is not None:
        err = terminal.text()
        shown_text = ESCAPE.sub("", err)
        assert re.search(r"1/5 read .* 1/\d+", shown_text) or "rows read" in shown_text
        assert "3,000 rows read" in shown_text
        assert last_line(err) == ""
    else:
        assert err == ""
    assert process.returncode == 0
    assert "\x1b" not in out
    assert "rows in" in out


def test_a_failure_removes_the_bar_before_its_line(terminal):
    seen = terminal()
    with suppress(ValueError), progress.shown(True), progress.bar("work", 3):
        raise ValueError("wrong")
    print("error: wrong", file=sys.stderr)
    text = seen.text()
    assert "work" in text
    assert text.endswith("error: wrong\r\n")
    assert last_line(text.removesuffix("\r\n")) == "error: wrong"


def test_lines_stand_above_the_bar(terminal):
    seen = terminal()
    with progress.shown(True), progress.bar("work", 2, "parts") as bar:
        progress.console().print("a line")
        bar.advance()
        with progress.bar("inner", 1) as inner:
            inner.step("one")
        bar.advance()
    text = ESCAPE.sub("", seen.text())
    assert "a line\r\n" in text
    assert "work" in text
    assert "inner" in text


def test_an_outer_decision_stands_and_nobody_s_draws_nothing(terminal):
    seen = terminal()
    with progress.bar("unseen", 1):
        pass
    with progress.shown(False):
        quiet = progress.quiet()
        with progress.shown(True), progress.bar("unseen", 1):
            pass
    assert seen.text() == ""
    assert quiet
    assert not progress.quiet()


def test_items_are_counted_without_a_terminal_too():
    assert list(progress.track("abc", "letters", 3)) == ["a", "b", "c"]

    @progress.stepwise("work", 2)
    def work(value: int) -> int:
        progress.step("first")
        progress.step("second")
        return value

    assert work(3) == 3
    progress.step("outside of any")
