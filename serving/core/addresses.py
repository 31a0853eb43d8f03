"""Addresses to listen on: how they are written, and whether they can be had."""

import socket

from multigate.configs.errors import ServingError


def address(host: str, port: int) -> str:
    """As gRPC writes it: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_taken(host: str, port: int) -> None:
    """Fail before the models are loaded where the address cannot be had.

    Raises:
        ServingError: names the address and the reason.
    """
    _bound(host, port, socket.SO_REUSEADDR).close()


def reserve(host: str, port: int) -> socket.socket:
    """A socket that holds the address for processes which share it; it never listens.

    Raises:
        ServingError: names the address and the reason.
    """
    refuse_taken(host, port)  # another server that shares its port would let us in
    return _bound(host, port, socket.SO_REUSEPORT)


def _bound(host: str, port: int, option: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        probe = socket.socket(family, kind, protocol)
        try:
            probe.setsockopt(socket.SOL_SOCKET, option, 1)
            probe.bind(where)
        except BaseException:
            probe.close()
            raise
        return probe
    except OSError as error:
        raise ServingError(
            f"{address(host, port)}: cannot listen there: {error.strerror}; see --host and --port"
        ) from None
