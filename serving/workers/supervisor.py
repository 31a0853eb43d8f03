"""`--workers N`: one process that keeps N server processes alive on one port.

Workers are spawned, never forked: a copy of a process in which TensorFlow or gRPC has threads does
not work.  Each binds the port with SO_REUSEPORT, so that the kernel deals new connections out
among those that listen: a worker listens once it is ready, and a dead one gets no connection.  The
supervisor holds the port, spawns a dead worker anew, forwards signals, serves the metrics of all,
and carries what concerns all workers (status questions, reload requests) from one to the others.

It imports no TensorFlow: what workers say to one another passes through it as bytes.
"""

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multigate.configs.errors import ServingError
from multigate.serving.core import logs
from multigate.serving.core.addresses import address, reserve
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.signals import MARGIN, stop_signals, wait_for
from multigate.serving.observe.exporter import labelled_by_worker, start_exporter
from multigate.serving.workers.link import Ask, GoneError, LateError, Replies
from multigate.serving.workers.worker import Failed, Ready, run_worker

LOG = logging.getLogger("multigate.serving")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a dead worker is spawned anew; doubled as long as it dies young."""
_YOUNG = 10.0
"""Seconds after which a worker that dies counts as one that had worked."""
_ANSWER_IN, _LOAD_IN = 10.0, 600.0
"""Seconds that a worker has for an answer, and for one that needs models loaded."""


class Slot:
    """One worker's place: spawns it, answers it, and spawns the next when it has died."""

    def __init__(self, number: int, supervisor: "Supervisor") -> None:
        self.number = number
        self.deaths = 0
        self.error = ""
        """Why the worker could not start."""
        self.ready = threading.Event()
        self.settled = threading.Event()
        """The first worker of this place serves, or has failed."""
        self.serving = ""
        self.over = threading.Event()
        """There is no process."""
        self.over.set()
        self._supervisor = supervisor
        self._process: Any = None
        self._ask: Ask | None = None
        self._configs: bytes | None = None
        self._thread = threading.Thread(target=self._keep, name=f"worker-{number}", daemon=True)

    def start(self) -> None:
        """Spawn, and go on spawning until the supervisor stops."""
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """Of the process that serves."""
        return self._process.pid if self.ready.is_set() else None

    def ask(self, question: Any, seconds: float = _ANSWER_IN) -> Any:
        """The worker's answer.

        Raises:
            GoneError: it is not ready, has died, or does not answer.
        """
        ask = self._ask
        if ask is None or not self.ready.is_set():
            raise GoneError(f"worker {self.number} is not ready")
        return ask(question, seconds)

    def order(self, how: str) -> None:
        """Have the worker drain or end; one that does not serve yet has no calls to wait for."""
        try:
            self.ask((how,))
        except GoneError:
            self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and not self.over.is_set():
            self._process.kill()

    def join(self) -> None:
        """Wait until the process has ended and none will be spawned."""
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        pause = _FIRST_PAUSE
        while not self._supervisor.stopping.is_set():
            spawned = time.monotonic()
            self._live()
            if not self.settled.is_set():
                self.settled.set()
                return
            if self._supervisor.stopping.is_set():
                return
            self.deaths += 1
            pause = min(2 * pause, _LONGEST_PAUSE)
            if time.monotonic() - spawned > _YOUNG:
                pause = _FIRST_PAUSE
            LOG.error(
                "worker %d ended with status %s%s; the next one in %.1f s",
                self.number,
                self._process.exitcode,
                f" ({self.error})" if self.error else "",
                pause,
            )
            self._supervisor.stopping.wait(pause)

    def _live(self) -> None:
        """One worker's life."""
        spawn = multiprocessing.get_context("spawn")
        orders, its_orders = spawn.Pipe()
        questions, its_questions = spawn.Pipe()
        self._configs = self._supervisor.configs
        self.error = ""
        self._process = spawn.Process(
            target=run_worker,
            args=(
                self._supervisor.worker_options,
                its_orders,
                its_questions,
                self._configs,
                self._supervisor.before,
            ),
            name=f"multigate-worker-{self.number}",
            daemon=True,
        )
        self.over.clear()
        self._process.start()
        its_orders.close()  # or its death would close no pipe
        its_questions.close()
        try:
            with suppress(EOFError, OSError):
                self._serve(orders, questions)
        finally:
            self.ready.clear()
            self._process.join()
            self.over.set()
            if self._ask is None:
                orders.close()
            else:
                self._ask.close()
                self._ask = None
            questions.close()

    def _serve(self, orders: Connection, questions: Connection) -> None:
        first = orders.recv()
        if isinstance(first, Failed):
            self.error = first.reason
            return
        assert isinstance(first, Ready)
        self.serving = first.serving
        self._ask = Ask(orders)
        self._supervisor.admit(self)
        self.settled.set()
        if self._supervisor.stopping.is_set():
            self.order("drain")
        replies = Replies(questions)
        while True:
            # A reload takes its time: whoever asks for states meanwhile need not wait for it.
            threading.Thread(
                target=self._reply, args=(replies, *replies.next()), name="reply", daemon=True
            ).start()

    def _reply(self, replies: Replies, number: int, question: tuple[Any, ...]) -> None:
        replies.send(number, self._supervisor.answer(*question))

    def catch_up(self, configs: bytes | None) -> None:
        """Apply a reload that happened while the worker started, then count as ready."""
        self.ready.set()
        if configs is self._configs or configs is None:
            return
        try:
            problem = self.ask(("prepare", 0, configs), _LOAD_IN)
            problem = problem or self.ask(("commit", 0))
        except GoneError as error:
            problem = str(error)
        if problem:
            LOG.error("worker %d: %s; another one takes its place", self.number, problem)
            self.kill()


