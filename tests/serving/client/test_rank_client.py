"""The client's own behaviour, and its answers when the server cannot be reached."""

import json
import re
import threading
from concurrent import futures

import grpc
import pytest

from multigate.configs.errors import ServingError
from multigate.serving.client.rank_client import CallError, RankClient
from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc


class Flaky(ranking_pb2_grpc.RankingServiceServicer):
    """Refuses so many calls with a status, then answers."""

    def __init__(self, refusals, code):
        self.refusals, self.code, self.calls = refusals, code, 0

    def Rank(self, request, context):
        self.calls += 1
        if self.calls <= self.refusals:
            context.abort(self.code, "not now")
        return ranking_pb2.RankResponse(
            item_index=[0], item_id=request.candidates.item_id, score=[1.5]
        )


class Silent(ranking_pb2_grpc.RankingServiceServicer):
    """Answers only when it is let."""

    def __init__(self):
        self.release = threading.Event()

    def Rank(self, request, context):
        self.release.wait(120)
        return ranking_pb2.RankResponse()


@pytest.fixture
def serve():
    servers = []

    def start(service):
        server = grpc.server(futures.ThreadPoolExecutor(2))
        ranking_pb2_grpc.add_RankingServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0).wait()


def rank(client, **changes):
    return client.rank("m", **({"user": {"u": "x"}, "item_ids": [7]} | changes))


def test_unavailable_is_retried_and_other_failures_are_not(serve):
    flaky = Flaky(2, grpc.StatusCode.UNAVAILABLE)
    with RankClient(serve(flaky), timeout=120) as client:
        ranked = rank(client)
    assert json.loads(json.dumps(ranked)) == [{"index": 0, "item_id": 7, "score": 1.5, "tasks": {}}]
    assert flaky.calls == 3
    refusing = Flaky(9, grpc.StatusCode.RESOURCE_EXHAUSTED)
    with RankClient(serve(refusing), timeout=120) as client, pytest.raises(CallError) as raised:
        rank(client)
    assert (raised.value.code, refusing.calls) == ("RESOURCE_EXHAUSTED", 1)


def test_retries_stop_when_their_budget_is_spent(serve):
    down = Flaky(1000, grpc.StatusCode.UNAVAILABLE)
    with (
        RankClient(serve(down), timeout=120) as client,
        futures.ThreadPoolExecutor(2) as pool,  # most of the time goes by between tries
    ):
        for call in [pool.submit(rank, client) for _ in range(40)]:
            with pytest.raises(CallError, match="UNAVAILABLE: not now"):
                call.result()
    # 40 calls would be 120 tries; 50 failures spend half of the 100 tokens, and retries end.
    assert 60 < down.calls < 80


def test_connections_take_turns(serve):
    peers = set()

    class Telling(Flaky):
        def Rank(self, request, context):
            peers.add(context.peer())
            return super().Rank(request, context)

    target = serve(Telling(0, grpc.StatusCode.OK))
    with RankClient(target, timeout=120, connections=3) as client:
        for _ in range(6):
            rank(client)
    assert len(peers) == 3
    with pytest.raises(ServingError, match="connections: expected 1 or more, received 0"):
        RankClient(target, connections=0)


NO_HOST = ["", " ", ":", ":8500", "ho st:1", "host:1/path", "::1", "[::1:8500"]
NO_PORT = ["host", "host:", "host:port", "host:0", "host:65536", "host:-1", "host:1\n", "[::1]"]
NO_SCHEME = ["dns:", "tcp://host:1", "http://localhost:8500", "HTTPS://ranker"]


@pytest.mark.parametrize("target", [*NO_HOST, *NO_PORT, *NO_SCHEME])
def test_a_target_that_grpc_cannot_take_is_refused_at_once(target):
    message = f"target: expected host:port of a gRPC server, received {target!r}"
    with pytest.raises(ServingError, match=re.escape(message)):
        RankClient(target)


@pytest.mark.parametrize("form", ["{}", "dns:{}", "dns:///{}", "ipv4:{}", "ipv4:{},127.0.0.1:1"])
def test_a_target_may_name_its_scheme(serve, form):
    with RankClient(form.format(serve(Flaky(0, None))), timeout=120) as client:
        assert rank(client)[0]["item_id"] == 7


def test_a_target_may_be_a_socket_of_this_machine(tmp_path):
    server = grpc.server(futures.ThreadPoolExecutor(2))
    ranking_pb2_grpc.add_RankingServiceServicer_to_server(Flaky(0, None), server)
    server.add_insecure_port(f"unix:{tmp_path}/a socket")
    server.start()
    with RankClient(f"unix:{tmp_path}/a socket", timeout=120) as client:
        assert rank(client)[0]["item_id"] == 7
    server.stop(0).wait()


@pytest.mark.parametrize("target", ["[::1]:8500", "my_host:65535", "ranker.example.com.:1"])
def test_a_target_is_a_host_and_its_port(target):
    RankClient(target).close()


def test_a_server_that_is_not_there():
    with RankClient("127.0.0.1:1", timeout=120) as client, pytest.raises(CallError) as raised:
        rank(client)
    assert raised.value.code == "UNAVAILABLE"
    assert str(raised.value).startswith("127.0.0.1:1: UNAVAILABLE: ")


def test_the_deadline_is_the_callers(serve):
    silent = Silent()
    with RankClient(serve(silent), timeout=120) as client, pytest.raises(CallError) as raised:
        rank(client, timeout=0.05)
    silent.release.set()
    assert raised.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, "limit: expected 1 or more, received 0"),
        ({"user": {"u": True}}, "u: expected texts, whole numbers or numbers.* received True"),
        ({"user": {"u": ["a", 1]}}, "u: expected .* all of one type, received 'a'"),
        ({"item_ids": ["a", None]}, "item_ids: expected .* received 'a'"),
        ({"columns": {"c": [1, "a"]}}, "c: expected .* received 'a'"),
        ({"item_ids": [1, 2**70]}, "item_ids: Value out of range: 1180591620717411303424"),
        ({"user": {"u": -(2**70)}}, "u: Value out of range"),
        ({"context": {"u": ["a", "\ud800"]}}, "u: .*surrogates not allowed"),
        ({"item_ids": "abc"}, "item_ids: expected a sequence of values, received 'abc'"),
        ({"columns": {"c": 5}}, "c: expected a sequence of values, received 5"),
        ({"columns": {"c": "abc"}}, "c: expected a sequence of values, received 'abc'"),
        ({"columns": {"c": [["a"], "a"]}}, "c: expected lists only, received 'a' among them"),
        ({"user": {"u": {"a": 1}}}, "u: expected a value or a list, received {'a': 1}"),
        ({"weights": {"click": "high"}}, "task weight 'click': .*not str"),
        ({"floors": {"click": (0.1,)}}, "floor 'click': expected two limits, .* received .0.1,."),
        ({"floors": {"click": ("low", None)}}, "floor 'click': .*str"),
        ({"limit": 2**40}, "limit: Value out of range"),
        ({"version": 2**70}, "version: Value out of range"),
        ({"timeout": float("nan")}, "timeout: expected more than 0 seconds, received nan"),
        ({"timeout": -1}, "timeout: expected more than 0 seconds, received -1"),
    ],
)
def test_values_that_no_feature_has(changes, says):
    with RankClient("127.0.0.1:1") as client, pytest.raises(ServingError, match=says):
        rank(client, **changes)
