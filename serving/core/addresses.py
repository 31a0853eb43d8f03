"""Addresses to listen on: their text form, and whether they are free."""

import socket

from multigate.configs.errors import ServingError


def address(host: str, port: int) -> str:
    """Host and port as gRPC writes them: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_taken(host: str, port: int) -> None:
    """Fail early, before models are loaded, if the address is taken.

    Raises:
        ServingError: names the address and the reason.
    """
    _bound(host, port, socket.SO_REUSEADDR).close()


def reserve(host: str, port: int) -> socket.socket:
    """A socket that reserves the address for processes that share it; it never listens.

    Raises:
        ServingError: names the address and the reason.
    """
    refuse_taken(host, port)  # another server with SO_REUSEPORT would let us in
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
