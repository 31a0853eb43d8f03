"""Background threads that fail begin again, and say so."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from multigate.serving.core import background
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.metrics import ServerMetrics


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(background, "_FIRST_PAUSE", 0.01)


def test_work_that_fails_is_logged_counted_and_begun_again(caplog):
    metrics, succeeded, calls = ServerMetrics(), threading.Event(), []

    def work():
        calls.append(1)
        if len(calls) < 3:
            raise OSError("no room")
        succeeded.set()

    with caplog.at_level(logging.ERROR):
        thread = SupervisedThread("sweeper", work, metrics.thread_failed)
        thread.start()
        assert succeeded.wait(120)
        thread.join()
    assert len(calls) == 3
    assert 'multigate_thread_failures_total{thread="sweeper"} 2.0' in metrics.text()
    assert "thread sweeper failed; it begins again in" in caplog.text
    assert "no room" in caplog.text


def test_work_goes_on_where_its_failure_cannot_be_told(caplog):
    succeeded, calls = threading.Event(), []

    def work():
        calls.append(1)
        if len(calls) < 2:
            raise OSError("no room")
        succeeded.set()

    def tell(name):
        raise MemoryError

    thread = SupervisedThread("sweeper", work, tell)
    thread.start()
    assert succeeded.wait(120)
    thread.join()
    assert "the failure of thread sweeper is not counted" in caplog.text


def test_work_that_fails_while_it_ends_does_not_begin_again():
    begun, end, calls = threading.Event(), threading.Event(), []

    def work():
        calls.append(1)
        begun.set()
        end.wait(120)
        raise OSError("closed")

    thread = SupervisedThread("sweeper", work)
    thread.start()
    assert begun.wait(120)

    def let_it_end():
        thread._ending.wait(120)
        end.set()

    threading.Thread(target=let_it_end).start()
    thread.join()
    assert calls == [1]


def test_a_thread_that_was_not_started_can_be_joined():
    SupervisedThread("sweeper", lambda: None).join()


HANGS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from multigate.serving.core.background import SupervisedThread, end_without_hanging_threads
fine = SupervisedThread("fine", lambda: None)
fine.start()
fine.join()
end_without_hanging_threads()
with open(sys.argv[1], "w") as file:
    file.write("goes on where none hangs")
pool = ThreadPoolExecutor()  # Python waits for its threads
hung = SupervisedThread("mirror", lambda: pool.submit(threading.Event().wait).result())
hung.start()
hung.join(0.01)
end_without_hanging_threads()
"""


def test_a_process_ends_without_threads_that_hang(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", HANGS, tmp_path / "said"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=240,
    )
    told = "the process ends without threads that hang: mirror\n"
    assert (done.returncode, done.stderr) == (0, told)
    assert (tmp_path / "said").read_text() == "goes on where none hangs"
