"""Calls cancelled at every moment: counters come back, versions stay open for their runs."""

import asyncio
import gc
import random
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from multigate.runtime.errors import RunTimeoutError
from multigate.serving.core.layout import Input, Layout
from multigate.serving.core.loop import CALLS, Threads
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.status import Call, RequestError
from multigate.serving.versions.batching import Batcher
from multigate.serving.versions.run_slots import RunSlots

ROWS = Layout({"x": Input("float32", "rows", "value", "x")})
CALLS_A_ROUND = 40


@pytest.fixture(scope="module", autouse=True)
def loop():
    """The loop that batchers belong to."""
    CALLS.enter()
    yield
    CALLS.leave()


class Context:
    """A gRPC context with some seconds left; None: no deadline."""

    def __init__(self, seconds):
        self.seconds = seconds

    def time_remaining(self):
        return self.seconds


class Open:
    """The calls that hold a version open, and a model that checks that its calls do."""

    def __init__(self):
        self.calls = set()
        self.released_early = []
        self._lock = threading.Lock()

    @contextmanager
    def call(self, number):
        with self._lock:
            self.calls.add(number)
        try:
            yield
        finally:
            with self._lock:
                self.calls.remove(number)

    def model(self, inputs, timeout=None):
        numbers = inputs["x"].tolist()
        time.sleep(0.0002 * (1 + int(numbers[0]) % 4))  # so that runs end at other moments
        with self._lock:
            self.released_early += [n for n in numbers if n not in self.calls]
        if any(n % 7 == 0 for n in numbers):
            raise ValueError("a multiple of seven")
        if any(n % 11 == 0 for n in numbers):
            raise RunTimeoutError("a multiple of eleven")
        return {"y": inputs["x"] * 2}


async def cancelled_at_random(draw, work):
    """Do a round's calls, and cancel some, each after a random number of turns of the loop."""
    tasks = {n: asyncio.ensure_future(work(n)) for n in range(1, CALLS_A_ROUND + 1)}
    for _ in range(CALLS_A_ROUND):
        for _ in range(draw.choice([0, 1, 2, 5, 40])):
            await asyncio.sleep(0)
        draw.choice(list(tasks.values())).cancel()
    await asyncio.wait(tasks.values())
    return [
        (n, asyncio.CancelledError() if task.cancelled() else task.exception() or task.result())
        for n, task in tasks.items()
    ]


def check(outcomes, caplog):
    """Each outcome is its call's own, several kinds came about, and asyncio had nothing to say."""
    for number, outcome in outcomes:
        if isinstance(outcome, np.ndarray):
            assert outcome.tolist() == [2 * number]
        elif isinstance(outcome, ValueError):
            assert number % 7 == 0
        elif isinstance(outcome, RunTimeoutError):
            assert number % 11 == 0
        else:
            assert isinstance(outcome, asyncio.CancelledError | RequestError)
    kinds = {type(outcome) for _, outcome in outcomes}
    assert {np.ndarray, ValueError, asyncio.CancelledError} <= kinds
    gc.collect()  # asyncio logs failures that nobody has read
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_calls_that_are_joined(caplog):
    outcomes = []
    for seed in range(10):
        draw, open_, slots = random.Random(seed), Open(), 1 + seed % 2
        one = Batcher(
            open_.model, ROWS, ("m", "x"), ServerMetrics(), slots=slots, max_rows=5, max_queued=20
        )

        async def work(number, draw=draw, open_=open_, one=one):
            rows = draw.choice([1, 1, 1, 3, 12])  # the last is run in parts
            call = Call(Context(draw.choice([None, 60, 0.002])))
            with open_.call(number):
                answer = await one.run({"x": np.full(rows, number, np.float32)}, rows, call)
            assert len(answer["y"]) == rows
            return answer["y"][:1]

        outcomes += CALLS.submit(cancelled_at_random(draw, work)).result(120)
        assert not open_.released_early
        assert not open_.calls
        assert (one._free, len(one._queue)) == (slots, 0)
    check(outcomes, caplog)


def test_calls_that_hold_a_slot(caplog):
    outcomes, threads = [], Threads(2)
    for seed in range(10):
        draw, open_, slots = random.Random(seed), Open(), 1 + seed % 2
        run_slots = RunSlots("m", slots, max_queued=20)

        async def work(number, draw=draw, open_=open_, run_slots=run_slots):
            call = Call(Context(draw.choice([None, 60, 0.002])))
            with open_.call(number):
                async with run_slots.hold(call):
                    inputs = {"x": np.array([number], np.float32)}
                    return (await threads.run(open_.model, inputs))["y"]

        outcomes += CALLS.submit(cancelled_at_random(draw, work)).result(120)
        assert not open_.released_early
        assert not open_.calls
        assert (run_slots._free._value, run_slots._queued) == (slots, 0)
    threads.close()
    check(outcomes, caplog)
