"""Metrics over HTTP, for Prometheus."""

import http.server
import logging
import threading
from collections.abc import Callable
from typing import Any

from multigate.configs.errors import ServingError

LOG = logging.getLogger("multigate.serving")
PATH = "/monitoring/prometheus/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def start_exporter(host: str, port: int, text: Callable[[], str]) -> tuple[int, Callable[[], None]]:
    """Serve metrics in threads of their own.

    Args:
        host: to listen on.
        port: to listen on; 0 is a free one.
        text: the page.

    Returns:
        The bound port, and what ends it.

    Raises:
        ServingError: the address cannot be had.
    """
    try:
        server = http.server.ThreadingHTTPServer((host, port), _handler(text))
    except OSError as error:
        raise ServingError(
            f"{host}:{port}: cannot serve metrics there: {error.strerror}; see --metrics_port"
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()

    def close() -> None:
        server.shutdown()
        server.server_close()

    return server.server_address[1], close


def _handler(text: Callable[[], str]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30  # seconds; half-open connections would hold their threads

        def do_GET(self) -> None:
            found = self.path == PATH
            body = text().encode() if found else f"see {PATH}\n".encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            LOG.debug(format, *args)

    return Handler
