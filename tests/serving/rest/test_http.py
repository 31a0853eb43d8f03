"""HTTP itself: sizes, pieces, slow clients, tokens, deadlines, caps and the drain."""

import asyncio
import gc
import itertools
import json
import socket
import struct
import sys
import threading
import urllib.request
from asyncio import selector_events
from concurrent import futures
from contextlib import suppress

import grpc
import h11
import pytest

from multigate.configs.errors import ServingError
from multigate.serving.core.loop import CALLS
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.status import InvalidRequestError
from multigate.serving.rest import app, http, parser
from multigate.serving.rest.parser import JsonReader
from multigate.serving.rpc.server import Server

STATUS = b"GET /v1/models/small HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory, publish):
    folder = tmp_path_factory.mktemp("models")
    publish(folder, 1)
    return folder


@pytest.fixture(scope="module")
def served(base, run_server, rest):
    """One model server, whose largest body is 1 MiB."""
    with run_server(base, rest_api_port=0, max_message_mebibytes=1) as running:
        running.rest = rest(running.server.rest_port)
        yield running


@pytest.fixture
def predict(contract, helpers, as_columns):
    """The body of a Predict."""
    inputs = helpers.sample_inputs(contract, 2, users=1)
    return {"signature_name": "rank", "inputs": as_columns(inputs)}


def read_answer(connection):
    """Status line and JSON of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1)
        assert part, data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if b"content-length" in line
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(length - len(body))
    return head.split(b"\r\n")[0].decode(), json.loads(body) if body else None


def ended(connection):
    """Wait until the other end has closed or reset the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def post(path, body, *headers):
    head = [f"POST /v1/models/{path} HTTP/1.1", "Host: here", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_it_is_parsed(served, chunked):
    body = b'{"user": "' + b"x" * (1 << 20) + b'"}'
    if chunked:
        parts = [body[start : start + 65536] for start in range(0, len(body), 65536)]
        data = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in parts) + b"0\r\n\r\n"
        request = post("small:rank", data, "Transfer-Encoding: chunked")
    else:
        request = post("small:rank", body, f"Content-Length: {len(body)}")
    with served.rest.connect() as connection:
        connection.sendall(request)
        line, answer = read_answer(connection)
    assert line.startswith("HTTP/1.1 413 ")
    assert answer == {"error": "body: expected at most 1048576 bytes"}


