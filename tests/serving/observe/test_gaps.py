"""Gaps between calls: who waits for them, and how long."""

import threading

import pytest

from multigate.runtime.in_flight import CallsInFlight
from multigate.serving.core.options import ServerOptions
from multigate.serving.observe import gaps as waited_for
from multigate.serving.observe.gaps import Gaps


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def options_of(tmp_path, **options):
    return ServerOptions(model_name="small", model_base_path=tmp_path, **options)


def test_work_waits_until_the_last_call_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(waited_for, "LONGEST_WAIT", 240.0)
    monkeypatch.setattr(waited_for, "cores", lambda: 2.0)
    calls = CallsInFlight()
    gaps = Gaps(calls, options_of(tmp_path))
    gaps.wait()  # no call
    calls.begin()
    calls.begin()
    worker = threading.Thread(target=gaps.wait)
    worker.start()
    calls.end()
    worker.join(0.05)
    assert worker.is_alive()
    calls.end()
    worker.join(240)
    assert not worker.is_alive()


def test_work_goes_on_where_calls_leave_no_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(waited_for, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(waited_for, "cores", lambda: 2.0)
    calls = CallsInFlight()
    calls.begin()
    Gaps(calls, options_of(tmp_path)).wait()


def test_small_pieces_share_a_wait_where_calls_leave_no_gap(tmp_path, monkeypatch):
    """Else a call that is always in flight, and waits itself, would starve them."""
    clock, calls = Clock(), CallsInFlight()
    monkeypatch.setattr(waited_for, "time", clock)
    monkeypatch.setattr(waited_for, "cores", lambda: 2.0)
    calls.begin()
    gaps = Gaps(calls, options_of(tmp_path))
    for _ in range(256):  # what may wait
        for _ in range(2):
            gaps.wait()
            clock.now += 5e-4  # of work
    work = 256 * 2 * 5e-4
    waits = work / waited_for.WORK_SECONDS * waited_for.LONGEST_WAIT
    assert clock.now - 1000 == pytest.approx(work + waits, rel=0.1)
    calls.end()
    clock.now += 1
    before = clock.now
    gaps.wait()
    assert clock.now == before


@pytest.mark.parametrize(
    ("found", "options", "waits"),
    [
        (1.0, {}, True),
        (2.0, {"num_batch_threads": 1}, True),
        (3.5, {"num_batch_threads": 1}, True),
        (4.0, {"num_batch_threads": 1}, False),  # its loop, gRPC's threads, a run, and one more
        (8.0, {"num_batch_threads": 6}, True),
        (9.0, {"num_batch_threads": 6}, False),
        (8.0, {"num_batch_threads": 1, "workers": 2}, False),
        (8.0, {"num_batch_threads": 1, "workers": 3}, True),
        (7.0, {"num_batch_threads": 1, "tensorflow_intra_op_parallelism": 4}, False),
        (6.0, {"num_batch_threads": 1, "tensorflow_intra_op_parallelism": 4}, True),
        (64.0, {"num_batch_threads": 1, "tensorflow_intra_op_parallelism": 0}, True),
        (8.0, {"num_batch_threads": 1, "tensorflow_inter_op_parallelism": 4}, False),
        (7.0, {"num_batch_threads": 1, "tensorflow_inter_op_parallelism": 4}, True),
        (64.0, {"num_batch_threads": 1, "tensorflow_inter_op_parallelism": 0}, True),
    ],
)
def test_it_waits_where_the_server_can_want_every_core(
    tmp_path, monkeypatch, found, options, waits
):
    monkeypatch.setattr(waited_for, "cores", lambda: found)
    monkeypatch.setattr(waited_for, "LONGEST_WAIT", 1e-4)
    looks, calls = [], CallsInFlight()
    calls.begin()
    monkeypatch.setattr(waited_for.time, "sleep", looks.append)
    Gaps(calls, options_of(tmp_path, **options)).wait()
    assert bool(looks) == waits
