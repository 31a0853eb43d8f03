"""The server, its life from top to bottom: load, warm, serve, drain, close."""

import contextlib
import http.server
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import (
    model_service_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)

from configs.errors import ServingError
from serving.impressions import ImpressionLog
from serving.inference import PredictionService
from serving.metrics import CONTENT_TYPE, ServerMetrics
from serving.model_config import ModelConfig, read_model_configs
from serving.model_status import ModelService
from serving.models import Models
from serving.options import ServerOptions
from serving.protos import ranking_pb2, ranking_pb2_grpc
from serving.ranking import RankingService
from serving.security import read_tokens, server_credentials
from serving.status import LOG, StatusInterceptor

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (ranking_pb2, "RankingService"),
        (prediction_service_pb2, "PredictionService"),
        (model_service_pb2, "ModelService"),
    )
)
LIVENESS = "liveness"
"""Health of this name is SERVING as long as the process answers; of all others, readiness."""


class Server:
    """One server: `start` returns when it is ready, `stop` when it has drained."""

    def __init__(self, options: ServerOptions) -> None:
        self.options = options
        self.metrics = ServerMetrics()
        self.port = 0
        """Bound port, once started."""
        self.metrics_port: int | None = None
        self.models = Models(options, self.metrics)
        file = options.auth_token_file
        self._status = StatusInterceptor(self.metrics, read_tokens(file) if file else ())
        ssl = options.ssl_config_file
        self._credentials = server_credentials(ssl) if ssl else None
        self._health = health.HealthServicer()
        self._pool = futures.ThreadPoolExecutor(options.grpc_max_threads, "call")
        self._grpc = grpc.server(
            self._pool,
            interceptors=[self._status],
            maximum_concurrent_rpcs=options.max_concurrent_calls,
            options=[
                ("grpc.max_receive_message_length", options.max_message_mebibytes << 20),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would share its calls at random.
                ("grpc.so_reuseport", 0),
            ],
        )
        self._exporter: http.server.ThreadingHTTPServer | None = None
        self._impressions: ImpressionLog | None = None

    def start(self) -> None:
        """Load and warm a version, then listen.

        Raises:
            ServingError: no version can serve, or the port is taken.
        """
        try:
            _refuse_taken(self.options.host, self.options.port)
            self._impressions = self._open_impressions()
            self.models.apply(_configs(self.options))
            self._register()
            self.port = self._bind()
            self._start_exporter()
        except BaseException:
            self.stop(grace=0)
            raise
        self._grpc.start()
        for name in ("", LIVENESS, *SERVICES):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace: float | None = None, force: threading.Event | None = None) -> None:
        """Drain: report NOT_SERVING, refuse new calls, let calls in flight finish, close.

        Args:
            grace: seconds for the calls in flight; the option's where absent.
            force: ends the calls in flight at once when set.
        """
        force = force or threading.Event()
        self._health.enter_graceful_shutdown()
        self._status.draining = True
        if self.port and grace != 0:
            force.wait(self.options.drain_delay_seconds)
        stopped = self._grpc.stop(self.options.drain_grace_seconds if grace is None else grace)
        while not stopped.wait(0.05):
            if force.is_set():
                self._grpc.stop(0)
        self._pool.shutdown()
        if self._exporter is not None:
            self._exporter.shutdown()
            self._exporter.server_close()
        if self._impressions is not None:
            self._impressions.close()
        self.models.close()

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _register(self) -> None:
        models, server = self.models, self._grpc
        ranking = RankingService(
            models, self.metrics, self.options.max_candidates, self._impressions
        )
        ranking_pb2_grpc.add_RankingServiceServicer_to_server(ranking, server)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionService(models), server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(models), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    def _open_impressions(self) -> ImpressionLog | None:
        options = self.options
        if options.impression_log is None:
            return None
        return ImpressionLog(
            options.impression_log,
            options.impression_log_rate,
            options.impression_log_rows,
            options.impression_log_seconds,
            self.metrics,
        )

    def _bind(self) -> int:
        address = _address(self.options.host, self.options.port)
        try:
            port: int = (
                self._grpc.add_insecure_port(address)
                if self._credentials is None
                else self._grpc.add_secure_port(address, self._credentials)
            )
        except RuntimeError:
            port = 0
        if port == 0:
            certificates = " with the certificates of --ssl_config_file; do they fit its key"
            raise ServingError(
                f"{address}: cannot listen there{certificates if self._credentials else ''}; see "
                "--host and --port"
            )
        return port

    def _start_exporter(self) -> None:
        if self.options.metrics_port < 0:
            return
        address = (self.options.host, self.options.metrics_port)
        try:
            self._exporter = http.server.ThreadingHTTPServer(address, _exporter(self.metrics))
        except OSError as error:
            raise ServingError(
                f"{address[0]}:{address[1]}: cannot serve metrics there: {error.strerror}; "
                "see --metrics_port"
            ) from None
        self.metrics_port = self._exporter.server_address[1]
        threading.Thread(target=self._exporter.serve_forever, name="metrics", daemon=True).start()


def _configs(options: ServerOptions) -> list[ModelConfig]:
    """The models that the options name."""
    if options.model_config_file is not None:
        return read_model_configs(options.model_config_file)
    assert options.model_base_path is not None
    return [ModelConfig(options.model_name, options.model_base_path)]


def _address(host: str, port: int) -> str:
    """As gRPC writes it: IPv6 addresses in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refuse_taken(host: str, port: int) -> None:
    """Fail before the models are loaded where the address cannot be had.

    Raises:
        ServingError: names the address and the reason.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ServingError(
            f"{_address(host, port)}: cannot listen there: {error.strerror}; see --host and --port"
        ) from None


def serve(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends calls in flight.

    Prints one line with the port when ready.

    Raises:
        ServingError: the server cannot start.
    """
    server = Server(options)
    with _signals() as (first, second):
        server.start()
        served = ", ".join(
            f"{name} version {' and '.join(map(str, versions))}"
            for name, versions in server.models.serving().items()
        )
        print(f"serving {served} on {_address(options.host, server.port)}", flush=True)
        # The kernel may hand the signal to one of TensorFlow's threads, which does not wake this
        # one; Python runs the handler when this one next wakes by itself.
        while not first.wait(0.5):
            pass
        LOG.info("draining")
        server.stop(force=second)


@contextlib.contextmanager
def _signals() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events that the first and the second SIGTERM or SIGINT set."""
    first, second = threading.Event(), threading.Event()

    def received(number: int, frame: Any) -> None:
        (second if first.is_set() else first).set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, received) for number in numbers]
    try:
        yield first, second
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _exporter(metrics: ServerMetrics) -> type[http.server.BaseHTTPRequestHandler]:
    """A handler that serves the metrics to Prometheus."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/monitoring/prometheus/metrics"
            body = metrics.text().encode() if found else b"see /monitoring/prometheus/metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            LOG.debug(format, *args)

    return Handler
