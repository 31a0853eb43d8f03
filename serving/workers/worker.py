"""One server process among several: follows the supervisor's orders, and asks about the others."""

import logging
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from multigate.configs.errors import ServingError
from multigate.serving.core import logs
from multigate.serving.core.loop import CALLS
from multigate.serving.core.options import ServerOptions
from multigate.serving.core.signals import MARGIN, ends_within
from multigate.serving.workers.link import DisconnectedError, PipeClient, PipeServer
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

LOG = logging.getLogger("multigate.serving")


def run_worker(
    options: ServerOptions,
    orders: Connection,
    requests: Connection,
    served: Served | None,
    at_start: Callable[[], Any],
) -> None:
    """Run one worker: start, follow orders, drain.

    Args:
        options: with the port that all workers share.
        orders: from the supervisor; the worker drains when this pipe ends.
        requests: to the supervisor.
        served: the models of the other workers; None: those of the options.
        at_start: what to do first.
    """
    stop, force = threading.Event(), threading.Event()
    # Ctrl-C reaches the whole process group; only the supervisor acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    logs.configure(options.log_format)
    at_start()
    from multigate.serving.core.background import (
        end_without_hanging_threads,
        freeze_garbage_collector,
    )
    from multigate.serving.rpc.server import Server

    freeze_garbage_collector()
    fleet = Fleet(PipeClient(requests))
    try:
        _refuse_gpu()
        configs = None if served is None else pickle.loads(served.configs)
        server = Server(options, configs, fleet, None if served is None else served.file)
        server.start()
        freeze_garbage_collector()  # what was imported and made since, too
    except ServingError as error:
        with suppress(OSError):  # the supervisor is gone
            orders.send(Failed(str(error)))
        return
    with suppress(OSError):  # the thread that reads orders meets the same error, and stops
        begun = Served(pickle.dumps(list(server.configs)), server.applied_file)
        orders.send(Ready(server.describe(), begun))
    handler = OrderHandler(server, PipeServer(orders), stop, force)
    threading.Thread(target=handler.run, name="orders", daemon=True).start()
    while not stop.wait(0.5):  # a signal may reach one of TensorFlow's threads: see core.signals
        pass
    # The supervisor would kill it later, but may be dead itself.
    with ends_within(options.drain_delay_seconds + options.drain_grace_seconds + MARGIN):
        server.stop(force=force)
    end_without_hanging_threads()


def _refuse_gpu() -> None:
    from multigate.runtime.devices import has_gpu

    if has_gpu():
        raise ServingError(
            "--workers: expected 1 with a GPU, because one process takes its memory as it grows; "
            "to serve on CPUs only, set CUDA_VISIBLE_DEVICES=-1"
        )


class _AbortError(Exception):
    """Another worker cannot serve the models of a reload."""


class OrderHandler:
    """Follows the supervisor's orders in this worker."""

    def __init__(
        self, server: Any, orders: PipeServer, stop: threading.Event, force: threading.Event
    ) -> None:
        self._server = server
        self._orders = orders
        self._stop = stop
        self._force = force
        self._verdicts: queue.SimpleQueue[tuple[int, Commit | Abort | None]] = queue.SimpleQueue()
        """How a reload ends, with the number of that order; None: the supervisor is gone."""

    def run(self) -> None:
        """Follow orders until the supervisor is gone; an order that fails is answered so."""
        try:
            while True:
                number, order = self._orders.receive()
                try:
                    self._follow(number, order)
                except Exception as error:
                    self._orders.fail(number, error)
        except (EOFError, OSError):
            pass
        except Exception:
            LOG.exception("orders of the supervisor cannot be read; this worker drains")
        finally:
            self._verdicts.put((-1, None))
            self._stop.set()  # nothing else would end this process

    def _follow(self, number: int, order: Order) -> None:
        answer: Any = None
        match order:
            case Prepare():
                # Loading takes long: other orders, such as to drain, must not wait for it.
                threading.Thread(
                    target=self._reload, args=(number, order), name="reload", daemon=True
                ).start()
                return
            case Commit() | Abort():
                self._verdicts.put((number, order))
                return
            case Heartbeat():
                beat = CALLS.submit(_beat())
                beat.add_done_callback(lambda _: self._orders.send(number, None))
                return
            case ThreadFailed():
                self._server.metrics.tell_thread_failure()
            case GetMetrics():
                answer = list(self._server.metrics.registry.collect())
            case GetRecords():
                answer = pickle.dumps(self._server.models.known_records(order.model))
            case Stop():
                if order.at_once:
                    self._force.set()
                self._stop.set()
            case _:
                raise TypeError(f"expected an order, received {order!r}")
        self._orders.send(number, answer)

    def _reload(self, number: int, order: Prepare) -> None:
        """Load other models, and serve them if the supervisor says that all workers can."""
        problem: str | None = None
        try:
            with self._server.models.change(pickle.loads(order.served.configs)):
                self._orders.send(number, "")
                number, verdict = self._verdicts.get()
                while verdict is not None and verdict.reload != order.reload:
                    self._orders.send(number, None)  # the verdict on a reload that took too long
                    number, verdict = self._verdicts.get()
                if not isinstance(verdict, Commit):
                    raise _AbortError
            if order.served.file is not None:
                self._server.applied_file = order.served.file
        except _AbortError:
            pass
        except ServingError as error:
            problem = str(error)
        except Exception as error:
            LOG.exception("a reload of models failed")
            problem = repr(error)
        self._orders.send(number, problem)


async def _beat() -> None:
    """Does nothing, in the event loop."""


class Fleet:
    """All workers of the server, as one of them sees them."""

    def __init__(self, supervisor: PipeClient) -> None:
        self._supervisor = supervisor

    def apply(self, configs: Sequence[Any], file: bytes | None = None) -> None:
        """Serve these models in all workers, or change nothing.

        Args:
            configs: of the models.
            file: content of the models' file, where that asks for them.

        Raises:
            ServingError: a worker cannot serve them.
        """
        if problem := self._ask(Reload(Served(pickle.dumps(list(configs)), file))):
            raise ServingError(problem)

    def known_records(self, name: str) -> list[dict[int, Any]]:
        """State of a model's versions in each worker."""
        return [pickle.loads(one) for one in self._ask(GetRecords(name))]

    def collect(self) -> Any:
        """The metrics of all workers, as the supervisor's page has them."""
        return self._ask(GetMetrics())

    def _ask(self, request: Request) -> Any:
        try:
            return self._supervisor(request)
        except DisconnectedError:
            from multigate.serving.core.status import DrainingError

            raise DrainingError("the server's supervisor is gone; call another server") from None