def test_a_body_may_come_in_chunks_after_a_hundred_continue(served):
    with served.rest.connect() as connection:
        head = post("small:rank", b"", "Transfer-Encoding: chunked", "Expect: 100-continue")
        connection.sendall(head)
        assert read_answer(connection) == ("HTTP/1.1 100 Continue", None)
        connection.sendall(b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
        line, answer = read_answer(connection)
    assert line == "HTTP/1.1 400 Bad Request"
    assert "candidates" in answer["error"]


@pytest.mark.parametrize("authority", ["http://here:8501", "HTTPS://[::1]:8501", "http://"])
def test_a_target_may_name_its_host_as_proxies_send_it(served, predict, authority):
    """RFC 9112, section 3.2.2: a server must accept the absolute form."""
    with socket.create_connection(("127.0.0.1", served.rest.port), timeout=60) as connection:
        connection.sendall(STATUS.replace(b"/v1", f"{authority}/v1".encode()))
        status, answer = read_answer(connection)
        assert (status, list(answer)) == ("HTTP/1.1 200 OK", ["model_version_status"])
        body = json.dumps(predict).encode()
        head = (
            f"POST {authority}/v1/models/small:predict HTTP/1.1\r\nHost: here\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        status, answer = read_answer(connection)
    assert (status, list(answer)) == ("HTTP/1.1 200 OK", ["outputs"])


def test_pipelined_requests_are_answered_in_order(served):
    with served.rest.connect() as connection:
        connection.sendall(STATUS + post("small:rank", b"{}", "Content-Length: 2") + STATUS)
        answers = [read_answer(connection) for _ in range(3)]
    assert [line for line, _ in answers] == [
        "HTTP/1.1 200 OK",
        "HTTP/1.1 400 Bad Request",
        "HTTP/1.1 200 OK",
    ]
    assert [list(answer) for _, answer in answers] == [
        ["model_version_status"],
        ["error"],
        ["model_version_status"],
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 40_000,
        b"GET / HTTP/1.1\r\n\r\n",
        post("small:rank", b"{}", "Content-Length: 2", "Content-Length: 3"),
        post("small:rank", b"{}", "Content-Length: -2"),
        post("small:rank", b"{}", "Transfer-Encoding: gzip"),
    ],
    ids=["TLS", "long head", "no host", "two lengths", "negative", "encoding"],
)
def test_what_is_no_http_gets_a_line_and_the_end_of_the_connection(served, data):
    with served.rest.connect() as connection:
        connection.sendall(data)
        line, answer = read_answer(connection)
        assert int(line.split()[1]) in {400, 501}
        assert answer["error"].startswith("HTTP: ")
        assert ended(connection)  # reset, where a part of the data was not read


def test_a_body_in_tiny_chunks_is_refused_before_they_are_all_read(served, monkeypatch):
    """43,000 chunks of a byte, which the loop receives at once, held it up for a second."""
    read, next_event = [], h11.Connection.next_event

    def count(connection):
        read.append(1)
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", count)
    tiny = post("small:rank", b"1\r\nx\r\n" * 10_000, "Transfer-Encoding: chunked")
    with served.rest.connect() as connection:
        with suppress(ConnectionResetError, BrokenPipeError):  # a part of the data is not read
            connection.sendall(tiny)
            line, answer = read_answer(connection)
            assert line == "HTTP/1.1 400 Bad Request"
            assert answer["error"].startswith("HTTP: ")
        assert ended(connection)
    assert 128 < len(read) < 300


def test_a_head_of_many_lines_is_refused_before_they_are_read(served, monkeypatch):
    read, next_event = [], h11.Connection.next_event

    def count(connection):
        read.append(1)
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", count)
    with served.rest.connect() as connection:
        connection.sendall(post("small:rank", b"{}", "Content-Length: 2", *["a:b"] * 3000))
        line, answer = read_answer(connection)
        assert line == "HTTP/1.1 400 Bad Request"
        assert answer == {"error": "HTTP: Invalid HTTP request received."}
        assert ended(connection)
    assert len(read) < 5  # one for each piece in which the first lines come
    with served.rest.connect() as connection:
        body = b'{"limit":\n' + b"\n" * 500 + b"-1}"
        length = f"Content-Length: {len(body)}"
        connection.sendall(post("small:rank", body, length, *["a:b"] * 100))
        line, answer = read_answer(connection)
        assert (line, answer["error"][:5]) == ("HTTP/1.1 400 Bad Request", "candi")


@pytest.mark.parametrize(("size", "here"), [(1000, True), (20_000, False), (200_000, False)])
def test_only_tiny_bodies_are_read_in_this_process_and_in_the_loop(served, monkeypatch, size, here):
    """A thread that reads JSON competes with the loop for the interpreter."""
    threads, read_message = [], parser.read_message

    def note(body, kind):
        threads.append(threading.current_thread().name)
        return read_message(body, kind)

    monkeypatch.setattr(parser, "read_message", note)
    body = {"candidates": {"item_id": {"texts": {"values": ["x" * size]}}}}
    status, answer = served.rest.post("small:rank", body)
    assert (status, "user_id" in answer["error"]) == (400, True), answer
    assert threads == ["calls"] * here


@pytest.mark.parametrize("body", [b'{"inputs": [%s 0]}' % (b"[]," * 1000), b" " * 20_000 + b"["])
def test_refused_bodies_leave_nothing_to_the_garbage_collector(served, until, body):
    """It stopped all threads for 15 ms to free what a circle of exception and future kept."""
    served.rest.post("small:rank", body)
    until(lambda: not served.server.gate.admitted)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            assert served.rest.post("small:rank", body)[0] == 400
        until(lambda: not served.server.gate.admitted)
        assert gc.collect() < 20 * 20
    finally:
        gc.enable()


def test_bodies_do_not_wait_for_larger_ones():
    held, begun = threading.Event(), threading.Event()

    def hold(question):
        begun.set()
        held.wait(120)
        return "no such message"

    async def read():
        reader = JsonReader(max_waiting=1)
        reader._large._child.ask = hold
        reader._middle._child.ask = lambda question: "no such message"
        large = asyncio.create_task(reader.message(b" " * (1 << 18), "RankRequest"))
        await asyncio.to_thread(begun.wait, 120)
        with pytest.raises(InvalidRequestError, match="no such message"):
            await reader.message(b" " * (1 << 15), "RankRequest")
        assert not large.done()
        held.set()
        with pytest.raises(InvalidRequestError, match="no such message"):
            await large
        reader.close()

    asyncio.run(read())


def test_a_body_may_have_some_small_chunks_and_any_number_of_larger_ones(served):
    small = [b"%c" % one for one in b'{"limit": -1}']
    for chunks in (small, [b" " * 1024] * 500 + small, [b" "] * 100 + small):
        body = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
        with served.rest.connect() as connection:
            connection.sendall(post("small:rank", body, "Transfer-Encoding: chunked"))
            line, answer = read_answer(connection)
        assert line == "HTTP/1.1 400 Bad Request"
        assert not answer["error"].startswith("HTTP: ")


def test_a_flood_of_connections_is_accepted_a_few_at_a_time(served, monkeypatch):
    """asyncio accepts as many in one step of the loop as may wait, two thousand before."""
    accepted, accept = [], selector_events.BaseSelectorEventLoop._accept_connection2

    def count(*given):
        accepted.append(1)
        return accept(*given)

    monkeypatch.setattr(selector_events.BaseSelectorEventLoop, "_accept_connection2", count)

    async def flood():
        connections = [served.rest.connect() for _ in range(200)]  # while the loop stands still
        steps = [0]
        while steps[-1] < 200:
            await asyncio.sleep(0)
            steps.append(len(accepted))
        return connections, steps

    connections, steps = CALLS.submit(flood()).result(120)
    for one in connections:
        one.close()
    assert max(after - before for before, after in itertools.pairwise(steps)) == 16


def test_a_broken_chunk_ends_the_connection(served):
    with served.rest.connect() as connection:
        connection.sendall(post("small:rank", b"zz\r\n{}", "Transfer-Encoding: chunked"))
        with_line, answer = read_answer(connection)
        assert (with_line, list(answer)) == ("HTTP/1.1 400 Bad Request", ["error"])
    assert served.rest.get("small")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 400),
        ({"Content-Type": "application/x-protobuf"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Grpc-Timeout": "soon"}, 400),
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 400),
    ],
)
def test_headers_that_do_not_fit_are_refused(served, headers, status):
    received, answer = served.rest.post("small:rank", {}, headers)
    assert received == status
    assert list(answer) == ["error"]


