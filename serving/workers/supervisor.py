"""`--workers N`: one process that keeps N server processes alive on one port.

Workers are spawned, never forked: a forked copy of a process in which TensorFlow or gRPC has
threads does not work.  Each worker binds the port with SO_REUSEPORT, and the kernel deals new
connections out among the processes that listen.  A worker listens once it is ready; a dead one gets
no connection.  The supervisor holds the port, replaces dead workers, forwards signals, serves the
metrics of all workers, and passes on what concerns all of them (status requests, reloads).

It loads no TensorFlow: what workers say to each other passes through it as bytes.

`multiprocessing.Pool`, gunicorn and circus were considered: they share a listening socket that is
open before the workers can answer, and know no reload that all workers accept or none.
"""

import logging
import multiprocessing
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multigate.configs.errors import ServingError
from multigate.serving.core import logs
from multigate.serving.core.addresses import listening, reserve
from multigate.serving.core.background import SupervisedThread
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.signals import MARGIN, stop_signals, wait_for
from multigate.serving.observe.exporter import labelled_by_worker, start_exporter
from multigate.serving.workers.link import (
    AnswerTimeoutError,
    DisconnectedError,
    LinkError,
    PeerError,
    PipeClient,
    PipeServer,
)
from multigate.serving.workers.messages import (
    Abort,
    Commit,
    Failed,
    GetMetrics,
    GetRecords,
    Heartbeat,
    Order,
    Prepare,
    Ready,
    Reload,
    Request,
    Served,
    Stop,
    ThreadFailed,
)
from multigate.serving.workers.worker import run_worker

