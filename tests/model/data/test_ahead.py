"""Batches that a thread makes ahead: the same ones, their errors, and the thread's end."""

import gc
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from multigate.model.data import examples, feeds
from multigate.model.data.ahead import ahead
from multigate.model.data.encoding import Encoder


def makers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


class Source:
    """Numbers that a thread may make; `made` are those that it has, `closed` its end."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.made: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.closed = threading.Event()
        self.third = threading.Event()
        self.count, self.fails_at = count, fails_at

    def numbers(self) -> Generator[int, None, None]:
        try:
            for number in range(self.count):
                self.threads.add(threading.current_thread())
                if number == self.fails_at:
                    raise OSError(5, f"row {number} is unreadable")
                self.made.append(number)
                if number == 2:
                    self.third.set()
                yield number
        finally:
            self.closed.set()


def test_every_batch_comes_once_and_in_order() -> None:
    for count in (0, 1, 2, 3, 50):
        source = Source(count)
        assert list(ahead(source.numbers())) == list(range(count))
        assert source.closed.is_set()
        assert threading.current_thread() not in source.threads
        assert not makers()


def test_two_batches_are_made_while_one_is_consumed() -> None:
    source = Source(50)
    flow = ahead(source.numbers())
    assert next(flow) == 0
    assert source.third.wait(60)  # nobody has asked for it
    assert source.made == [0, 1, 2]  # and no more
    flow.close()
    assert source.made == [0, 1, 2]


def test_an_error_comes_where_its_batch_is_asked_for() -> None:
    source = Source(50, fails_at=4)
    flow = ahead(source.numbers())
    assert [next(flow) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="row 4 is unreadable"):
        next(flow)
    assert not makers()
    assert list(flow) == []


def test_the_thread_ends_with_an_abandoned_epoch() -> None:
    source = Source(50)
    for number in ahead(source.numbers()):
        if number == 7:
            break
    gc.collect()
    assert source.closed.wait(60)
    assert not makers()
    never = ahead(Source(50).numbers())  # an epoch that does not begin has no thread
    assert not makers()
    del never


@pytest.mark.parametrize("skip", [0, 3])
def test_a_feed_on_jax_gathers_ahead_in_the_same_order(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, skip: int
) -> None:
    encoder = Encoder.read(tiny.examples)
    split = examples.Split(tiny.examples, "train", encoder)
    rows = examples.concatenate(list(split.read(split.groups)))

    def feed() -> feeds.MemoryFeed:
        return feeds.MemoryFeed(rows, tiny.config.contract, encoder.statistics, 32, seed=1)

    expected = [(dict(x), np.array(y)) for x, y in feed().epoch(2)]
    monkeypatch.setattr(feeds.backend, "name", lambda: "jax")
    flow = feed().epoch(2, skip)
    received = [next(flow)]
    assert len(makers()) == 1
    received += flow
    assert not makers()
    assert len(received) == len(expected) - skip
    for (x, y), (other_x, other_y) in zip(expected[skip:], received, strict=True):
        assert x.keys() == other_x.keys()
        for name, values in x.items():
            np.testing.assert_array_equal(np.array(values), other_x[name], err_msg=name)
        np.testing.assert_array_equal(y, other_y)
