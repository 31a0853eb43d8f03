"""Server reflection that also finds methods by their names, as load generators such as ghz ask."""

from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection


class _Symbols:
    """The descriptor pool, which by itself finds files by messages, fields and services only."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        """The file of a symbol.

        Raises:
            KeyError: no file has it.
        """
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def add_reflection(services: Iterable[str], server: Any) -> None:
    """Answer questions about these services, and about reflection itself."""
    names = (*services, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, _Symbols())
