"""Metrics over HTTP, for Prometheus; of one process, or of several workers as one page."""

import io
import logging
import socketserver
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from socket import AF_INET, AF_INET6
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from multigate.configs.errors import ServingError
from multigate.serving.core.addresses import address
from multigate.serving.core.background import SupervisedThread

LOG = logging.getLogger("multigate.serving")
PATH = "/monitoring/prometheus/metrics"


def start_exporter(
    host: str,
    port: int,
    metrics: Collector,
    failed: Callable[[str], None] = lambda name: None,
) -> tuple[int, Callable[[], None]]:
    """Serve metrics at `PATH`, in threads.

    Args:
        host: to listen on.
        port: to listen on; 0 is a free one.
        metrics: collected anew for each request.
        failed: called with the thread's name if it fails and begins again.

    Returns:
        The bound port, and a function that stops the exporter.

    Raises:
        ServingError: the address cannot be used.
    """
    server = type("Server", (_Server,), {"address_family": AF_INET6 if ":" in host else AF_INET})
    try:
        exporter = server((host, port), _Handler)
    except OSError as error:
        raise ServingError(
            f"{address(host, port)}: cannot serve metrics there: {error.strerror}; "
            "see --metrics_port"
        ) from None
    exporter.set_app(_page(metrics))
    thread = SupervisedThread("metrics", exporter.serve_forever, failed)
    thread.start()

    def close() -> None:
        exporter.shutdown()
        thread.join()
        exporter.server_close()

    return exporter.server_port, close


def labelled_by_worker(families: Mapping[str, Iterable[Metric]]) -> list[Metric]:
    """The metrics of several workers as one; every sample gets the label `worker`.

    Args:
        families: by worker.
    """
    merged: dict[str, Metric] = {}
    for worker, of_worker in families.items():
        for family in of_worker:
            if family.name not in merged:
                merged[family.name] = copy(family)
                merged[family.name].samples = []
            merged[family.name].samples += [
                sample._replace(labels={"worker": worker, **sample.labels})
                for sample in family.samples
            ]
    return list(merged.values())


def _page(metrics: Collector) -> Callable[[dict[str, Any], Any], list[bytes]]:
    """The WSGI application: the metrics at `PATH`, 404 elsewhere."""
    page = make_wsgi_app(metrics)

    def answer(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] != PATH:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"see {PATH}\n".encode()]
        # Prometheus asks for OpenMetrics first, in which every counter must end in `_total`.
        environ["HTTP_ACCEPT"] = "text/plain; version=0.0.4"
        try:
            return page(environ, start_response)
        except Exception:
            LOG.exception("metrics: the page cannot be written")
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the server's log says why\n"]

    return answer


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A thread per request."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a request that failed: quietly where its client went away or was too slow."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        LOG.log(level, "metrics: a request of %s failed", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    """Logs to the server's log, at level DEBUG."""

    timeout = 30  # seconds; half-open connections would hold their threads

    def get_stderr(self) -> Any:
        """Where wsgiref writes a traceback of several lines for each client that does not read."""
        return io.StringIO()

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)
