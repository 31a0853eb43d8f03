"""`grpc.health.v1`: liveness and readiness.

grpcio-health-checking's asyncio servicer was considered: once one watcher of a service leaves, it
forgets the others, and a slow watcher delays the others.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from multigate.serving.core.status import NotServedError

_STATUS = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """The health of services by name."""

    def __init__(self, serving: Iterable[str] = ()) -> None:
        """Name the services that are SERVING from the start."""
        self._known: dict[str, int] = dict.fromkeys(serving, _STATUS.SERVING)
        self._changed = asyncio.Condition()
        self._recoveries: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def set(self, names: tuple[str, ...], status: int) -> None:
        """Set the health of services, and notify their watchers."""
        async with self._changed:
            self._known.update(dict.fromkeys(names, status))
            self._changed.notify_all()

    def fail(self, name: str, seconds: float) -> None:
        """Have a service be NOT_SERVING for a time, which another failure begins anew."""
        if name in self._recoveries:
            self._recoveries[name].cancel()
        self._set_soon(name, _STATUS.NOT_SERVING)
        self._recoveries[name] = asyncio.get_running_loop().call_later(
            seconds, self._set_soon, name, _STATUS.SERVING
        )

    def _set_soon(self, name: str, status: int) -> None:
        task = asyncio.get_running_loop().create_task(self.set((name,), status))
        self._tasks.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._tasks.discard)

    async def Check(self, request: Any, context: Any) -> Any:
        """The health of one service."""
        if request.service not in self._known:
            known = ", ".join(repr(name) for name in self._known)
            raise NotServedError(f"service {request.service!r}: unknown; expected one of {known}")
        return _STATUS(status=self._known[request.service])

    async def Watch(self, request: Any, context: Any) -> None:
        """The health of one service now, and after each change."""
        sent = None
        while True:
            status = self._status_of(request.service)
            if status != sent:
                await context.write(_STATUS(status=status))
                sent = status
            async with self._changed:
                while self._status_of(request.service) == sent:
                    await self._changed.wait()

    def _status_of(self, service: str) -> int:
        unknown: int = _STATUS.SERVICE_UNKNOWN
        return self._known.get(service, unknown)
