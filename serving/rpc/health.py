"""`grpc.health.v1`: what answers, and what is ready.

The servicer of grpcio-health-checking for event loops forgets all who watch a service once one of
them leaves, and waits for a slow one before it tells the others.
"""

import asyncio
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from multigate.serving.core.status import NotServedError

_STATUS = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """The health of services by name."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def set(self, names: tuple[str, ...], status: int) -> None:
        """Change the health of services, and tell those who watch them."""
        async with self._changed:
            self._known.update(dict.fromkeys(names, status))
            self._changed.notify_all()

    async def Check(self, request: Any, context: Any) -> Any:
        """The health of one service."""
        if request.service not in self._known:
            known = ", ".join(repr(name) for name in self._known)
            raise NotServedError(f"service {request.service!r}: not known; expected one of {known}")
        return _STATUS(status=self._known[request.service])

    async def Watch(self, request: Any, context: Any) -> None:
        """The health of one service, and each change of it."""
        told = None
        while True:
            status = self._of(request.service)
            if status != told:
                await context.write(_STATUS(status=status))
                told = status
            async with self._changed:
                while self._of(request.service) == told:
                    await self._changed.wait()

    def _of(self, service: str) -> int:
        unknown: int = _STATUS.SERVICE_UNKNOWN
        return self._known.get(service, unknown)
