"""uvicorn in the event loop of all calls: connections with limits, TLS, start and drain.

hypercorn was considered: it speaks HTTP/2 as well, which JSON clients rarely do, and runs the
application through several more tasks per request.
"""

import asyncio
import json
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

LOG = logging.getLogger("multigate.serving")

_HEAD_SECONDS = 10.0
"""For a request's head to arrive whole, from the connection or the last answer on."""
_IDLE_SECONDS = 60
"""For which a connection stays open between requests."""
_WRITE_SECONDS = 30.0
"""For a client to take what was sent to it."""
_LOOK_EVERY = 1.0
"""Seconds between looks at all connections."""
_LONGEST_HEAD = 1 << 14
"""Bytes."""
_UNREAD = (1 << 16, 1 << 15)
"""Bytes that the kernel and the loop each hold for a client that does not read, before its next
request waits; the kernel's own limit is megabytes, which are many answers to nobody."""
_BACKLOG = 2048
"""Connections that wait to be accepted."""
_ACCEPTED = 16
"""Of these, accepted in one step of the loop: a flood of them holds up other calls a little."""
_MOST_HEADERS = 128
"""Lines of a head: 3,000 of them, which 16 KiB hold, took the loop 10 ms."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_FREE_CHUNKS = 128
_CHUNK = 1 << 10
"""A body has at most `_FREE_CHUNKS` chunks, and one for each `_CHUNK` bytes.  Each takes 20 us: the
43,000 chunks of a byte that the loop receives at once held up all calls for a second."""


class _Parser(h11.Connection):
    """h11's parser, which reads no head of many lines and no body in tiny chunks."""

    _chunks = 0
    _bytes = 0

    def next_event(self) -> Any:
        """The next event.

        Raises:
            h11.RemoteProtocolError: it is not as HTTP has it, a head has too many lines, or
                chunks are too small.
        """
        if self.their_state is h11.IDLE:
            data = self.trailing_data[0]
            end = _END_OF_HEAD.search(data)
            if data.count(b"\n", 0, end.start() if end else len(data)) > _MOST_HEADERS:
                raise h11.RemoteProtocolError(f"head: expected at most {_MOST_HEADERS} lines")
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._bytes / _CHUNK:
                raise h11.RemoteProtocolError(f"chunks: expected {_CHUNK} bytes or more in each")
        elif isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        return event


class _Connection(H11Protocol):
    """uvicorn's connection, which slow clients cannot hold for ever."""

    max_connections = 1024
    """Most open connections; more are closed at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many."""
        super().connection_made(transport)
        self.conn = _Parser(h11.SERVER, _LONGEST_HEAD)
        self.head_since: float | None = time.monotonic()
        self.unread_since: float | None = None
        kernel, ours = _UNREAD
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel)
        transport.set_write_buffer_limits(high=ours)
        if len(self.connections) > self.max_connections:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read events; what is no HTTP ends the connection."""
        if self.transport.is_closing():
            return
        if self.head_since is None and not self._in_request():
            self.head_since = time.monotonic()  # the first bytes of the next request
        try:
            super().data_received(data)
        except h11.ProtocolError:  # such as a broken chunk after the answer has begun
            self.transport.abort()
        if self._in_request():
            self.head_since = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the form of all other errors."""
        body = json.dumps({"error": f"HTTP: {msg}"}).encode()
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events = [
            h11.Response(status_code=400, headers=head, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def end_if_slow(self, now: float) -> None:
        """Abort a connection whose client is too slow to send a head or to take an answer."""
        if self.transport.get_write_buffer_size() == 0:
            self.unread_since = None
        elif self.unread_since is None:
            self.unread_since = now
        waits = [(self.head_since, _HEAD_SECONDS), (self.unread_since, _WRITE_SECONDS)]
        if any(since is not None and now - since > most for since, most in waits):
            self.transport.abort()

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


class HttpServer:
    """Serves an ASGI application in the loop of all calls."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
        failed: Callable[[str], None],
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            app: the application.
            listener: bound.
            tls: None: plain HTTP.
            failed: counts the failures of what looks after the connections, by its name.
        """
        self._listener = listener
        self._failed = failed
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_SECONDS,
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            backlog=_ACCEPTED,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; called in the loop."""
        self._serving = asyncio.create_task(self._server.serve([self._listener]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(0.001)
        # asyncio accepts as many at once as may wait; only the kernel's number is raised here.
        self._listener.listen(_BACKLOG)
        self._watching = asyncio.create_task(self._watch())

    async def close(self, seconds: float, force: threading.Event) -> None:
        """Take no more connections, and end those that are left after a while.

        Args:
            seconds: for the calls in flight.
            force: ends them at once when set.
        """
        if self._serving is None or self._watching is None:
            self._listener.close()
            return
        until = time.monotonic() + seconds
        self._server.should_exit = True
        while not self._serving.done() and time.monotonic() < until and not force.is_set():
            await asyncio.wait([self._serving], timeout=0.05)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await self._serving
        self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            try:
                self._end_the_slow()
            except Exception:  # else nobody would look again
                LOG.exception("http: slow connections are not ended; will look again")
                self._failed("http")

    def _end_the_slow(self) -> None:
        now = time.monotonic()
        for connection in list(self._server.server_state.connections):
            assert isinstance(connection, _Connection)
            connection.end_if_slow(now)
