"""The client's own behaviour, and its answers when the server cannot be reached."""

import json
import threading
from concurrent import futures

import grpc
import pytest

from configs.errors import ServingError
from serving.client import CallError, RankClient
from serving.protos import ranking_pb2, ranking_pb2_grpc


class Flaky(ranking_pb2_grpc.RankingServiceServicer):
    """Refuses so many calls with a status, then answers."""

    def __init__(self, refusals, code):
        self.refusals, self.code, self.calls = refusals, code, 0
        self.release = threading.Event()

    def Rank(self, request, context):
        self.calls += 1
        if self.calls <= self.refusals:
            context.abort(self.code, "not now")
        return ranking_pb2.RankResponse(
            item_index=[0], item_id=request.candidates.item_id, score=[1.5]
        )


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
    with RankClient(serve(flaky), timeout=30) as client:
        ranked = rank(client)
    assert json.loads(json.dumps(ranked)) == [{"index": 0, "item_id": 7, "score": 1.5, "tasks": {}}]
    assert flaky.calls == 3
    refusing = Flaky(9, grpc.StatusCode.RESOURCE_EXHAUSTED)
    with RankClient(serve(refusing), timeout=30) as client, pytest.raises(CallError) as raised:
        rank(client)
    assert (raised.value.code, refusing.calls) == ("RESOURCE_EXHAUSTED", 1)


def test_retries_stop_when_their_budget_is_spent(serve):
    down = Flaky(1000, grpc.StatusCode.UNAVAILABLE)
    with RankClient(serve(down), timeout=30) as client:
        for _ in range(10):
            with pytest.raises(CallError, match="UNAVAILABLE: not now"):
                rank(client)
    # Ten calls would be thirty tries; five failures spend half of ten tokens, and retries end.
    assert 10 < down.calls < 18


def test_a_server_that_is_not_there():
    with RankClient("127.0.0.1:1", timeout=10) as client, pytest.raises(CallError) as raised:
        rank(client)
    assert raised.value.code == "UNAVAILABLE"
    assert str(raised.value).startswith("127.0.0.1:1: UNAVAILABLE: ")


def test_the_deadline_is_the_callers(running):
    with RankClient(running.target) as client, pytest.raises(CallError) as raised:
        rank(client, timeout=1e-6)
    assert raised.value.code == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"limit": 0}, "limit: expected 1 or more, received 0"),
        ({"user": {"u": True}}, "u: expected texts, whole numbers or numbers.* received True"),
        ({"user": {"u": ["a", 1]}}, "u: expected .* all of one type, received 'a'"),
        ({"item_ids": ["a", None]}, "item_ids: expected .* received 'a'"),
        ({"columns": {"c": [1, "a"]}}, "c: expected .* received 'a'"),
    ],
)
def test_values_that_no_feature_has(changes, says):
    with RankClient("127.0.0.1:1") as client, pytest.raises(ServingError, match=says):
        rank(client, **changes)
