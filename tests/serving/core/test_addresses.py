"""Ports are refused to a second server, and given to the next one at once."""

import socket

import pytest

from multigate.configs.errors import ServingError
from multigate.serving.core.addresses import listener, refuse_taken, reserve

HOST = "127.0.0.1"


@pytest.mark.parametrize("shared", [False, True])
def test_connections_that_end_do_not_keep_the_next_server_from_the_port(shared):
    with listener(HOST, 0, shared, "--rest_api_port") as server:
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as caller:
            accepted, _ = server.accept()
            accepted.close()  # the server ends it first, as a drain does
            assert caller.recv(1) == b""
        with pytest.raises(ServingError, match="Address already in use; see --host and --port"):
            refuse_taken(HOST, port)
    refuse_taken(HOST, port)
    if shared:
        reserve(HOST, port).close()


def test_a_port_is_taken_before_its_workers_listen():
    with reserve(HOST, 0) as held, pytest.raises(ServingError, match="cannot listen there"):
        refuse_taken(HOST, held.getsockname()[1])
