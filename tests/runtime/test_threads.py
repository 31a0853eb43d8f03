import gc
import threading
import weakref

import pytest

from multigate.runtime.threads import RunThreads


def test_work_goes_to_the_thread_that_was_busy_last():
    """Each new thread would keep memory of its own: a server grew with every swap."""
    threads, over = RunThreads(), threading.Event()
    first = threads.submit(threading.get_ident).result(60)
    waits = threads.submit(over.wait, 60)
    second = threads.submit(threading.get_ident).result(60)
    assert second != first
    over.set()
    assert waits.result(60)
    assert {threads.submit(threading.get_ident).result(60) for _ in range(200)} == {first}


def test_work_that_fails_tells_and_its_thread_goes_on():
    threads = RunThreads()

    def fail():
        raise StopIteration(threading.get_ident())

    future = threads.submit(fail)
    with pytest.raises(StopIteration) as raised:
        future.result(60)
    assert raised.value.value == threads.submit(threading.get_ident).result(60)


@pytest.mark.parametrize("fails", [False, True])
def test_what_work_knew_goes_with_it(fails):
    class Large:
        pass

    def work(one):
        if fails:
            raise ValueError
        return one

    threads, one = RunThreads(), Large()
    gone = weakref.ref(one)
    gc.disable()
    try:
        future = threads.submit(work, one)
        assert (future.exception(60) is None) == (not fails)
        threads.submit(int).result(60)  # the thread has let go of it
        del future, one
        assert gone() is None
    finally:
        gc.enable()


def test_no_thread_can_be_started(monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="start new thread"):
        RunThreads().submit(int)
