"""SIGTERM and SIGINT as events that a server waits for."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

LOG = logging.getLogger("multigate.serving")

MARGIN = 10.0
"""Seconds beyond the time to drain, after which a process that has not ended is killed."""


@contextlib.contextmanager
def stop_signals(
    at_first: Callable[[], None] = lambda: None,
) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events that the first and the second SIGTERM or SIGINT set.

    Args:
        at_first: called at the first signal, whatever the main thread is doing.
    """
    first, second = threading.Event(), threading.Event()

    def received(number: int, frame: Any) -> None:
        if first.is_set():
            second.set()
        else:
            first.set()
            at_first()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, received) for number in numbers]
    try:
        yield first, second
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def wait_for(event: threading.Event) -> None:
    """Wait until a signal has set the event.

    The kernel may deliver the signal to one of TensorFlow's threads, which does not wake this one.
    Python runs the handler when this thread wakes up, so that it wakes up twice a second.
    """
    while not event.wait(0.5):
        pass


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Kill this process if the block takes longer, for example because a disk hangs."""

    def end() -> None:
        LOG.error("the server does not end within %g s and is killed", seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