LOG = logging.getLogger("multigate.serving")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a dead worker is replaced; doubled each time that one dies young."""
_YOUNG = 10.0
"""Seconds: a worker that lived longer had worked, and its successor starts after `_FIRST_PAUSE`."""
_ANSWER_IN, _LOAD_IN = 10.0, 600.0
"""Seconds that a worker has for an answer, and for one that needs models loaded."""
_METRICS_IN, _METRICS_HELD = 2.0, 0.5
"""Seconds that a worker has for its metrics, and that a page waits for them: then it has those that
the worker gave last."""
_HEARTBEAT_EVERY = 5.0
"""Seconds between two heartbeats, and that a worker has to answer one."""
_HEARTBEATS_MISSED = 3
"""Heartbeats without an answer, one after another, after which a worker is replaced. They are
counted, not timed: when the whole machine was suspended for an hour, one is missed at most."""


class Slot:
    """One worker's place: runs a worker, answers it, and runs the next when it has died."""

    def __init__(self, number: int, supervisor: "Supervisor") -> None:
        self.number = number
        self.deaths = 0
        self.error = ""
        """Why the worker could not start."""
        self.ready = threading.Event()
        self.settled = threading.Event()
        """The first worker of this slot serves, or has failed."""
        self.serving = ""
        self.responsive = True
        """The worker answered its last request in time."""
        self.metrics: list[Metric] | None = None
        """That the worker gave last; None: it gave none."""
        self.over = threading.Event()
        """There is no process."""
        self.over.set()
        self._supervisor = supervisor
        self._process: Any = None
        self._worker: PipeClient | None = None
        self._ready_at: float | None = None
        """Monotonic seconds at which the worker began to serve; None: it did not."""
        self._thread = threading.Thread(target=self._run, name=f"worker-{number}", daemon=True)

    def start(self) -> None:
        """Run workers until the supervisor stops."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that serves."""
        return self._process.pid if self.ready.is_set() else None

    def ask(self, order: Order, seconds: float = _ANSWER_IN) -> Any:
        """The worker's answer.

        Raises:
            LinkError: the worker is not ready, has died, does not answer in time, or failed.
        """
        worker = self._worker
        if worker is None or not self.ready.is_set():
            raise DisconnectedError(f"worker {self.number} is not ready")
        try:
            answer = worker(order, seconds)
        except AnswerTimeoutError:
            self.responsive = False
            raise
        self.responsive = True
        return answer

    def ask_metrics(self) -> None:
        """Keep the worker's metrics, as they are now.

        Raises:
            LinkError: as `ask`.
        """
        self.metrics = self.ask(GetMetrics(), _METRICS_IN)

    def stop(self, at_once: bool) -> None:
        """Have the worker drain or end; one that does not serve yet has no calls, and is killed.

        One that is too busy to answer in time has the order, and the time to drain.
        """
        try:
            self.ask(Stop(at_once))
        except AnswerTimeoutError:
            if at_once:
                self.kill()
        except LinkError:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if not self.over.is_set() and self._process.pid is not None:
            self._process.kill()

    def join(self) -> None:
        """Wait until the process has ended and no other will follow."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._supervisor.stopping.is_set():
            self.error, self._ready_at = "", None
            try:
                self._run_worker()
            except Exception as error:  # such as no memory for a process: the next try may work
                LOG.exception("worker %d cannot be run", self.number)
                self.error = repr(error)
            if not self.settled.is_set():
                self.settled.set()
                return
            if self._supervisor.stopping.is_set():
                return
            self.deaths += 1
            pause = min(2 * pause, _LONGEST_PAUSE)
            # Not since it was spawned: one that dies after a long load has not worked.
            if self._ready_at is not None and time.monotonic() - self._ready_at > _YOUNG:
                pause = _FIRST_PAUSE
            LOG.error(
                "worker %d ended with status %s%s; the next one in %.1f s",
                self.number,
                self._process.exitcode,
                f" ({self.error})" if self.error else "",
                pause,
            )
            self._supervisor.stopping.wait(pause)

    def _run_worker(self) -> None:
        """Run one worker to its end."""
        spawn = multiprocessing.get_context("spawn")
        orders, worker_orders = spawn.Pipe()
        requests, worker_requests = spawn.Pipe()
        self._process = spawn.Process(
            target=run_worker,
            args=(
                self._supervisor.worker_options,
                worker_orders,
                worker_requests,
                self._supervisor.served,
                self._supervisor.at_start,
            ),
            name=f"multigate-worker-{self.number}",
            daemon=True,
        )
        self.over.clear()
        with orders, requests:
            try:
                # Once started, the worker alone holds these ends, so that its death closes them.
                with worker_orders, worker_requests:
                    self._process.start()
                with suppress(EOFError, OSError):
                    self._serve(orders, requests)
            except BaseException:
                self.kill()
                raise
            finally:
                self.ready.clear()
                self.metrics = None
                if self._process.pid is not None:
                    self._process.join()
                self.over.set()
                if self._worker is not None:
                    self._worker.close()
                    self._worker = None

    def _serve(self, orders: Connection, requests: Connection) -> None:
        first = orders.recv()
        if isinstance(first, Failed):
            self.error = first.reason
            return
        assert isinstance(first, Ready)
        self.serving = first.serving
        self._worker = PipeClient(orders)
        self._supervisor.admit(self, first.served)
        self._ready_at = time.monotonic()
        self.responsive = True
        self.settled.set()
        if self._supervisor.stopping.is_set():
            self.stop(at_once=False)
        server = PipeServer(requests)
        ended = threading.Event()
        heart = SupervisedThread(
            f"heartbeat-{self.number}",
            partial(self._send_heartbeats, ended),
            self._supervisor.metrics.thread_failed,
        )
        heart.start()
        try:
            while True:
                # A thread each: status requests must not wait for a reload.
                threading.Thread(
                    target=self._answer,
                    args=(server, *server.receive()),
                    name="answer",
                    daemon=True,
                ).start()
        finally:
            ended.set()
            heart.join()

    def _send_heartbeats(self, ended: threading.Event) -> None:
        """Ask the worker's event loop again and again; kill a worker that does not answer.

        A hung worker keeps its connections, so that its callers would wait for their deadlines.
        """
        missed = 0
        while not ended.wait(_HEARTBEAT_EVERY):
            try:
                self.ask(Heartbeat(), _HEARTBEAT_EVERY)
            except LinkError:
                missed += 1
                # A worker that drains has its own limit of time.
                if missed >= _HEARTBEATS_MISSED and not self._supervisor.stopping.is_set():
                    self.error = f"did not answer {missed} heartbeats"
                    self.kill()
                    return
            else:
                missed = 0

    def _answer(self, server: PipeServer, number: int, request: Request) -> None:
        try:
            answer = self._supervisor.answer(request)
        except Exception as error:
            server.fail(number, error)
        else:
            server.send(number, answer)

    def catch_up(self, begun: Served, served: Served) -> None:
        """Count as ready, with the models of the others.

        Args:
            begun: what the worker began with.
            served: of the other workers: others after a reload that happened while it started, or
                where the models' file changed between the starts of two workers.
        """
        self.ready.set()
        if begun.configs == served.configs:
            return
        try:
            problem = self.ask(Prepare(0, served), _LOAD_IN)
            problem = problem or self.ask(Commit(0))
        except LinkError as error:
            problem = str(error)
        if problem:
            LOG.error("worker %d: %s; another one takes its place", self.number, problem)
            self.kill()


class Supervisor(Collector):
    """Keeps the workers alive, and answers for all of them; collects their metrics."""

    def __init__(self, options: ServerOptions, at_start: Callable[[], Any]) -> None:
        """Hold the port.

        Args:
            options: of the server.
            at_start: what a worker does first, such as `runtime.start.start_runtime`.

        Raises:
            ServingError: the address is taken.
        """
        self.at_start = at_start
        self.options = options
        self.stopping = threading.Event()
        self.served: Served | None = None
        """Models of all workers; None until the first worker is ready."""
        self._held = reserve(options.host, options.port)
        self.port: int = self._held.getsockname()[1]
        self.rest_port: int | None = None
        self._held_for_rest: socket.socket | None = None
        ports = {"port": self.port, "metrics_port": -1}
        if options.rest_api_port >= 0:
            try:
                held = reserve(options.host, options.rest_api_port, "--rest_api_port")
            except ServingError:
                self._held.close()
                raise
            self._held_for_rest = held
            ports["rest_api_port"] = self.rest_port = held.getsockname()[1]
        self.worker_options = options.model_copy(update=ports)
        self.slots = [Slot(number, self) for number in range(options.workers)]
        self._changing = threading.Lock()
        self._reloads = 0
        """Number of the last reload; 0 is that of a worker that catches up."""
        self._close_exporter: Callable[[], None] = lambda: None
        self.metrics_port: int | None = None
        self.metrics = ServerMetrics()
        """Of this process alone, which has threads and no calls."""
        self.metrics.tell_thread_failure = self._tell_thread_failure

    def start(self, stop: threading.Event | None = None) -> None:
        """Spawn all workers and wait until each serves.

        Args:
            stop: when set, the start is given up.

        Raises:
            ServingError: a worker cannot serve, the metrics' port is taken, or the start was given
                up.
        """
        try:
            if self.options.metrics_port >= 0:
                self.metrics_port, self._close_exporter = start_exporter(
                    self.options.host,
                    self.options.metrics_port,
                    self,
                    self.metrics.thread_failed,
                )
            for slot in self.slots:
                slot.start()
            for slot in self.slots:
                while not slot.settled.wait(0.5):
                    if stop is not None and stop.is_set():
                        raise ServingError("stopped before it served")
                if not slot.ready.is_set():
                    raise ServingError(slot.error or f"worker {slot.number} ended at its start")
        except BaseException:
            self.stop()
            raise

    def stop(self, force: threading.Event | None = None) -> None:
        """Have every worker drain and end.

        Args:
            force: ends the calls in flight at once when set; None: so from the beginning.
        """
        self.stopping.set()
        options = self.options
        until = time.monotonic() + options.drain_delay_seconds + options.drain_grace_seconds
        until += MARGIN
        self._stop_workers(at_once=force is None)
        while not all(slot.over.wait(0.02) for slot in self.slots) and time.monotonic() < until:
            if force is not None and force.is_set():
                self._stop_workers(at_once=True)
                force = None
        for slot in self.slots:
            if not slot.over.is_set():
                LOG.error("worker %d does not end in time and is killed", slot.number)
                slot.kill()
            slot.join()
        self._close_exporter()
        self._held.close()
        if self._held_for_rest is not None:
            self._held_for_rest.close()

    def _stop_workers(self, at_once: bool) -> None:
        """Tell all at once: one that hangs does not keep the others from draining."""
        with futures.ThreadPoolExecutor(len(self.slots)) as pool:
            for slot in self.slots:
                try:
                    pool.submit(slot.stop, at_once)
                except RuntimeError:  # there is no room for another thread
                    slot.stop(at_once)

    def _tell_thread_failure(self) -> None:
        """Have the workers' health say so: this process has none."""
        self._ask_all(ThreadFailed(), _METRICS_IN)

    def admit(self, slot: Slot, begun: Served) -> None:
        """Bring a worker that has just started to the models of the others.

        Its successors begin with these too, and not with what the options' file says by then: no
        worker serves what the others do not, and a file that is broken keeps none from starting.
        """
        with self._changing:
            if self.served is None:
                self.served = begun
            slot.catch_up(begun, self.served)

    def answer(self, request: Request) -> Any:
        """Answer a worker: metrics or a model's records in all workers, or a reload's result."""
        if isinstance(request, GetMetrics):
            return list(self.collect())
        if isinstance(request, GetRecords):
            found = self._ask_all(request)
            silent = [s for s in self.slots if s.ready.is_set() and s.number not in found]
            # What a worker does not say is not known: no version counts as AVAILABLE there.
            return [*found.values(), *(pickle.dumps({}) for _ in silent)]
        return self._reload(request)

    def _ask_all(self, order: Order, seconds: float = _ANSWER_IN) -> dict[int, Any]:
        """Answers of the workers that are ready, by slot; asked all at once.

        A worker that did not answer its last request in time is not asked, until it answers a
        heartbeat.
        """

        def ask(slot: Slot) -> Any:
            try:
                return slot.ask(order, seconds) if slot.responsive else None
            except LinkError:
                return None

        with futures.ThreadPoolExecutor(len(self.slots)) as pool:
            answers = pool.map(ask, self.slots)
        return {
            slot.number: answer
            for slot, answer in zip(self.slots, answers, strict=True)
            if answer is not None
        }

    def _reload(self, request: Reload) -> str:
        """Load other models in all workers or in none; why not, or the empty text."""
        with self._changing:
            prepared, problem = [], ""
            self._reloads += 1
            for slot in self.slots:
                try:
                    problem = slot.ask(Prepare(self._reloads, request.served), _LOAD_IN)
                except AnswerTimeoutError as error:
                    problem = f"worker {slot.number}: {error}"
                    prepared.append(slot)  # it may finish later
                except PeerError as error:
                    problem = f"worker {slot.number}: {error}"
                except DisconnectedError:
                    continue  # its successor starts with the models that are valid then
                if problem:
                    break
                prepared.append(slot)
            for slot in prepared:
                with suppress(LinkError):
                    slot.ask(Abort(self._reloads) if problem else Commit(self._reloads))
            if not problem:
                file, before = request.served.file, self.served
                if file is None and before is not None:  # the file has not changed
                    file = before.file
                self.served = Served(request.served.configs, file)
            return problem

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers, each sample labelled with its worker.

        A worker that hangs holds nothing up: of one that is late there are the metrics that it gave
        last, and none once it has missed its time for an answer.
        """
        asked = [slot for slot in self.slots if slot.responsive and slot.ready.is_set()]
        pool = futures.ThreadPoolExecutor(len(self.slots))
        futures.wait([pool.submit(slot.ask_metrics) for slot in asked], _METRICS_HELD)
        pool.shutdown(wait=False)
        families: dict[str, Iterable[Metric]] = {
            str(slot.number): slot.metrics for slot in asked if slot.metrics is not None
        }
        of_this_process = ProcessCollector(registry=None).collect()
        families["supervisor"] = [*self.metrics.thread_failures.collect(), *of_this_process]
        yield from labelled_by_worker(families)
        serving = sum(slot.ready.is_set() and slot.responsive for slot in self.slots)
        yield GaugeMetricFamily("multigate_workers", "Workers that serve.", serving)
        deaths = CounterMetricFamily(
            "multigate_worker_deaths_total",
            "Workers that ended and were spawned anew.",
            labels=["worker"],
        )
        for slot in self.slots:
            deaths.add_metric([str(slot.number)], slot.deaths)
        yield deaths


def supervise(options: ServerOptions, at_start: Callable[[], Any]) -> None:
    """Serve with several processes until SIGTERM or SIGINT, then drain.

    Prints one line with the port when all are ready.

    Args:
        options: of the server.
        at_start: what a worker does first, such as `runtime.start.start_runtime`.

    Raises:
        ServingError: the server cannot start.
    """
    logs.configure(options.log_format)
    with stop_signals() as (first, second):
        supervisor = Supervisor(options, at_start)
        try:
            supervisor.start(first)
        except ServingError:
            if not first.is_set():
                raise
            return  # a signal asked for it
        where = listening(options.host, supervisor.port, supervisor.rest_port)
        serving = supervisor.slots[0].serving
        print(f"serving {serving} in {options.workers} workers on {where}", flush=True)
        wait_for(first)
        LOG.info("draining")
        supervisor.stop(force=second)
