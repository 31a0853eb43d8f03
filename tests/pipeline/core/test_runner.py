"""Beam's runner is quiet where it must be, and nowhere longer."""

import logging
import sys
import threading

import pytest

from multigate.pipeline.core.runner import import_beam, plain_failures


@pytest.fixture
def beam_log():
    log = logging.getLogger("apache_beam")
    level = log.level
    yield log
    log.setLevel(level)


def test_runs_side_by_side_leave_beams_log_as_it_was(beam_log):
    """The run that began second would put the silence back that it found."""
    beam_log.setLevel(logging.INFO)
    began, ended = threading.Event(), threading.Event()

    def second():
        with plain_failures():
            began.set()
            ended.wait()

    thread = threading.Thread(target=second)
    try:
        with plain_failures():
            thread.start()
            assert began.wait(200)
        assert beam_log.level == logging.CRITICAL  # the second still runs
    finally:
        ended.set()
        thread.join()
    assert beam_log.level == logging.INFO


def test_beam_is_imported_without_muting_anyone(caplog):
    import_beam()
    logging.getLogger("multigate.other").warning("kept")
    logging.getLogger().warning("apitools not found, and more")
    logging.getLogger().warning("anything else")
    assert [record.getMessage() for record in caplog.records] == ["kept", "anything else"]
    assert logging.root.manager.disable == logging.NOTSET


def test_modules_of_c_are_built_before_threads_ask_for_them(monkeypatch):
    """Two threads of Beam that ask such a module for its contents at once abort the process."""
    built = []

    class Library:
        @property
        def __dict__(self):
            built.append(threading.current_thread())
            return {}

    monkeypatch.setitem(sys.modules, "_library.lib", Library())
    import_beam()
    assert built == [threading.current_thread()]