def test_a_head_that_does_not_arrive_ends_its_connection(served, monkeypatch):
    monkeypatch.setattr(http, "_LOOK_EVERY", 0.05)
    with served.rest.connect() as silent, served.rest.connect() as slow:
        slow.sendall(STATUS)
        assert read_answer(slow)[0] == "HTTP/1.1 200 OK"
        monkeypatch.setattr(http, "_HEAD_SECONDS", 0.1)
        slow.sendall(STATUS[:20])
        for connection in (silent, slow):
            assert ended(connection)


def test_a_client_that_does_not_read_gets_no_further_answers_made(served, monkeypatch, until):
    """Forty answers were made for a client that takes none: the kernel holds megabytes."""
    application, made = served.server._rest._http._server.config.loaded_app, []
    page = b"x" * 50_000
    monkeypatch.setattr(application, "_metrics_page", lambda: made.append(1) or page)
    open_ones = served.server._rest._http._server.server_state.connections
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.rest.port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n" * 40)
        until(lambda: any(one.flow.write_paused for one in list(open_ones)))
        assert len(made) < 8
        received = 0
        while received < 40 * len(page):
            received += len(connection.recv(1 << 16))
    until(lambda: len(made) == 40)


def test_a_look_at_the_connections_that_fails_is_counted_and_not_the_last(
    served, monkeypatch, caplog
):
    end_if_slow, faults = http._Connection.end_if_slow, iter([RuntimeError("planted")])

    def broken(connection, now):
        for fault in faults:
            raise fault
        end_if_slow(connection, now)

    monkeypatch.setattr(http, "_LOOK_EVERY", 0.05)
    monkeypatch.setattr(http, "_HEAD_SECONDS", 0.1)
    monkeypatch.setattr(http._Connection, "end_if_slow", broken)
    with served.rest.connect() as silent:
        assert ended(silent)
    assert next(faults, None) is None
    assert served.metric("multigate_thread_failures_total", thread="http") == 1
    assert "slow connections are not ended; will look again" in caplog.text


