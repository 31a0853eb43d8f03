"""The server's life, in the order of this file: load, warm up, serve, drain, close."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from multigate.configs.errors import ServingError
from multigate.runtime.tensorflow_messages import (
    model_service_pb2,
    model_service_pb2_grpc,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)
from multigate.serving.core import logs
from multigate.serving.core.addresses import address, listening, refuse_taken
from multigate.serving.core.background import (
    end_without_hanging_threads,
    freeze_garbage_collector,
)
from multigate.serving.core.calls import CallGate
from multigate.serving.core.loop import CALLS, LoopLag, Threads
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.security import TokenFile, server_credentials
from multigate.serving.core.signals import MARGIN, ends_within, stop_signals, wait_for
from multigate.serving.core.status import LOG
from multigate.serving.core.tracing import Tracing
from multigate.serving.observe.drift import DriftMonitor
from multigate.serving.observe.exporter import start_exporter
from multigate.serving.observe.impressions import ImpressionLog
from multigate.serving.observe.shadow import Shadow
from multigate.serving.protos import ranking_pb2, ranking_pb2_grpc
from multigate.serving.rest.methods import Methods
from multigate.serving.rpc.config_file import ConfigFile
from multigate.serving.rpc.health import Health
from multigate.serving.rpc.inference import PredictionService
from multigate.serving.rpc.interceptor import StatusInterceptor
from multigate.serving.rpc.model_status import ModelService, Workers
from multigate.serving.rpc.ranking import RankingService
from multigate.serving.rpc.receiving import receive_to_the_end
from multigate.serving.rpc.recommendation import CandidateFinder
from multigate.serving.rpc.reflection import add_reflection
from multigate.serving.versions.model_config import ModelConfig, read_model_configs
from multigate.serving.versions.models import Models

if TYPE_CHECKING:
    from multigate.serving.observe.spans import SpanExport
    from multigate.serving.rest.server import RestServer

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (ranking_pb2, "RankingService"),
        (prediction_service_pb2, "PredictionService"),
        (model_service_pb2, "ModelService"),
    )
)
LIVENESS = "liveness"
"""Health service that is SERVING as long as the process answers."""
READINESS = ("", *SERVICES)
"""Health services that are SERVING once all models are loaded, until the server drains."""
BACKGROUND = "background"
"""Health service that is SERVING while no background thread has failed of late."""

_FAILED_SECONDS = 60.0
"""For how long a background thread's failure counts: longer than any pause before it begins again,
so that one which fails over and over is never SERVING in between."""

_MAX_LINE_SECONDS = 86_400
"""Longest time for which a call that has arrived may stand in line before the loop begins it."""

_UNREAD_SECONDS = 2.0
"""How long a drain waits, after the last unary call, for streams whose clients do not read: such a
client does not notice that the stream ends."""


class Server:
    """A gRPC server: `start` returns once it is ready, `stop` once it has drained."""

    def __init__(
        self,
        options: ServerOptions,
        configs: Sequence[ModelConfig] | None = None,
        workers: Workers | None = None,
        applied_file: bytes | None = None,
    ) -> None:
        """Make a server that has not started.

        Args:
            options: of the server.
            configs: its models; default: those of the options.
            workers: the processes that share its port.
            applied_file: the content of `--model_config_file` that these processes applied last;
                default: what it has now.
        """
        self.options = options
        self.configs: Sequence[ModelConfig] = configs or ()
        """The models that it starts with; empty until it reads the options' file."""
        self._workers = workers
        self.metrics = ServerMetrics()
        self.port = 0
        """Bound port, once started."""
        self.rest_port: int | None = None
        """Of HTTP; None without."""
        self.metrics_port: int | None = None
        self.models = Models(options, self.metrics)
        self._spans: SpanExport | None = None
        self.gate = CallGate(
            self.metrics,
            _token_file(options.auth_token_file),
            _token_file(options.admin_token_file),
            options.log_calls,
            options.max_concurrent_calls,
            self._open_tracing(),
        )
        self._interceptor = StatusInterceptor(
            self.gate, max_streams=max(options.max_concurrent_calls // 4, 1)
        )
        ssl = options.ssl_config_file
        self._credentials = server_credentials(ssl) if ssl else None
        self._rest: RestServer | None = None
        self._health = Health((BACKGROUND,))
        self.metrics.tell_thread_failure = self._tell_thread_failure
        self._lag = LoopLag(self.metrics.loop_lag.observe)
        self._threads = Threads(options.grpc_max_threads)
        self._grpc: grpc.aio.Server | None = None
        self._entered = False
        self._close_exporter: Callable[[], None] = lambda: None
        self._impressions: ImpressionLog | None = None
        self._drift: DriftMonitor | None = None
        self._shadow: Shadow | None = None
        self._config_file = self._watch_config_file(applied_file)
        self._finder = CandidateFinder(self.models, self.metrics, options)

    def start(self) -> None:
        """Load and warm up the models, then listen.

        Raises:
            ServingError: a model has no version that can be loaded, or the port is taken.
        """
        CALLS.enter()
        self._entered = True
        try:
            if self._workers is None:
                refuse_taken(self.options.host, self.options.port)
            self._impressions = self._open_impressions()
            self._drift = DriftMonitor(self.options, self.metrics)
            self._shadow = Shadow(self.options, self.models, self.metrics, self.gate.in_flight)
            self.configs = self.configs or _configs(self.options)
            self.models.apply(self.configs)
            self.port = CALLS.submit(self._open()).result()
            if self._rest is not None:
                self.rest_port = self._rest.port
            if self.options.metrics_port >= 0:
                self.metrics_port, self._close_exporter = start_exporter(
                    self.options.host,
                    self.options.metrics_port,
                    self.metrics.registry,
                    self.metrics.thread_failed,
                )
            CALLS.submit(self._open_for_calls()).result()
            if self._config_file is not None:
                self._config_file.start()
        except BaseException:
            self.stop(grace=0)
            raise

    def stop(self, grace: float | None = None, force: threading.Event | None = None) -> None:
        """Drain: report NOT_SERVING, refuse new calls, let calls in flight finish, close.

        Args:
            grace: seconds for the calls in flight; default: `--drain_grace_seconds`.
            force: once set, calls in flight are ended at once.
        """
        if not self._entered:
            return
        self._entered = False
        force = force or threading.Event()
        CALLS.submit(self._close_for_calls()).result()
        self.models.stop_loading()
        if self._config_file is not None:
            self._config_file.close()
        if self.port and grace != 0:
            force.wait(self.options.drain_delay_seconds)
        self._drain_calls(self.options.drain_grace_seconds if grace is None else grace, force)
        self._threads.close()
        self._interceptor.close()
        self._finder.close()
        self._close_exporter()
        if self._impressions is not None:
            self._impressions.close()
        if self._drift is not None:
            self._drift.close()
        if self._shadow is not None:
            self._shadow.close()
        if self._spans is not None:
            self._spans.close()
        self.models.close()
        CALLS.leave()

    def _tell_thread_failure(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its callers with it
            CALLS.call(partial(self._health.fail, BACKGROUND, _FAILED_SECONDS))

    def describe(self) -> str:
        """The models and their available versions, in words."""
        return ", ".join(
            f"{name} version {' and '.join(map(str, versions)) or '(none yet)'}"
            for name, versions in self.models.available_versions().items()
        )

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open_tracing(self) -> Tracing | None:
        """What traces calls, if there is a collector.

        Raises:
            ServingError: its packages are not installed.
        """
        if not self.options.otlp_endpoint:
            return None
        try:
            from multigate.serving.observe.spans import SpanExport
        except ImportError as error:
            raise ServingError(
                f"--otlp_endpoint: needs the package {error.name}; install multigate[traces]"
            ) from None
        self._spans = SpanExport(self.options.otlp_endpoint, self.metrics)
        return Tracing(self.options.otlp_sampling_rate, self._spans.add)

    async def _open(self) -> int:
        """Make the gRPC server in the event loop; returns its port."""
        options = self.options
        receive_to_the_end()
        self._grpc = grpc.aio.server(
            interceptors=[self._interceptor],
            options=[
                *_keepalive(options),
                ("grpc.max_receive_message_length", options.max_message_mebibytes << 20),
                ("grpc.max_send_message_length", -1),
                # Callers say how long they wait.  By default gRPC drops a call that the loop has
                # not begun within 30 s, as CANCELLED: a paused machine would fail those in line.
                ("grpc.server_max_unrequested_time_in_server", _MAX_LINE_SECONDS),
                # Workers share the port: the kernel deals connections out at random.
                ("grpc.so_reuseport", int(self._workers is not None)),
            ],
        )
        self._register(self._grpc)
        return self._bind(self._grpc)

    def _open_rest(self, methods: Methods) -> None:
        """Make the HTTP server, bound and not listening.

        Raises:
            ServingError: its port is taken, or its packages are not installed.
        """
        try:
            from multigate.serving.rest.server import RestServer
        except ImportError as error:
            raise ServingError(
                f"--rest_api_port: needs the package {error.name}; install multigate[serving]"
            ) from None
        options, workers = self.options, self._workers
        self._rest = RestServer(
            options,
            self.gate,
            methods,
            self.models.use,
            lambda: generate_latest(workers if workers is not None else self.metrics.registry),
            shared=workers is not None,
        )

    async def _open_for_calls(self) -> None:
        """Take calls, and report SERVING."""
        assert self._grpc is not None
        self._lag.start()
        await self._grpc.start()
        if self._rest is not None:
            await self._rest.start()
        await self._health.set((*READINESS, LIVENESS), health_pb2.HealthCheckResponse.SERVING)

    async def _close_for_calls(self) -> None:
        """Report NOT_SERVING and refuse calls, in one step of the event loop.

        A client that has seen the one must meet the other.
        """
        await self._health.set(READINESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        self.gate.draining = True

    def _drain_calls(self, grace: float, force: threading.Event) -> None:
        """Take no more calls; end those in flight after `grace` seconds, or once `force` is set."""
        if self._grpc is None:
            return
        ended = [CALLS.submit(self._rest.close(grace, force))] if self._rest is not None else []
        CALLS.submit(self._interceptor.streams.end()).result()
        stopped = CALLS.submit(self._grpc.stop(grace))
        since = time.monotonic()
        while futures.wait([stopped], 0.05).not_done:
            if self.gate.in_flight.count or not self._interceptor.streams:
                since = time.monotonic()
            if force.is_set() or time.monotonic() - since > _UNREAD_SECONDS:
                stopped.cancel()
                stopped = CALLS.submit(self._grpc.stop(None))
                break
        stopped.result()
        for one in ended:
            one.result()
        CALLS.submit(self._drop_grpc()).result()

    async def _drop_grpc(self) -> None:
        """Drop the gRPC server in its event loop, which reads a socket that the server owns."""
        self._lag.stop()
        self._grpc = None

    def _register(self, server: grpc.aio.Server) -> None:
        models, threads = self.models, self._threads
        ranking = RankingService(
            models,
            self.metrics,
            self.options.max_candidates,
            self._finder,
            threads,
            self._impressions,
            self._drift,
            self._shadow,
            self.options.canary_timeout_ms / 1e3,
            self._workers,
        )
        ranking_pb2_grpc.add_RankingServiceServicer_to_server(ranking, server)
        prediction = PredictionService(models, threads, self.metrics)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(prediction, server)
        status = ModelService(models, threads, self._workers)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(status, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        add_reflection((*SERVICES, "grpc.health.v1.Health"), server)
        if self.options.rest_api_port >= 0:
            self._open_rest(
                Methods(
                    ranking.Rank,
                    ranking.Recommend,
                    ranking.Explain,
                    prediction.predict_of,
                    prediction.GetModelMetadata,
                    status.GetModelStatus,
                )
            )

    @property
    def applied_file(self) -> bytes | None:
        """Content of `--model_config_file` that was applied last; None where it is not polled."""
        return None if self._config_file is None else self._config_file.applied

    @applied_file.setter
    def applied_file(self, content: bytes) -> None:
        if self._config_file is not None:
            self._config_file.applied = content

    def _watch_config_file(self, applied: bytes | None) -> ConfigFile | None:
        """What applies the changes of the models' file; None where it is not polled."""
        path, seconds = (
            self.options.model_config_file,
            self.options.model_config_file_poll_wait_seconds,
        )
        if path is None or not seconds:
            return None

        def apply(configs: Sequence[ModelConfig], content: bytes) -> None:
            if self._workers is None:
                self.models.apply(configs)
            else:
                self._workers.apply(configs, content)

        return ConfigFile(path, seconds, apply, self.metrics, applied)

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

    def _bind(self, server: grpc.aio.Server) -> int:
        where = address(self.options.host, self.options.port)
        try:
            port: int = (
                server.add_insecure_port(where)
                if self._credentials is None
                else server.add_secure_port(where, self._credentials)
            )
        except RuntimeError:
            port = 0
        if port == 0:
            certificates = " with the certificates of --ssl_config_file; do they fit its key"
            raise ServingError(
                f"{where}: cannot listen there{certificates if self._credentials else ''}; see "
                "--host and --port"
            )
        return port


def _keepalive(options: ServerOptions) -> list[tuple[str, int]]:
    """Options that close connections of vanished clients and, if configured, old connections."""
    settings = [
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # Clients may ping as often.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
    if options.max_connection_age_seconds:
        settings += [
            ("grpc.max_connection_age_ms", int(1e3 * options.max_connection_age_seconds)),
            ("grpc.max_connection_age_grace_ms", int(1e3 * options.drain_grace_seconds)),
        ]
    return settings


def _token_file(path: Path | None) -> TokenFile | None:
    return None if path is None else TokenFile(path)


def _configs(options: ServerOptions) -> list[ModelConfig]:
    """The models that the options configure."""
    if options.model_config_file is not None:
        return read_model_configs(options.model_config_file)
    assert options.model_base_path is not None
    name, candidates = options.model_name, options.candidates_base_path
    configs = [ModelConfig(name, options.model_base_path)]
    if candidates is not None:
        configs.append(ModelConfig(f"{name}-candidates", candidates, ranker=name))
    return configs


def serve(options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends calls in flight.

    Prints one line with the port when ready.

    Raises:
        ServingError: the server cannot start.
    """
    logs.configure(options.log_format)
    freeze_garbage_collector()
    server = Server(options)
    with stop_signals(server.models.stop_loading) as (first, second):
        try:
            server.start()
        except ServingError:
            if not first.is_set():
                raise
            return  # a signal asked for it
        freeze_garbage_collector()  # what was imported and made since, too
        where = listening(options.host, server.port, server.rest_port)
        print(f"serving {server.describe()} on {where}", flush=True)
        wait_for(first)
        LOG.info("draining")
        with ends_within(options.drain_delay_seconds + options.drain_grace_seconds + MARGIN):
            server.stop(force=second)
    end_without_hanging_threads()
