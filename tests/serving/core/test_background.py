"""Background threads that fail begin again, and say so."""

import logging
import threading

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