def test_a_body_that_does_not_arrive_is_a_timeout(served, monkeypatch):
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    with served.rest.connect() as connection:
        connection.sendall(post("small:rank", b"{", "Content-Length: 2"))
        line, answer = read_answer(connection)
    assert line == "HTTP/1.1 408 Request Timeout"
    assert answer == {"error": "body: did not arrive in time"}


@pytest.mark.slow
def test_who_does_not_read_holds_no_connection(
    served, monkeypatch, contract, helpers, as_columns, until
):
    """Many answers that nobody takes: they fill the socket's buffers."""
    monkeypatch.setattr(http, "_WRITE_SECONDS", 0.2)
    monkeypatch.setattr(http, "_LOOK_EVERY", 0.05)
    body = json.dumps({"inputs": as_columns(helpers.sample_inputs(contract, 300))}).encode()
    request = post("small:predict", body, f"Content-Length: {len(body)}")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.rest.port))
        connection.settimeout(240)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while True:
                connection.sendall(request)
    assert served.rest.get("small")[0] == 200


def test_connections_have_a_limit(served, monkeypatch):
    connections = [served.rest.connect() for _ in range(3)]
    try:
        for one in connections:
            one.sendall(STATUS)
            assert read_answer(one)[0] == "HTTP/1.1 200 OK"
        monkeypatch.setattr(http._Connection, "max_connections", 3)
        with served.rest.connect() as refused:
            assert ended(refused)
        connections[0].sendall(STATUS)
        assert read_answer(connections[0])[0] == "HTTP/1.1 200 OK"
    finally:
        for one in connections:
            one.close()


def test_a_deadline_ends_a_call_and_says_so(served, predict, hold):
    with hold("rank"):
        status, answer = served.rest.post("small:predict", predict, {"Grpc-Timeout": "100m"})
    assert status == 504
    assert "deadline" in answer["error"]


def test_a_client_that_goes_away_cancels_its_call(served, predict, hold, until):
    body = json.dumps(predict).encode()
    until(lambda: not served.server.gate.admitted, "the end of earlier tests' calls")
    with hold("rank") as held:
        with served.rest.connect() as connection:
            connection.sendall(post("small:predict", body, f"Content-Length: {len(body)}"))
            assert held.begun.wait(120)
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        # It ends with its run.
        until(lambda: any(call.cancelling() for call in list(served.server.gate.admitted)))
    counted = {"method": "Predict", "model_name": "small", "status": "CANCELLED"}
    until(lambda: served.metric(":tensorflow:serving:request_count", **counted) == 1)


def test_calls_over_http_and_grpc_share_one_cap_and_one_queue(
    base, run_server, rest, predict, contract, helpers, hold, until
):
    options = {"max_concurrent_calls": 4, "num_batch_threads": 1, "max_queued_calls": 0}
    with (
        run_server(base, rest_api_port=0, **options) as running,
        futures.ThreadPoolExecutor(2) as pool,
        hold("rank") as held,
    ):
        client = rest(running.server.rest_port)
        occupying = pool.submit(client.post, "small:predict", predict)
        assert held.begun.wait(120)
        quick = helpers.predict_request(helpers.sample_inputs(contract, 2, users=1), "rank")
        with pytest.raises(grpc.RpcError, match="calls wait already"):
            running.prediction.Predict(quick)
        status, answer = client.post("small:predict", predict)
        assert (status, "calls wait already" in answer["error"]) == (503, True)
        # A call ends a moment after its answer has arrived.
        until(lambda: running.metric("multigate_calls_in_flight") == 1)
        running.server.gate._max_calls = 1
        status, answer = client.post("small:predict", predict)
        assert (status, "1 calls are in flight" in answer["error"]) == (429, True)
        url = f"http://127.0.0.1:{running.server.rest_port}/metrics"
        with urllib.request.urlopen(url, timeout=240) as page:  # no call, whatever the cap is
            assert b"multigate_calls_in_flight 1.0" in page.read()
        assert not occupying.done()
        held.let_go.set()
        assert occupying.result()[0] == 200


