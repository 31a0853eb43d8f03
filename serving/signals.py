"""SIGTERM and SIGINT as events that a server waits for."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stop_signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events that the first and the second SIGTERM or SIGINT set."""
    first, second = threading.Event(), threading.Event()

    def received(number: int, frame: Any) -> None:
        (second if first.is_set() else first).set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, received) for number in numbers]
    try:
        yield first, second
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def wait_for(event: threading.Event) -> None:
    """Wait until a signal has set the event.

    The kernel may hand the signal to one of TensorFlow's threads, which does not wake this one;
    Python runs the handler when this one next wakes by itself.
    """
    while not event.wait(0.5):
        pass
