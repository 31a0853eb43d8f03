"""Ports for processes that are told theirs before they start."""

import itertools
import os
import re
import socket

_FIRST, _PORTS = 12_000, 2_500
"""Systems give ports from 32,768 on, or from 49,152 on, to whoever asks for any: what is free now
may be taken before the process listens. Those below are taken by nobody who was not told so."""

_worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % 8
_numbers = itertools.count(os.getpid())


def free_port() -> int:
    """A port of this machine that nobody listens on; another one at each call.

    Each worker of pytest-xdist has ports of its own.
    """
    for _ in range(_PORTS):
        port = _FIRST + _worker * _PORTS + next(_numbers) % _PORTS
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")