@pytest.mark.parametrize("count", [4, 40_000])
def test_candidates_have_a_limit_over_http(
    base, run_server, rest, contract, helpers, as_columns, count
):
    """Read in this process and, as a large body, in the one beside it."""
    with run_server(base, rest_api_port=0, max_candidates=3) as running:
        client = rest(running.server.rest_port)

        def rank(count):
            ids = {"texts": {"values": ["i1"] * count}}
            columns = {"length": {"numbers": {"values": [1.0] * count}}}
            request = {
                "user": {"user_id": {"text": "u1"}},
                "context": {"hour": {"integer": 9}},
                "candidates": {"item_id": ids, "columns": columns},
            }
            return client.post("small:rank", request)

        assert rank(3)[0] == 200
        expected = f"candidates: expected at most 3, received {count}"
        status, answer = rank(count)
        assert (status, expected in answer["error"]) == (400, True)
        inputs = as_columns(helpers.sample_inputs(contract, 4, users=1))
        status, answer = client.post("small:predict", {"signature_name": "rank", "inputs": inputs})
        assert (status, "at most 3" in answer["error"]) == (400, True), answer


def test_a_large_body_that_is_read_at_once_leaves_its_place_among_those_that_wait():
    """Its place was lost: after `--max_queued_calls` of them, all large bodies were refused."""

    class AtOnce(futures.ThreadPoolExecutor):
        def submit(self, work, *given):
            asked = super().submit(work, *given)
            futures.wait([asked])
            return asked

    async def read():
        reader = JsonReader(max_waiting=1)
        reader._middle._asking = AtOnce(1)
        reader._middle._child.ask = lambda question: "no such message"
        for _ in range(3):
            with pytest.raises(InvalidRequestError, match="no such message"):
                await reader.message(b" " * (1 << 16), "RankRequest")
            await asyncio.sleep(0)
        reader.close()

    asyncio.run(read())


def test_a_drain_lets_calls_finish_and_takes_no_more(
    base, run_server, rest, predict, helpers, hold, until
):
    with run_server(base, rest_api_port=0, drain_grace_seconds=600.0) as running:
        client, delay = rest(running.server.rest_port), helpers.Delay()
        with futures.ThreadPoolExecutor(2) as pool, hold("rank") as held:
            call = pool.submit(client.post, "small:predict", predict)
            assert held.begun.wait(120)
            stopping = pool.submit(running.server.stop, force=delay)
            until(lambda: running.server.gate.draining)
            assert client.post("small:rank", {}) == (
                503,
                {"error": "the server is stopping; call another server"},
            )
            delay.over.set()
            held.let_go.set()
            status, answer = call.result()
            assert (status, list(answer)) == (200, ["outputs"])
            stopping.result()
        with pytest.raises(ConnectionRefusedError):
            client.get("small")


def test_tokens_are_checked_as_over_grpc(base, tmp_path, run_server, rest):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    with run_server(base, rest_api_port=0, auth_token_file=tokens) as running:
        client = rest(running.server.rest_port)
        for path in ("/v1/models/small", "/v1/models/small/metadata", "/metrics"):
            status, headers, answer = client("GET", path)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "expected a valid token" in answer["error"]
        assert client.post("small:rank", b"x" * 100)[0] == 401
        shown = {"Authorization": "Bearer secret"}
        assert client("GET", "/v1/models/small", headers=shown)[0] == 200
        refused = {"method": "refused", "model_name": "", "status": "UNAUTHENTICATED"}
        assert running.metric(":tensorflow:serving:request_count", **refused) == 4


def test_uvicorn_is_asked_for_where_it_is_not_installed(base, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in ("http", "server"):
        monkeypatch.delitem(sys.modules, f"multigate.serving.rest.{name}", raising=False)
    options = ServerOptions(model_name="small", model_base_path=base, port=0, rest_api_port=0)
    with pytest.raises(ServingError, match="--rest_api_port: needs the package uvicorn"):
        Server(options).start()


def test_a_taken_port_is_said_by_its_flag(served, base):
    options = ServerOptions(
        model_name="small", model_base_path=base, port=0, rest_api_port=served.rest.port
    )
    with pytest.raises(ServingError, match="see --host and --rest_api_port"):
        Server(options).start()
