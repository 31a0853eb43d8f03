"""Addresses to listen on: their text form, and whether they are free."""

import socket
from collections.abc import Sequence

from multigate.configs.errors import ServingError


def address(host: str, port: int) -> str:
    """Host and port as gRPC writes them: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening(host: str, port: int, rest_port: int | None) -> str:
    """Where a server listens, in words."""
    where = address(host, port)
    return where if rest_port is None else f"{where}, REST on {address(host, rest_port)}"


def refuse_taken(host: str, port: int, flag: str = "--port") -> None:
    """Fail early, before models are loaded, if the address is taken.

    Raises:
        ServingError: names the address and the reason.
    """
    _bound(host, port, [socket.SO_REUSEADDR], flag).close()


def reserve(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A socket that reserves the address for processes that share it; it never listens.

    Raises:
        ServingError: names the address and the reason.
    """
    refuse_taken(host, port, flag)  # another server with SO_REUSEPORT would let us in
    # Without SO_REUSEADDR: who looks before a worker listens is refused as well.
    return _bound(host, port, [socket.SO_REUSEPORT], flag)


def listener(host: str, port: int, shared: bool, flag: str) -> socket.socket:
    """A bound socket that does not listen yet.

    Args:
        host: to bind.
        port: to bind; 0 is a free one.
        shared: whether other processes bind it too.
        flag: names the port in messages.

    Raises:
        ServingError: names the address and the reason.
    """
    # Its connections have the same options: those that have ended, which the system keeps for a
    # minute, must not keep the next server from the port.
    options = [socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if shared else [])]
    return _bound(host, port, options, flag)


def _bound(host: str, port: int, options: Sequence[int], flag: str = "--port") -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        probe = socket.socket(family, kind, protocol)
        try:
            for option in options:
                probe.setsockopt(socket.SOL_SOCKET, option, 1)
            probe.bind(where)
        except BaseException:
            probe.close()
            raise
        return probe
    except OSError as error:
        raise ServingError(
            f"{address(host, port)}: cannot listen there: {error.strerror}; see --host and {flag}"
        ) from None
