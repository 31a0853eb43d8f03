"""The HTTP side of a server: its application, its reader of JSON, its socket."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from multigate.serving.core.addresses import listener
from multigate.serving.core.calls import CallGate
from multigate.serving.core.loop import Threads
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.security import server_tls
from multigate.serving.rest.app import RestApp
from multigate.serving.rest.http import HttpServer
from multigate.serving.rest.methods import Methods
from multigate.serving.rest.parser import JsonReader
from multigate.serving.versions.ranker_version import RankerVersion

_THREADS = 1
"""For large answers and the page of metrics: each competes with the loop for the interpreter."""


class RestServer:
    """Serves HTTP; its port is bound from the beginning."""

    def __init__(
        self,
        options: ServerOptions,
        gate: CallGate,
        methods: Methods,
        use: Callable[[str, int | None, str], AbstractContextManager[RankerVersion]],
        metrics_page: Callable[[], bytes],
        shared: bool,
    ) -> None:
        """Bind the port.

        Args:
            options: of the server.
            gate: what all calls pass.
            methods: what answers.
            use: holds a version for a call, as `Models.use` does.
            metrics_page: writes the metrics.
            shared: whether other processes serve on the port too.

        Raises:
            ServingError: the port is taken, or the certificates do not fit.
        """
        tls = None if options.ssl_config_file is None else server_tls(options.ssl_config_file)
        bound = listener(options.host, options.rest_api_port, shared, "--rest_api_port")
        self.port: int = bound.getsockname()[1]
        self._threads = Threads(_THREADS)
        self._reader = JsonReader(options.max_queued_calls)
        app = RestApp(
            gate,
            methods,
            use,
            metrics_page,
            self._reader,
            self._threads,
            max_body=options.max_message_mebibytes << 20,
            max_reading=options.max_concurrent_calls,
            timeout=options.rest_api_timeout_in_ms / 1e3,
        )
        self._http = HttpServer(app, bound, tls, gate.metrics.thread_failed)

    async def start(self) -> None:
        """Listen."""
        self._reader.start()
        await self._http.start()

    async def close(self, seconds: float, force: threading.Event) -> None:
        """Take no more calls, and end those that are left after a while, or once `force` is set."""
        await self._http.close(seconds, force)
        await asyncio.to_thread(self._close_threads)

    def _close_threads(self) -> None:
        self._threads.close()
        self._reader.close()
