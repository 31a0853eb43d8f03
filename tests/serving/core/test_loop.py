"""Threads beside the loop: what a call that is cancelled leaves behind."""

import asyncio
import gc
import logging
import threading
import time
import weakref

import pytest

from multigate.serving.core.loop import CALLS, LoopLag, Threads


@pytest.fixture(scope="module", autouse=True)
def loop():
    """The loop in which calls wait."""
    CALLS.enter()
    yield
    CALLS.leave()


class Work:
    """Something that takes until it is let go, and may fail then."""

    def __init__(self, error=None):
        self.error = error
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.let_go.wait(120)
        if self.error is not None:
            raise self.error
        return "done"


@pytest.fixture
def threads():
    """A single thread."""
    threads = Threads(1)
    yield threads
    threads.close()


@pytest.fixture
def call(threads):
    """Start a call that does some work; its future, and an event for its end."""

    def start(work):
        ended = threading.Event()

        async def call():
            try:
                return await threads.run(work)
            finally:
                ended.set()

        return CALLS.submit(call()), ended

    return start


def test_a_call_that_is_cancelled_before_a_thread_is_free_leaves_no_work(threads, call, until):
    first, second = Work(), Work()
    running, _ = call(first)
    assert first.begun.wait(120)
    waiting, ended = call(second)
    until(lambda: threads._pool._work_queue.qsize() == 1)
    assert waiting.cancel()
    assert ended.wait(120)
    first.let_go.set()
    assert running.result(120) == "done"
    assert call(lambda: "next")[0].result(120) == "next"
    assert not second.begun.is_set()


def test_work_that_raises_stop_iteration_ends_its_call(call, threads):
    """An asyncio future refuses StopIteration; the call, and a drain with it, waited for ever."""
    running, ended = call(lambda: next(iter(())))
    with pytest.raises(RuntimeError, match="the work raised StopIteration"):
        running.result(120)
    assert ended.is_set()


def test_what_failing_work_had_read_does_not_wait_for_the_garbage_collector(call, until):
    """The collector stopped all threads for 15 ms to free the documents of refused calls."""

    class Document:
        pass

    read = []

    def work():
        document = Document()
        read.append(weakref.ref(document))
        raise ValueError("no such document")

    gc.disable()
    try:
        running, ended = call(work)
        with pytest.raises(ValueError, match="no such document"):
            running.result(120)
        assert ended.wait(120)
        del running
        until(lambda: read[0]() is None)
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_call_that_is_cancelled_ends_with_its_work_whose_failure_is_nobodys(call, caplog):
    work = Work(ValueError("too late"))
    running, ended = call(work)
    assert work.begun.wait(120)
    assert running.cancel()
    assert not ended.wait(0.2)
    with caplog.at_level(logging.ERROR):
        work.let_go.set()
        assert ended.wait(120)
        call(gc.collect)[0].result(120)
    assert not caplog.records


def test_lag_of_the_loop_is_as_long_as_what_held_it_up(until):
    seen = []
    lag = LoopLag(seen.append)

    async def begin():
        lag.start()

    async def hold_up():
        time.sleep(0.2)

    async def end():
        lag.stop()

    CALLS.submit(begin()).result(120)
    until(lambda: len(seen) >= 3)
    CALLS.submit(hold_up()).result(120)
    count = len(seen)
    until(lambda: len(seen) > count)
    CALLS.submit(end()).result(120)
    assert max(seen) > 0.2 - 2 * LoopLag.EVERY
    assert min(seen) >= 0.0
    count = len(seen)
    CALLS.submit(_pause()).result(120)
    assert len(seen) == count


async def _pause():
    await asyncio.sleep(5 * LoopLag.EVERY)
