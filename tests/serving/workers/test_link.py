"""The pipe between supervisor and worker: late answers, dead peers, and faults on either side."""

import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from multigate.serving.core.loop import CALLS
from multigate.serving.workers.link import (
    AnswerTimeoutError,
    DisconnectedError,
    PeerError,
    PipeClient,
    PipeServer,
)
from multigate.serving.workers.messages import GetMetrics, Heartbeat, Stop
from multigate.serving.workers.worker import OrderHandler


def hang_up(connection):
    """End both directions; closing alone would wait for a thread that reads."""
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def pipe():
    ours, theirs = multiprocessing.Pipe()
    yield ours, theirs
    hang_up(ours)
    for thread in threading.enumerate():  # the next test's pipe may get the same file descriptor
        if thread.name == "answers":
            thread.join(120)
    ours.close()
    theirs.close()


def ask(client, request):
    """Ask in a thread; where the answer, or what was raised, will be."""
    found = []

    def run():
        try:
            found.append(client(request, 120))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_answers_reach_whoever_asked_in_any_order(pipe):
    client, server = PipeClient(pipe[0]), PipeServer(pipe[1])
    askers = {text: ask(client, text) for text in ("a", "b", "c")}
    requests = [server.receive() for _ in askers]
    for number, request in reversed(requests):
        server.send(number, request.upper())
    for text, (thread, found) in askers.items():
        thread.join(120)
        assert found == [text.upper()]


def test_a_late_answer_is_dropped(pipe):
    client, server = PipeClient(pipe[0]), PipeServer(pipe[1])
    with pytest.raises(AnswerTimeoutError, match=r"no answer within 0.05 s"):
        client("slow", 0.05)
    server.send(server.receive()[0], "too late")
    thread, found = ask(client, "next")
    server.send(server.receive()[0], "in time")
    thread.join(120)
    assert found == ["in time"]


def test_a_failure_on_the_other_side_is_an_answer(pipe):
    client, server = PipeClient(pipe[0]), PipeServer(pipe[1])
    thread, found = ask(client, "x")
    server.fail(server.receive()[0], RuntimeError("planted"))
    thread.join(120)
    (error,) = found
    assert isinstance(error, PeerError)
    assert "planted" in str(error)


def test_an_answer_that_cannot_be_pickled_is_a_failure(pipe, caplog):
    client, server = PipeClient(pipe[0]), PipeServer(pipe[1])
    thread, found = ask(client, "x")
    server.send(server.receive()[0], threading.Lock())
    thread.join(120)
    assert isinstance(found[0], PeerError)
    assert "pickle" in str(found[0])


def test_a_request_that_cannot_be_pickled_leaves_the_pipe_usable(pipe):
    client, server = PipeClient(pipe[0]), PipeServer(pipe[1])
    with pytest.raises(TypeError, match="pickle"):
        client(threading.Lock(), 1)
    thread, found = ask(client, "x")
    server.send(server.receive()[0], "y")
    thread.join(120)
    assert found == ["y"]


def test_whoever_waits_hears_of_the_end(pipe):
    client = PipeClient(pipe[0])
    thread, found = ask(client, "x")
    assert pipe[1].poll(120)
    pipe[1].close()
    thread.join(120)
    assert isinstance(found[0], DisconnectedError)
    with pytest.raises(DisconnectedError):
        client("y", 1)


def test_bytes_that_are_no_message_end_the_link_with_a_line_in_the_log(pipe, caplog):
    client = PipeClient(pipe[0])
    thread, found = ask(client, "x")
    assert pipe[1].poll(120)
    pipe[1].send_bytes(b"not a pickle")
    thread.join(120)
    assert isinstance(found[0], DisconnectedError)
    assert "cannot be read" in caplog.text


def test_a_worker_whose_order_fails_follows_the_next_one(pipe, caplog):
    stop = threading.Event()
    without_server = OrderHandler(None, PipeServer(pipe[1]), stop, threading.Event())
    thread = threading.Thread(target=without_server.run)
    thread.start()
    client = PipeClient(pipe[0])
    with pytest.raises(PeerError, match="'NoneType' object has no attribute 'metrics'"):
        client(GetMetrics(), 120)
    with pytest.raises(PeerError, match="expected an order, received 'dance'"):
        client("dance", 120)
    assert client(Stop(), 120) is None
    assert stop.is_set()
    hang_up(pipe[0])
    thread.join(120)
    assert not thread.is_alive()
    assert "'metrics'" in caplog.text


def test_a_heartbeat_comes_from_the_loop_that_handles_calls(pipe):
    """The thread that follows orders goes on where the loop hangs."""
    orders = OrderHandler(None, PipeServer(pipe[1]), threading.Event(), threading.Event())
    thread = threading.Thread(target=orders.run)
    thread.start()
    client, go_on = PipeClient(pipe[0]), threading.Event()
    CALLS.enter()

    async def hang():
        go_on.wait(120)

    try:
        assert client(Heartbeat(), 120) is None
        hanging = CALLS.submit(hang())
        with pytest.raises(AnswerTimeoutError):
            client(Heartbeat(), 0.5)
        with pytest.raises(PeerError, match="expected an order"):
            client("dance", 120)
        go_on.set()
        hanging.result(120)
        assert client(Heartbeat(), 120) is None
    finally:
        go_on.set()
        CALLS.leave()
    hang_up(pipe[0])
    thread.join(120)


ORPHAN = """
import multiprocessing
import time
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import Server
from multigate.serving.workers import worker

worker.MARGIN = 0.5
Server.start = lambda self: None
Server.stop = lambda self, force=None: time.sleep(600)  # as on a disk that hangs
orders, supervisors_orders = multiprocessing.Pipe()
requests, supervisors_requests = multiprocessing.Pipe()
supervisors_orders.close()
options = ServerOptions(model_name="a", model_base_path="b", drain_grace_seconds=0)
worker.run_worker(options, orders, requests, None, lambda: None)
"""


def test_a_worker_without_supervisor_ends_its_drain_in_time():
    """Nobody else would kill it."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "the server does not end within 0.5 s and is killed" in done.stderr


def test_a_worker_without_supervisor_stops(pipe):
    stop = threading.Event()
    hang_up(pipe[0])
    OrderHandler(None, PipeServer(pipe[1]), stop, threading.Event()).run()
    assert stop.is_set()