class Supervisor(Collector):
    """Keeps the workers alive, and speaks for all of them."""

    def __init__(self, options: ServerOptions, before: Callable[[], Any]) -> None:
        """Hold the port.

        Args:
            options: of the server.
            before: what a worker does first, before it imports TensorFlow.

        Raises:
            ServingError: the address is taken.
        """
        self.before = before
        self.options = options
        self.stopping = threading.Event()
        self.configs: bytes | None = None
        """The models of the last reload; None: those of the options."""
        self._held = reserve(options.host, options.port)
        self.port: int = self._held.getsockname()[1]
        self.worker_options = options.model_copy(update={"port": self.port, "metrics_port": -1})
        self.slots = [Slot(number, self) for number in range(options.workers)]
        self._changing = threading.Lock()
        self._changes = 0
        """Reloads so far; 0 names that of a worker which catches up."""
        self._close_exporter: Callable[[], None] = lambda: None
        self.metrics_port: int | None = None

    def start(self, stop: threading.Event | None = None) -> None:
        """Spawn all workers and wait until each serves.

        Args:
            stop: gives the start up when set.

        Raises:
            ServingError: a worker cannot serve, the metrics' port is taken, or the start was given
                up.
        """
        try:
            if self.options.metrics_port >= 0:
                self.metrics_port, self._close_exporter = start_exporter(
                    self.options.host, self.options.metrics_port, self
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
        """Let every worker drain and end; at once when `force` is set, or without it."""
        self.stopping.set()
        options = self.options
        until = time.monotonic() + options.drain_delay_seconds + options.drain_grace_seconds
        until += MARGIN
        self._order("force" if force is None else "drain")
        while not all(slot.over.wait(0.02) for slot in self.slots) and time.monotonic() < until:
            if force is not None and force.is_set():
                self._order("force")
                force = None
        for slot in self.slots:
            if not slot.over.is_set():
                LOG.error("worker %d does not end in time, and is killed", slot.number)
                slot.kill()
            slot.join()
        self._close_exporter()
        self._held.close()

    def _order(self, how: str) -> None:
        for slot in self.slots:
            slot.order(how)

    def admit(self, slot: Slot) -> None:
        """A worker is ready: bring it to the models of the last reload."""
        with self._changing:
            slot.catch_up(self.configs)

    def answer(self, question: str, *parts: Any) -> Any:
        """What one worker wants of all: the records of a model, or other models."""
        if question == "records":
            return self._gather(("records", *parts))
        return self._reload(*parts)

    def _gather(self, question: Any) -> list[Any]:
        """Answers of the workers that are ready."""
        answers = []
        for slot in self.slots:
            with suppress(GoneError):
                answers.append(slot.ask(question))
        return answers

    def _reload(self, configs: bytes) -> str:
        """Other models in all workers or in none; why not, or the empty text."""
        with self._changing:
            prepared, problem = [], ""
            self._changes += 1
            for slot in self.slots:
                try:
                    problem = slot.ask(("prepare", self._changes, configs), _LOAD_IN)
                except LateError as error:
                    problem = f"worker {slot.number}: {error}"
                    prepared.append(slot)  # it will be ready some time
                except GoneError:
                    continue  # spawned anew, it starts with what holds then
                if problem:
                    break
                prepared.append(slot)
            for slot in prepared:
                with suppress(GoneError):
                    slot.ask(("abort" if problem else "commit", self._changes))
            if not problem:
                self.configs = configs
            return problem

    def collect(self) -> Iterable[Metric]:
        """The metrics of all workers, each sample labelled with its worker."""
        families = {}
        for slot in self.slots:
            with suppress(GoneError):
                families[str(slot.number)] = slot.ask(("metrics",))
        yield from labelled_by_worker(families)
        serving = sum(slot.ready.is_set() for slot in self.slots)
        yield GaugeMetricFamily("multigate_workers", "Workers that serve.", serving)
        deaths = CounterMetricFamily(
            "multigate_worker_deaths_total",
            "Workers that ended and were spawned anew.",
            labels=["worker"],
        )
        for slot in self.slots:
            deaths.add_metric([str(slot.number)], slot.deaths)
        yield deaths


def supervise(options: ServerOptions, before: Callable[[], Any]) -> None:
    """Serve with several processes until SIGTERM or SIGINT, then drain.

    Prints one line with the port when all are ready.

    Args:
        options: of the server.
        before: what a worker does first, such as a quiet import of TensorFlow.

    Raises:
        ServingError: the server cannot start.
    """
    logs.configure(options.log_format)
    with stop_signals() as (first, second):
        supervisor = Supervisor(options, before)
        try:
            supervisor.start(first)
        except ServingError:
            if not first.is_set():
                raise
            return  # as asked
        where = address(options.host, supervisor.port)
        serving = supervisor.slots[0].serving
        print(f"serving {serving} in {options.workers} workers on {where}", flush=True)
        wait_for(first)
        LOG.info("draining")
        supervisor.stop(force=second)
