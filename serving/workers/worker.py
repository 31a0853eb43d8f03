"""One server process among several: takes the supervisor's orders, and asks it about the others."""

import logging
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from multigate.configs.errors import ServingError
from multigate.serving.core import logs
from multigate.serving.core.options import ServerOptions
from multigate.serving.workers.link import Ask, GoneError, Replies

LOG = logging.getLogger("multigate.serving")


@dataclass(frozen=True)
class Ready:
    """The worker serves."""

    serving: str
    """Models and versions, in words."""


@dataclass(frozen=True)
class Failed:
    """The worker cannot serve."""

    reason: str


def run_worker(
    options: ServerOptions,
    orders: Connection,
    questions: Connection,
    configs: bytes | None,
    before: Callable[[], Any],
) -> None:
    """The life of a worker: start, take orders, drain.

    Args:
        options: with the port that all share.
        orders: from the supervisor; its end, or the supervisor's death, drains.
        questions: to the supervisor.
        configs: pickled models of the last reload; None: those of the options.
        before: what to do first.
    """
    stop, force = threading.Event(), threading.Event()
    # Ctrl-C reaches the whole process group; the supervisor alone decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    logs.configure(options.log_format)
    before()
    from multigate.serving.core.background import keep_what_is_imported
    from multigate.serving.rpc.server import Server

    keep_what_is_imported()
    fleet = Fleet(Ask(questions))
    try:
        _refuse_gpu()
        server = Server(options, pickle.loads(configs) if configs is not None else None, fleet)
        server.start()
    except ServingError as error:
        with suppress(OSError):  # of a supervisor that is gone
            orders.send(Failed(str(error)))
        return
    with suppress(OSError):  # taking orders finds the same, and stops
        orders.send(Ready(server.describe()))
    taker = Orders(server, Replies(orders), stop, force)
    threading.Thread(target=taker.take, name="orders", daemon=True).start()
    while not stop.wait(0.5):  # a signal may go to a thread of TensorFlow's, see serving.signals
        pass
    server.stop(force=force)


def _refuse_gpu() -> None:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        raise ServingError(
            "--workers: expected 1 with a GPU, whose memory one process takes as it grows; for "
            "CPUs only set CUDA_VISIBLE_DEVICES=-1"
        )


class _AbortError(Exception):
    """Another worker cannot serve the models of a reload."""


class Orders:
    """What the supervisor wants of this worker."""

    def __init__(
        self, server: Any, orders: Replies, stop: threading.Event, force: threading.Event
    ) -> None:
        self._server = server
        self._orders = orders
        self._stop = stop
        self._force = force
        self._verdicts: queue.SimpleQueue[tuple[int, str, int]] = queue.SimpleQueue()
        """Number and name of an order that ends a change of models, and which change."""

    def take(self) -> None:
        """Follow orders until the supervisor is gone."""
        try:
            while True:
                self._follow(*self._orders.next())
        except (EOFError, OSError):
            self._verdicts.put((-1, "end", -1))
            self._stop.set()  # nobody else would end this process

    def _follow(self, number: int, order: tuple[Any, ...]) -> None:
        name, *parts = order
        answer: Any = None
        if name == "prepare":
            # Loading takes its time: other orders, such as to drain, must not wait for it.
            threading.Thread(
                target=self._change, args=(number, *parts), name="reload", daemon=True
            ).start()
            return
        if name in {"commit", "abort"}:
            self._verdicts.put((number, name, *parts))
            return
        if name == "metrics":
            answer = list(self._server.metrics.registry.collect())
        elif name == "records":
            answer = pickle.dumps(self._server.models.known(*parts))
        elif name in {"drain", "force"}:
            if name == "force":
                self._force.set()
            self._stop.set()
        self._orders.send(number, answer)

    def _change(self, number: int, change: int, configs: bytes) -> None:
        """Load other models, and serve them if the supervisor says that all workers can."""
        problem: str | None = None
        try:
            with self._server.models.change(pickle.loads(configs)):
                self._orders.send(number, "")
                number, verdict, which = self._verdicts.get()
                while verdict != "end" and which != change:  # of one that took too long
                    self._orders.send(number, None)
                    number, verdict, which = self._verdicts.get()
                if verdict != "commit":
                    raise _AbortError
        except _AbortError:
            pass
        except ServingError as error:
            problem = str(error)
        except Exception as error:
            LOG.exception("a change of models failed")
            problem = repr(error)
        self._orders.send(number, problem)


class Fleet:
    """All workers of the server, as one of them sees them."""

    def __init__(self, ask: Ask) -> None:
        self._ask_supervisor = ask

    def apply(self, configs: Sequence[Any]) -> None:
        """Serve these models in all workers, or change nothing.

        Raises:
            ServingError: a worker cannot serve them.
        """
        if problem := self._ask("reload", pickle.dumps(list(configs))):
            raise ServingError(problem)

    def known(self, name: str) -> list[dict[int, Any]]:
        """State of a model's versions in each worker."""
        return [pickle.loads(one) for one in self._ask("records", name)]

    def _ask(self, *question: Any) -> Any:
        try:
            return self._ask_supervisor(question)
        except GoneError:
            from multigate.serving.core.status import DrainingError

            raise DrainingError("the server's supervisor is gone; call another server") from None
