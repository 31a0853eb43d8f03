"""What HTTP calls: the methods of the gRPC services, as functions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Method = Callable[[Any, Any], Awaitable[Any]]
"""Takes a request message and its `core.calls.Caller`; raises as `core.status` says."""


@dataclass(frozen=True)
class Methods:
    """The methods that HTTP has paths for."""

    rank: Method
    recommend: Method
    explain: Method
    predict: Method
    metadata: Method
    status: Method
